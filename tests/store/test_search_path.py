"""What a stranger puts into a schema of the search_path is not called by statements of ours, whatever the session: each
calls functions by their full names, and operators for exactly the types on their two sides."""

from __future__ import annotations

import psycopg
import pytest

from kit import wait_until
from kit.databases import make_postgres
from kit.hostile import Parsed, plant
from relaybox import ALL, Event, Feed, Guard, Inbox, Outbox, Reject, Replica, Topic
from relaybox.op import Query
from relaybox.store.feeds import open_feed_store
from relaybox.store.grants.ops import asked
from relaybox.store.guard import open_guard_schema
from relaybox.store.names import Tables
from relaybox.store.queries import fill, texts
from relaybox.store.schema import Schema
from relaybox.store.topics.cleanup import SAME
from relaybox.store.topics.store import TopicStore
from relaybox.types import Columns

# Asked where the server has what it names.
ELSEWHERE = {"topic.measure.io"}
NARROW = {"topic.write.many_bitmap", "topic.watch.mismatched", "topic.mark.complete"}
VERBS = ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")
TRACKINGS = ("offset", "bitmap", "acks", "rows")


@pytest.fixture(scope="module")
def hostile() -> str:
    """Everything of ours, made where a stranger has been before."""
    url = make_postgres(migrated=False)
    plant(url)
    with Outbox(url) as box:
        box.migrate()
        for tracking in TRACKINGS:
            topic = Topic.queue(tracking) if tracking == "rows" else Topic.pub_sub(tracking, tracking=tracking)
            made = box.topics.configure(topic)
        log = box.topic_store.log(made.id)  # of the queue, as while it is moved
        with box.transaction() as tx:
            for name in ("topic.log.create", "topic.log.sequence"):
                tx.connection.execute(log[name].text)
        with box.transaction() as tx:
            for line in box.grants("writer", to="relaybox"):
                tx.connection.execute(line)
    with Inbox(url) as inbox:
        inbox.migrate()
    with Guard.sql(url, consumer="billing") as guard:
        guard.migrate()
    with psycopg.connect(url) as owner:
        owner.execute("CREATE TABLE sold (customer varchar(9) PRIMARY KEY, amount numeric NOT NULL, told jsonb)")
        owner.execute(
            "CREATE TABLE theirs (event_id text PRIMARY KEY, event_type varchar(40), aggregate_id varchar(40),"
            " source varchar(40), payload json, headers json, error varchar(100), processed_at timestamptz,"
            " received_at timestamptz, retry_count integer)"
        )
    return url


def of_logs(store: TopicStore, topic_id: int, tracking: str) -> list[Query]:
    """The queries of one topic, with the words that come later."""
    slots = store.log_slots(topic_id)
    kind = tracking if tracking != "rows" else "offset"
    words = {name: fill(slots[f"{name}_{kind}"], slots) for name in ("marks", "closed", "unmark")}
    later = {f"log_{name}": text for name, text in words.items()} | {
        "log_part": slots["log"],
        "log_from": "2030-01-01",
        "log_to": "2030-02-01",
        "log_same": SAME,
        "log_nobody": "'{}'" if tracking == "acks" else "0",
        "log_spread": "",
        "log_table": "",
        "log_living": "audience" if tracking == "acks" else "required",
    }
    texts = {query.name: store._dialect.finish(fill(query.text, later)) for query in store.log(topic_id).values()}
    return [Query(name, text, "rows") for name, text in texts.items() if suits(name, tracking)]


def of_replicas(url: str) -> list[Query]:
    """Of a feed that another database reads, and of the table there that follows it; both are in this one."""
    with Outbox(url) as box:
        box.feeds.create(Feed("sales", "SELECT customer, amount, told FROM sold", key="customer", mode="full"))
        with Replica(url, "sold_copy", feed="sales", source=box) as replica:
            replica.migrate()
            replica.verify()
            kept, reading = replica.kept, replica._reading
            assert reading is not None
            place = box._db.run(reading.place())
            names = texts("feeds/reading", "postgres").queries
            slots = {**reading._log(place), "line": "row_to_json(m.*)", "relation": place.relation, "most": "1"}
            asked = [reading._asked(name, **slots) for name in names]
            asked += [kept._asked(name) for name in ("kept.columns", "kept.unique")]
            return [*asked, *kept.sql.values(), *replica.store.sql.values()]


def suits(name: str, tracking: str) -> bool:
    """What names marks is for one of two kinds of marks."""
    wide = name.endswith(("_wide", "_acks"))
    return tracking == "acks" if wide else tracking != "acks" or name not in NARROW


def test_no_statement_calls_what_a_stranger_has_made(hostile: str) -> None:
    box, inbox, theirs = Outbox(hostile), Inbox(hostile), Inbox(hostile, "adopted")
    theirs.adopt("theirs", Columns())
    guard = open_guard_schema("postgres", Tables("relaybox_guard"))
    feeds = open_feed_store("postgres", Tables())
    schemas: list[Schema] = [box.store, inbox.store, theirs.store, guard, box.topic_store, feeds]
    queries = [query for schema in schemas for query in schema.sql.values()]
    queries += [asked("postgres", f"grants.{name}", table="x") for name in ("home", "held", "open", "schemas")]
    queries += of_replicas(hostile)
    for info in box.topics.list():
        queries += of_logs(box.topic_store, info.id, info.topic.tracking)
    called: dict[str, set[str]] = {}
    understood = set()
    with psycopg.connect(hostile, autocommit=True) as connection:
        parsed = Parsed(connection)
        assert len(parsed.hostile) > 5000
        assert parsed.strangers("SELECT now() WHERE 'a'::varchar = 'a'::text") != set()
        for query in queries:
            text, _ = query.compiled("dollar")
            if text.upper().startswith(VERBS):
                found = parsed.strangers(text)
                if not any("does not exist" in line for line in found):  # another kind of topic has those tables
                    understood.add(query.name)
                    called |= {query.name: found} if found else {}
        made = parsed.depending()
    for one in (box, inbox, theirs):
        one.close()
    due = {query.name for query in queries if query.text.upper().startswith(VERBS)}
    assert called == {}
    assert made == []
    assert due - understood == ELSEWHERE
    assert len(understood) > 300


def test_an_operator_does_not_run_what_a_stranger_has_made(hostile: str) -> None:
    """The way of a message, in the caller's session and in ours, to a dead letter that is replayed."""

    def refuse(event: Event) -> None:
        raise Reject("no")

    with Outbox(hostile) as box, psycopg.connect(hostile) as caller:
        box.write(caller, Event("Happened", 1, key="a"))
        box.write_all(caller, [Event("Happened", n, topic="offset") for n in range(3)])
        caller.commit()
        with box.deliver(refuse):
            wait_until(lambda: box.status().dead == 1)
        assert [letter.event.type for letter in box.dead.list()] == ["Happened"]
        assert box.dead.replay(ALL) == 1
        assert box.status().dead == 0


def test_a_feed_does_not_run_what_a_stranger_has_made(hostile: str) -> None:
    """Its functions have a path of their own; only the query itself is read with the caller's."""
    query = "SELECT customer, pg_catalog.count(*) AS n FROM orders GROUP BY customer"
    with Outbox(hostile) as box, psycopg.connect(hostile, autocommit=True) as caller:
        caller.execute("CREATE TABLE orders (id integer PRIMARY KEY, customer varchar(9) NOT NULL, amount bigint)")
        caller.execute("CREATE INDEX ON orders (customer)")
        for mode in ("differential", "full"):
            box.feeds.create(Feed(mode, query, key="customer", sources={"orders": "customer"}, mode=mode))  # type: ignore[arg-type]
            box.feeds.refresh(None, mode)
        caller.execute("INSERT INTO orders VALUES (1, 'a', 1), (2, 'b', 1), (3, 'b', 1)")
        caller.execute("UPDATE orders SET customer = 'c' WHERE id OPERATOR(pg_catalog.=) 3")
        with caller.transaction():
            for mode in ("differential", "full"):
                assert box.feeds.refresh(caller, mode).inserted == 3
        for mode in ("differential", "full"):
            assert box.feeds.verify(mode).rows == 0
            assert box.feeds.pause(mode)
            assert box.feeds.resume(mode)
            assert box.feeds.drop(mode)
