"""A replica: whatever the target, its table is the feed's, and every delta is applied to it once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from replica_kit import QUICK, TARGETS, TOTALS, TYPES, at, changes, expected, kept, make_source

import relaybox.store.replica.kept as kept_module
from kit import make_database, make_postgres, one, rows, wait_until
from relaybox import AsyncReplica, ConfigError, Event, Feed, Outbox, Replica, StartFrom
from relaybox.drivers import open_sync
from relaybox.errors import FeedError, NotFound, NoTransaction, SchemaMissing
from relaybox.facts import Fact, ReplicaLag, Replicated
from relaybox.op import run

COUNTED = {"feed-inserted": "0", "feed-deleted": "0", "feed-claim-check": "false"}


@pytest.fixture
def source() -> Iterator[Outbox]:
    with make_source() as box:
        yield box


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return make_database(request.param, tmp_path, migrated=False)


def test_it_follows(source: Outbox, target: str) -> None:
    source.feeds.create(TOTALS)
    source.feeds.refresh(None, "totals")
    with Replica(target, "totals", feed="totals", source=source, settings=QUICK) as replica:
        replica.migrate()
        replica.migrate()
        replica.verify()
        assert (replica.status().epoch, replica.status().n, replica.status().behind) == (None, 0, None)
        replica.follow().once()
        assert kept(target) == expected(source)
        changes(
            source,
            "UPDATE orders SET amount = amount + 0.1 WHERE id = 7",
            "DELETE FROM orders WHERE customer = 8",
            "INSERT INTO orders VALUES (1000, 77, 1.10), (1001, 78, NULL)",
        )
        assert replica.status().behind == 3
        counts = replica.follow().once()
        assert (counts.done, counts.failed) == (3, 0)
        assert kept(target) == expected(source)
        assert (replica.status().n, replica.status().behind) == (4, 0)
        assert one(target, "SELECT count(*) FROM totals_replica") == 0


# -- from a group -----------------------------------------------------------------------------------------


def consumed(source: Outbox, group: str = "mirror") -> list[Event]:
    """The events that a group has not had."""
    pulled = source.topics.group("totals", group, start=StartFrom.earliest())
    with pulled.consumer() as consumer:
        found: list[Event] = []
        while batch := consumer.poll(100):
            found += batch
            consumer.commit(batch)
        return found


def test_each_delta_of_a_group_is_applied_once(source: Outbox, target: str) -> None:
    source.feeds.create(TOTALS)
    consumed(source)
    source.feeds.refresh(None, "totals")
    changes(source, "UPDATE orders SET amount = 5 WHERE id = 7", "DELETE FROM orders WHERE customer = 8")
    events = consumed(source)
    columns = {"customer": "integer", "n": "bigint", "total": "numeric"}
    with Replica(target, "totals", feed="totals", key="customer", columns=columns) as replica:
        replica.migrate()
        assert [replica.apply(None, event) for event in [*events, *events]] == [True, True, True, False, False, False]
        assert kept(target) == expected(source)
        assert (replica.status().n, replica.status().source_n) == (3, None)
        with pytest.raises(ConfigError, match="source"):
            replica.follow()


def test_delivered_to_a_group(source: Outbox, target: str) -> None:
    source.feeds.create(TOTALS)
    group = source.topics.group("totals", "mirror", start=StartFrom.earliest(), ordered=True)
    group.create()
    source.feeds.refresh(None, "totals")
    changes(source, "UPDATE orders SET amount = 5 WHERE id = 7", "DELETE FROM orders WHERE customer = 8")
    with Replica(target, "totals", feed="totals", source=source) as replica:
        replica.migrate()
        group.deliver(lambda event: replica.apply(None, event)).once()
        assert kept(target) == expected(source)


def test_in_the_transaction_of_a_handle(source: Outbox, target: str) -> None:
    source.feeds.create(TOTALS)
    consumed(source)
    source.feeds.refresh(None, "totals")
    (event,) = consumed(source)
    with Replica(target, "totals", feed="totals", source=source) as replica, replica._db.connection() as ours:
        replica.migrate()
        ours.begin()
        assert replica.apply(ours.raw, event)
        ours.rollback()
        assert (kept(target), replica.status().n) == ([], 0)
        ours.begin()
        assert replica.apply(ours.raw, event)
        assert not replica.apply(ours.raw, event)
        ours.commit()
        assert kept(target) == expected(source)
        with psycopg.connect(at(source), autocommit=True) as elsewhere:
            fault = NoTransaction if target.startswith("postgres") else ConfigError
            with pytest.raises(fault):
                replica.apply(elsewhere, event)


async def test_the_async_twin(source: Outbox, target: str) -> None:
    source.feeds.create(TOTALS)
    consumed(source)
    source.feeds.refresh(None, "totals")
    (first,) = consumed(source)
    async with AsyncReplica(target, "totals", feed="totals", source=source, settings=QUICK) as replica:
        await replica.migrate()
        assert await replica.apply(None, first)
        assert not await replica.apply(None, first)
        async with replica.follow() as following:
            rows(at(source), "DELETE FROM orders WHERE id < 40")
            source.feeds.refresh(None, "totals")
            await following.drain(timeout=20)
            assert following.health().level == "ok"
        assert kept(target) == expected(source)
        assert (await replica.status()).behind == 0
        await replica.verify()


# -- gaps ---------------------------------------------------------------------------------------------------


def test_a_gap_is_filled_by_a_copy(source: Outbox, target: str) -> None:
    """Retention has taken deltas that the table does not have."""
    source.feeds.create(TOTALS)
    source.feeds.refresh(None, "totals")
    seen: list[Fact] = []
    with Replica(target, "totals", feed="totals", source=source, observers=[seen.append]) as replica:
        replica.migrate()
        replica.follow().once()
        changes(source, "DELETE FROM orders WHERE customer = 1", "DELETE FROM orders WHERE customer = 2")
        rows(at(source), 'DELETE FROM outbox_event_log_1 WHERE headers LIKE \'%"feed-n":"2"%\'')
        rows(at(source), 'DELETE FROM outbox_event_log_1 WHERE headers LIKE \'%"feed-n" : "2"%\'')
        counts = replica.follow().once()
        assert (counts.done, counts.failed) == (1, 0)
        assert kept(target) == expected(source)
        changes(source, "DELETE FROM orders WHERE customer = 3")
        rows(at(source), "DELETE FROM outbox_event_log_1")
        assert replica.follow().once().done == 1
        assert kept(target) == expected(source)
        assert replica.status().n == 4
    assert [fact.copied for fact in seen if isinstance(fact, Replicated)] == [True, True, True]
    assert [fact.behind for fact in seen if isinstance(fact, ReplicaLag)][-1] == 0


def test_a_gap_without_a_source_waits_for_a_snapshot(source: Outbox, target: str) -> None:
    source.feeds.create(TOTALS)
    consumed(source)
    source.feeds.refresh(None, "totals")
    changes(source, "DELETE FROM orders WHERE customer = 1", "DELETE FROM orders WHERE customer = 2")
    first, _, third = consumed(source)
    rows(at(source), "DELETE FROM orders WHERE customer = 3")
    source.feeds.snapshot(None, "totals")
    fourth, snapshot = consumed(source)
    types = {"customer": "integer", "n": "bigint", "total": "numeric"}
    with Replica(target, "totals", feed="totals", key="customer", columns=types) as replica:
        replica.migrate()
        assert replica.apply(None, first)
        with pytest.raises(FeedError, match="message 3 came, and the table is at 1") as gap:
            replica.apply(None, third)
        assert gap.value.reason == "gap"
        assert replica.status().n == 1
        assert replica.apply(None, snapshot)
        assert kept(target) == expected(source)
        assert [replica.apply(None, late) for late in (third, fourth, snapshot)] == [False] * 3


def test_a_snapshot_is_passed_by_without_a_gap(source: Outbox, target: str) -> None:
    source.feeds.create(TOTALS)
    consumed(source)
    source.feeds.refresh(None, "totals")
    source.feeds.snapshot(None, "totals")
    changes(source, "DELETE FROM orders WHERE customer = 1")
    with Replica(target, "totals", feed="totals", key="customer", columns={**TYPES}) as replica:
        replica.migrate()
        for event in consumed(source):
            assert replica.apply(None, event)
        assert (kept(target), replica.status().n) == (expected(source), 3)


def test_another_epoch(source: Outbox, target: str) -> None:
    """The feed was dropped and made anew: numbers begin again, and rows of before go."""
    source.feeds.create(TOTALS)
    consumed(source)
    source.feeds.refresh(None, "totals")
    changes(source, "DELETE FROM orders WHERE customer = 1")
    old = consumed(source)
    with (
        Replica(target, "totals", feed="totals", source=source) as following,
        Replica(target, "fed", feed="totals", key="customer", columns={**TYPES}) as fed,
    ):
        following.migrate()
        fed.migrate()
        following.follow().once()
        for event in old:
            assert fed.apply(None, event)
        source.topics.group("totals", "mirror").cancel()
        source.feeds.drop("totals")
        rows(at(source), "DELETE FROM orders WHERE customer IN (2, 3)")
        source.feeds.create(TOTALS)
        consumed(source, "another")
        source.feeds.refresh(None, "totals")
        assert following.follow().once().done == 1
        (first,) = consumed(source, "another")
        assert fed.apply(None, first)
        assert not fed.apply(None, old[-1])
        changes(source, "DELETE FROM orders WHERE customer = 4")
        following.follow().once()
        (second,) = consumed(source, "another")
        assert fed.apply(None, second)
        assert kept(target) == kept(target, "fed") == expected(source)


def test_other_columns_of_the_feed(source: Outbox, target: str) -> None:
    source.feeds.create(TOTALS)
    source.feeds.refresh(None, "totals")
    with Replica(target, "totals", feed="totals", source=source, settings=QUICK) as replica:
        replica.migrate()
        replica.follow().once()
        before = kept(target)
        source.feeds.drop("totals")
        wider = Feed(
            "totals",
            "SELECT customer, count(*) AS n, sum(amount) AS total, max(id) AS last FROM orders GROUP BY customer",
            key="customer",
            sources={"orders": "customer"},
        )
        source.feeds.create(wider)
        source.feeds.refresh(None, "totals")
        with pytest.raises(FeedError, match="'last' is new") as refused:
            replica.verify()
        assert refused.value.reason == "columns"
        with replica.follow() as following:
            assert wait_until(lambda: following.health().level == "critical")
            assert "'last' is new" in following.health().reasons[0]
        assert kept(target) == before
        with pytest.raises(FeedError, match="no column 'last'"):
            replica.migrate()
        rows(target, "ALTER TABLE totals ADD COLUMN last integer")
        replica.migrate()
        replica.follow().once()
        assert kept(target) == expected(source)
        assert one(target, "SELECT max(last) FROM totals") == 100


# -- large deltas, references -------------------------------------------------------------------------------


def test_large_deltas_come_by_chunks(source: Outbox, target: str) -> None:
    rows(at(source), "INSERT INTO orders SELECT g, g, g FROM generate_series(1000, 6000) g")
    source.feeds.create(replace(TOTALS, inline_rows=10, chunk_rows=300))
    consumed(source)
    with Replica(target, "totals", feed="totals", source=source) as replica:
        replica.migrate()
        replica.follow().once()
        source.feeds.refresh(None, "totals")
        assert replica.follow().once().done == 1
        changes(
            source,
            "UPDATE orders SET amount = amount + 1 WHERE customer % 3 = 0",
            "DELETE FROM orders WHERE customer % 2 = 0",
        )
        assert replica.follow().once().done == 2
        assert kept(target) == expected(source)
        assert one(target, "SELECT count(*) FROM totals_replica") == 0
        lost = Replica(target, "lost", feed="totals", key="customer", columns={**TYPES})
        with lost:
            lost.migrate()
            with pytest.raises(FeedError, match="by claim check") as refused:
                lost.apply(None, consumed(source)[0])
            assert refused.value.reason == "source"


def test_a_chunk_that_is_lost_is_noticed(source: Outbox, target: str) -> None:
    source.feeds.create(replace(TOTALS, inline_rows=0, chunk_rows=4))
    with Replica(target, "totals", feed="totals", source=source, settings=QUICK) as replica:
        replica.migrate()
        replica.follow().once()
        source.feeds.refresh(None, "totals")
        rows(at(source), "UPDATE outbox_event_feed_delta SET chunks = 2")
        with replica.follow() as following:
            assert wait_until(lambda: following.health().level == "critical")
            assert "says 10 inserted" in following.health().reasons[0]
        assert (kept(target), replica.status().n) == ([], 0)


def test_references_to_the_table_outlive_updates(source: Outbox, target: str) -> None:
    source.feeds.create(TOTALS)
    source.feeds.refresh(None, "totals")
    with Replica(target, "totals", feed="totals", source=source) as replica:
        replica.migrate()
        replica.follow().once()
        rows(
            target,
            "CREATE TABLE note (customer integer REFERENCES totals (customer) ON DELETE CASCADE)"
            if not target.startswith("mysql")
            else "CREATE TABLE note (customer integer, FOREIGN KEY (customer) REFERENCES totals (customer) "
            "ON DELETE CASCADE)",
        )
        for customer in (1, 2):
            execute(target, f"INSERT INTO note VALUES ({customer})")
        changes(source, "UPDATE orders SET amount = amount + 1", "DELETE FROM orders WHERE customer = 2")
        replica.follow().once()
        rows(at(source), "DELETE FROM outbox_event_log_1")
        changes(source, "UPDATE orders SET amount = amount + 1")
        rows(at(source), "DELETE FROM outbox_event_log_1")
        replica.follow().once()
        assert kept(target) == expected(source)
        left = rows(target, "SELECT customer FROM note ORDER BY 1")
        assert left == ([(1,), (2,)] if target.startswith("sqlite") else [(1,)])  # which checks none, unless told to


def execute(url: str, statement: str) -> None:
    """As `rows`, and committed."""
    with Outbox(url) as box, box.transaction() as tx:
        tx.connection.cursor().execute(statement)


# -- tables that are there ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ("customer integer PRIMARY KEY, n bigint", "no column 'total'"),
        ("customer integer, n bigint, total decimal(20,2)", "no unique index on exactly 'customer'"),
        ("customer integer, n bigint, total decimal(20,2), PRIMARY KEY (customer, n)", "no unique index on exactly"),
        ("customer integer PRIMARY KEY, n bigint UNIQUE, total decimal(20,2)", "rows could collide"),
        (
            "customer integer PRIMARY KEY, n bigint, total decimal(20,2), more integer NOT NULL",
            "needs a value in 'more'",
        ),
    ],
)
def test_a_table_that_cannot_follow(source: Outbox, target: str, made: str, told: str) -> None:
    source.feeds.create(TOTALS)
    rows(target, f"CREATE TABLE totals ({made})")
    with Replica(target, "totals", feed="totals", source=source) as replica:
        with pytest.raises(FeedError, match=told) as refused:
            replica.migrate()
        assert refused.value.reason == "table"
        with pytest.raises((FeedError, SchemaMissing)):
            replica.follow().start()


def test_a_table_that_is_there(source: Outbox, target: str) -> None:
    """With columns of its own. Rows that the feed does not have go."""
    source.feeds.create(TOTALS)
    source.feeds.refresh(None, "totals")
    rows(
        target,
        "CREATE TABLE totals (total decimal(20,2), customer integer PRIMARY KEY, seen integer DEFAULT 7, n bigint)",
    )
    execute(target, "INSERT INTO totals VALUES (1, 999, 1, 1)")
    execute(target, "INSERT INTO totals VALUES (1, 1, 1, 1)")
    with Replica(target, "totals", feed="totals", source=source) as replica:
        replica.migrate()
        replica.follow().once()
        assert kept(target) == expected(source)
        assert one(target, "SELECT sum(seen) FROM totals") == 9 * 7 + 1
    with Replica(target, "totals", feed="another", key="customer") as other:
        with pytest.raises(FeedError, match="follows feed 'totals'"):
            other.migrate()


def test_what_stands_beside_a_table_and_is_not_ours(source: Outbox, target: str) -> None:
    """A name that an application may well have given to a table of its own."""
    source.feeds.create(TOTALS)
    rows(target, "CREATE TABLE totals_replica (customer integer)")
    execute(target, "INSERT INTO totals_replica VALUES (7)")
    with Replica(target, "totals", feed="totals", source=source) as replica:
        with pytest.raises(FeedError, match="'totals_replica' that no replica has made") as refused:
            replica.migrate()
        assert refused.value.reason == "table"
        assert rows(target, "SELECT customer FROM totals_replica") == [(7,)]


@pytest.mark.parametrize("kind", ["text", "uuid"])
def test_a_key_that_takes_texts_for_equal(source: Outbox, target: str, kind: str) -> None:
    """Of two rows of the feed it would keep one. Texts of one spelling cannot collide."""
    word = {"text": "'a' || g", "uuid": "('5f3c1e9a-0000-4000-8000-00000000000' || g)::uuid"}[kind]
    source.feeds.create(Feed("words", f"SELECT {word} AS w FROM generate_series(1, 2) g", key="w", mode="full"))
    blurred = "varchar(40) PRIMARY KEY"
    if target.startswith("sqlite"):
        blurred = "varchar(40) COLLATE NOCASE PRIMARY KEY"
    elif target.startswith("postgres"):
        rows(target, "CREATE EXTENSION citext")
        blurred = "citext PRIMARY KEY"
    rows(target, f"CREATE TABLE words (w {blurred})")
    with Replica(target, "words", feed="words", source=source) as replica:
        if kind == "uuid":
            replica.migrate()
            return
        with pytest.raises(FeedError, match="takes texts for equal in 'w'"):
            replica.migrate()
        rows(target, "DROP TABLE words")
        replica.migrate()


def test_a_collation_that_takes_texts_for_equal() -> None:
    target = make_postgres("postgres-system", migrated=False)
    rows(target, "CREATE COLLATION blurred (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    rows(target, "CREATE TABLE words (w text COLLATE blurred PRIMARY KEY)")
    with Replica(target, "words", feed="words", key="w", columns={"w": "text"}) as replica:
        with pytest.raises(FeedError, match="takes texts for equal in 'w'"):
            replica.migrate()


def test_a_table_that_was_altered_for_a_value(source: Outbox, target: str) -> None:
    """Without a restart."""
    source.feeds.create(TOTALS)
    source.feeds.refresh(None, "totals")
    small = "integer" if target.startswith("postgres") else "decimal(6,1)"
    rows(target, f"CREATE TABLE totals (customer integer PRIMARY KEY, n bigint, total {small})")
    with Replica(target, "totals", feed="totals", source=source, settings=QUICK) as replica:
        replica.migrate()
        with replica.follow() as following:
            following.drain(timeout=20)
            if target.startswith("sqlite"):  # whose types hold everything
                return
            rows(at(source), "UPDATE orders SET amount = 2.25 WHERE id = 7")
            source.feeds.refresh(None, "totals")
            assert wait_until(lambda: following.health().level == "critical")
            change = "ALTER COLUMN total TYPE numeric" if small == "integer" else "MODIFY total decimal(20,4)"
            rows(target, f"ALTER TABLE totals {change}")
            following.drain(timeout=20)
        assert kept(target) == expected(source)


def test_a_column_more_where_only_messages_come(source: Outbox, target: str) -> None:
    source.feeds.create(TOTALS)
    consumed(source)
    source.feeds.refresh(None, "totals")
    (event,) = consumed(source)
    rows(target, "CREATE TABLE totals (customer integer PRIMARY KEY, n bigint)")
    with Replica(target, "totals", feed="totals", key="customer") as replica:
        replica.migrate()
        with pytest.raises(FeedError, match="it has 'total', too"):
            replica.apply(None, event)
        rows(target, "ALTER TABLE totals ADD COLUMN total decimal(12,2)")
        replica.migrate()
        assert replica.apply(None, event)
        assert kept(target) == expected(source)


def test_a_table_that_was_made_anew_under_a_service(source: Outbox, target: str) -> None:
    """The feed has nothing new, and the table nothing at all."""
    source.feeds.create(TOTALS)
    source.feeds.refresh(None, "totals")
    with Replica(target, "totals", feed="totals", source=source, settings=QUICK) as replica:
        replica.migrate()
        with replica.follow() as following:
            following.drain(timeout=20)
            rows(target, "DROP TABLE totals")
            replica.migrate()
            wait_until(lambda: replica.status().n == 1)
            assert kept(target) == expected(source)


def test_two_threads_that_begin(source: Outbox, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One finds what the other has read of the table, and that is complete."""
    source.feeds.create(TOTALS)
    consumed(source)
    source.feeds.refresh(None, "totals")
    (event,) = consumed(source)
    with Replica(target, "totals", feed="totals", key="customer", columns={**TYPES}) as replica:
        replica.migrate()
        first, load = [True], kept_module.load

        def loading(*given: Any) -> Any:
            if first:
                first.clear()
                with open_sync(target).connection() as another:  # a thread
                    run(replica.kept.know(["customer"], {**TYPES}), another)
                assert replica.kept.sql
            return load(*given)

        monkeypatch.setattr(kept_module, "load", loading)
        assert replica.apply(None, event)
        assert not first


def test_what_is_wrong_is_told_at_once(source: Outbox, target: str) -> None:
    with Replica(target, "totals", feed="totals", key="customer") as replica:
        with pytest.raises(ConfigError, match="nobody says what columns"):
            replica.migrate()
    with pytest.raises(FeedError, match="geometry"):
        Replica(target, "totals", feed="totals", columns={"place": "geometry"})
    with pytest.raises(ConfigError, match="table name"):
        Replica(target, "to-tals", feed="totals")
    with pytest.raises(ConfigError, match="expected source"):
        Replica(target, "totals", feed="totals", source=at(source))  # type: ignore[arg-type]
    with Replica(target, "totals", feed="none", source=source) as replica, pytest.raises(NotFound, match="no feed"):
        replica.migrate()
    source.feeds.create(TOTALS)
    with Replica(target, "totals", feed="totals", source=source) as replica:
        replica.migrate()
        with pytest.raises(FeedError, match="no message of a feed"):
            replica.apply(None, Event("Other", {}))
        strange = Event("feed.delta", {}, headers={"feed": "other", "feed-epoch": "e", "feed-n": "1"} | COUNTED)
        with pytest.raises(FeedError, match="follows 'totals'"):
            replica.apply(None, strange)
