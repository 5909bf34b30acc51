"""A replica by way of a broker: messages of single rows, by an inbox of its database, in whatever order they come."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pymysql
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replica_kit import TARGETS, TOTALS, TYPES, changes, expected, kept, make_source

from kit import make_database, one
from relaybox import Event, Inbox, Listeners, Outbox, Replica, StartFrom
from relaybox.drivers.mysql_session import options
from relaybox.errors import FeedError

BEGAN = datetime(2020, 1, 1, tzinfo=UTC)
State = Mapping[int, str]  # a customer's total


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return make_database(request.param, tmp_path, migrated=False)


@pytest.fixture
def source() -> Iterator[Outbox]:
    with make_source() as box:
        yield box


def following(target: str, **options: Any) -> Replica:
    return Replica(target, "totals", feed="totals", key="customer", columns={**TYPES}, **options)


def row(customer: int, total: str) -> str:
    return f'{{"customer":{customer},"n":1,"total":{total}}}'


def message(
    number: int, op: str, n: int, before: str = "null", after: str = "null", *, epoch: str = "e1", snapshot: int = 0
) -> Event:
    """As `relaybox relay --feed totals --rows` sends it."""
    body = (
        f'{{"op":"{op}","before":{before},"after":{after},"feed":"totals","epoch":"{epoch}","n":{n},"refresh_id":"x"}}'
    )
    headers = {"feed": "totals", "feed-epoch": epoch, "feed-n": str(n), "feed-op": op}
    headers |= {"feed-rows": str(snapshot)} if op == "r" else {}
    customer = json.loads(body)["after" if op != "d" else "before"]["customer"]
    made = {"key": f'{{"customer":{customer}}}', "id": f"{epoch}-{n}-{number}", "headers": headers}
    later = timedelta(days=int(epoch.removeprefix("e")), seconds=n)
    return Event("feed.row", payload_json=body, occurred_at=BEGAN + later, **made)


def between(n: int, old: State, new: State, epoch: str = "e1") -> list[Event]:
    """A delta, as messages."""
    found = []
    for customer in sorted({*old, *new}):
        if old.get(customer) == new.get(customer):
            continue
        before = row(customer, old[customer]) if customer in old else "null"
        after = row(customer, new[customer]) if customer in new else "null"
        op = "c" if before == "null" else "d" if after == "null" else "u"
        found.append(message(len(found) + 1, op, n, before, after, epoch=epoch))
    return found


def snapshot(n: int, state: State, epoch: str = "e1") -> list[Event]:
    return [
        message(number, "r", n, after=row(customer, total), epoch=epoch, snapshot=len(state))
        for number, (customer, total) in enumerate(state.items(), 1)
    ]


def table(state: State) -> list[tuple[Any, ...]]:
    return [(customer, 1, Decimal(total).normalize()) for customer, total in sorted(state.items())]


@pytest.mark.parametrize("batch", [1, 5])
def test_through_an_inbox(target: str, batch: int) -> None:
    """Rows and the mark of their message in one transaction; a message that comes twice is dropped."""
    states: list[State] = [{}, {1: "1.10", 2: "2"}, {1: "1.20", 3: "3"}, {1: "1.20", 3: "4", 2: "5"}]
    sent = [event for n, (old, new) in enumerate(pairwise(states), 1) for event in between(n, old, new)]
    handlers: Listeners[Any] = Listeners()
    with Inbox(target, "orders") as inbox, following(target) as replica:
        inbox.migrate()
        replica.migrate()

        @handlers.on("feed.row")
        def mirror(event: Event, tx: Any) -> None:
            replica.apply(tx, event)

        inbox.accept_all(None, [*sent, *sent[:3]], sender="shop")
        counts = inbox.process(handlers, batch=batch).once()
        assert (counts.done, counts.dead) == (len(sent), 0)
        assert kept(target) == table(states[-1])
        assert replica.status().by_rows
        assert (replica.status().n, replica.status().behind) == (0, None)


def test_a_snapshot_takes_away_what_it_does_not_have(target: str) -> None:
    state, after = {1: "1", 3: "3"}, {1: "1", 3: "9", 4: "4"}
    whole, later = snapshot(5, state), between(6, state, after)
    with following(target) as replica:
        replica.migrate()
        for event in between(1, {}, {1: "0", 2: "2"}):
            assert replica.apply(None, event)
        assert replica.apply(None, whole[0])
        assert not replica.apply(None, whole[0])
        assert kept(target) == table({1: "1", 2: "2"})  # not before all of it is here
        assert replica.apply(None, later[0])
        assert not replica.apply(None, whole[1])  # an older version of that row, and the last of the snapshot
        assert kept(target) == table({1: "1", 3: "9"})
        assert replica.status().n == 5
        for late in (*between(1, {}, {1: "0", 2: "2"}), *whole):
            assert not replica.apply(None, late)
        assert replica.apply(None, later[1])
        assert kept(target) == table(after)
        assert one(target, "SELECT count(*) FROM totals_replica") == 2


def tombstone(gone: Event) -> Event:
    return Event("feed.row", payload_bytes=b"", key=gone.key, headers=gone.headers, occurred_at=gone.occurred_at)


def test_a_tombstone_behind_its_row_says_nothing_new(target: str) -> None:
    gone = between(2, {1: "1"}, {})[0]
    with following(target) as replica:
        replica.migrate()
        assert replica.apply(None, between(1, {}, {1: "1"})[0])
        assert replica.apply(None, gone)
        assert not replica.apply(None, tombstone(gone))
        assert kept(target) == []


def test_a_tombstone_takes_its_row_along(target: str) -> None:
    """The broker's cleaner takes the message before it, long before the tombstone itself."""
    with following(target) as replica:
        replica.migrate()
        for event in between(1, {}, {1: "1", 2: "2"}):
            assert replica.apply(None, event)
        gone = between(2, {1: "1", 2: "2"}, {2: "2"})[0]
        assert replica.apply(None, tombstone(gone))
        assert not replica.apply(None, gone)
        assert kept(target) == table({2: "2"})
        assert not replica.apply(None, between(1, {}, {1: "1"})[0])  # older than that
        back = between(3, {2: "2"}, {1: "3", 2: "2"})[0]
        assert replica.apply(None, back)
        assert not replica.apply(None, tombstone(gone))
        assert kept(target) == table({1: "3", 2: "2"})


def test_a_key_has_one_spelling(target: str) -> None:
    """Also where no type but text has every number exactly."""

    def said(op: str, n: int, before: str, after: str, key: str) -> Event:
        body = f'{{"op":"{op}","before":{before},"after":{after},"feed":"prices","epoch":"e1","n":{n}}}'
        headers = {"feed": "prices", "feed-epoch": "e1", "feed-n": str(n), "feed-op": op}
        return Event("feed.row", payload_json=body, key=f'{{"price":{key}}}', occurred_at=BEGAN, headers=headers)

    columns = {"price": "numeric", "n": "integer"}
    with Replica(target, "prices", feed="prices", key="price", columns=columns) as replica:
        replica.migrate()
        assert replica.apply(None, said("c", 1, "null", '{"price":1.10,"n":1}', "1.1"))
        assert replica.apply(None, said("u", 2, '{"price":1.10,"n":1}', '{"price":1.100,"n":2}', "1.1"))
        assert one(target, "SELECT count(*) FROM prices") == 1
        assert one(target, "SELECT n FROM prices") == 2
        assert replica.apply(None, tombstone(said("d", 3, '{"price":1.1,"n":2}', "null", "1.1")))
        assert one(target, "SELECT count(*) FROM prices") == 0


# What somebody else may have sent: headers, and what they become.
FORGED = (
    {"feed-n": "99999999999999999999"},
    {"feed-n": "-1"},
    {"feed-n": "1_0"},
    {"feed-n": "\u0661"},
    {"feed-epoch": ""},
    {"feed-epoch": "e" * 65},
    {"feed-op": "x"},
    {"feed-rows": "-1"},
)


@pytest.mark.parametrize("headers", FORGED, ids=repr)
def test_a_message_that_no_relay_has_sent(target: str, headers: dict[str, str]) -> None:
    """It hurts nobody else."""
    (made,) = between(1, {}, {1: "1"})
    forged = Event("feed.row", payload_bytes=made.body, key=made.key, headers={**made.headers, **headers})
    with following(target) as replica:
        replica.migrate()
        with pytest.raises(FeedError, match="is no message of a feed") as refused:
            replica.apply(None, forged)
        assert refused.value.reason == "message"
        assert replica.apply(None, made)
        assert kept(target) == table({1: "1"})


def test_an_epoch_of_the_future(target: str) -> None:
    """All true messages would be older than that, and say nothing new."""
    (made,) = between(1, {}, {1: "1"})
    future = {"occurred_at": datetime.now(UTC) + timedelta(days=3)}
    with following(target) as replica:
        replica.migrate()
        for forged in (
            Event("feed.row", payload_bytes=made.body, headers={**made.headers, "feed-epoch": "x"}, **future),
            Event("feed.delta", payload_bytes=b"{}", headers={**delta(1, {}, {}, "e1").headers}, **future),
        ):
            with pytest.raises(FeedError, match="in the future"):
                replica.apply(None, forged)
        assert replica.apply(None, made)
        assert kept(target) == table({1: "1"})


def test_rows_of_another_epoch(target: str) -> None:
    """The feed was made anew. What only the old one had stays until a snapshot is whole."""
    with following(target) as replica:
        replica.migrate()
        for event in between(1, {}, {1: "1", 2: "2"}):
            replica.apply(None, event)
        for event in between(1, {}, {2: "7", 3: "3"}, epoch="e2"):
            assert replica.apply(None, event)
        late = between(2, {1: "1", 2: "2"}, {1: "5", 2: "6"})
        assert not any(replica.apply(None, event) for event in late)
        assert kept(target) == table({1: "1", 2: "7", 3: "3"})
        for event in snapshot(2, {2: "7", 3: "3"}, epoch="e2"):
            replica.apply(None, event)
        assert kept(target) == table({2: "7", 3: "3"})


def test_from_rows_to_the_source_and_to_deltas(source: Outbox, target: str) -> None:
    source.feeds.create(TOTALS)
    group = source.topics.group("totals", "mirror", start=StartFrom.earliest())
    group.create()
    source.feeds.refresh(None, "totals")
    with following(target) as by_message, following(target, source=source) as by_source:
        by_message.migrate()
        by_message.apply(None, between(1, {}, {5000: "1"}, epoch="e1")[0])
        with group.consumer() as consumer, consumer.poll() as batch:
            with pytest.raises(FeedError, match="of another epoch"):
                by_message.apply(None, _later(batch[0], 2))
        by_source.migrate()
        by_source.follow().once()
        assert kept(target) == expected(source)
        assert one(target, "SELECT count(*) FROM totals_replica") == 0
        changes(source, "DELETE FROM orders WHERE customer = 4")
        with group.consumer() as consumer, consumer.poll() as batch:
            assert [by_message.apply(None, event) for event in batch] == [True]
        assert kept(target) == expected(source)


def test_rows_and_deltas_are_not_mixed(target: str) -> None:
    """A snapshot may be older than some of the rows."""
    with following(target) as replica:
        replica.migrate()
        assert replica.apply(None, between(3, {}, {1: "1"})[0])
        for late in (delta(2, {}, {2: "2"}, "e1", whole=True), delta(1, {}, {2: "2"}, "e1")):
            with pytest.raises(FeedError, match="one or the other"):
                replica.apply(None, late)
        assert replica.apply(None, delta(1, {}, {2: "2"}, "e2"))
        assert kept(target) == table({2: "2"})
        assert not replica.status().by_rows


def test_a_transaction_that_sees_a_moment_before(tmp_path: Path) -> None:
    """REPEATABLE READ of MySQL would show it a version of the row that is another by now."""
    target = make_database("mysql", tmp_path, migrated=False)
    first, second, third = (between(n, {1: str(n - 1)}, {1: str(n)})[0] for n in (1, 2, 3))
    with following(target) as replica, closing(pymysql.connect(**options(target))) as session:
        replica.migrate()
        assert replica.apply(None, first)
        session.begin()
        with session.cursor() as cursor:
            cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES'")
            cursor.execute("SELECT count(*) FROM totals")
            assert replica.apply(None, third)
            assert not replica.apply(session, second)
        session.commit()
        assert kept(target) == table({1: "3"})


def _later(event: Event, n: int) -> Event:
    headers = {**event.headers, "feed-n": str(n)}
    return Event("feed.delta", payload_bytes=event.body, headers=headers, occurred_at=event.occurred_at)


# -- in any order ---------------------------------------------------------------------------------------------

STATES = st.dictionaries(st.integers(1, 4), st.sampled_from(["1", "2.50"]), max_size=4)


LIVES = given(
    states=st.lists(STATES, min_size=2, max_size=7), whole=st.integers(0, 6), seed=st.randoms(use_true_random=False)
)


def life(states: Sequence[State], whole: int) -> list[Event]:
    """What a relay sends; there is a snapshot behind the state of the number `whole`."""
    sent, n, old = list[Event](), 0, dict[int, str]()
    for number, new in enumerate(states):
        n += 1
        for event in between(n, old, new):
            sent += [event, tombstone(event)] if event.headers["feed-op"] == "d" else [event]
        old = dict(new)
        if number == whole and new:
            n += 1
            sent += snapshot(n, new)
    return sent


@settings(max_examples=60, deadline=None)
@LIVES
def test_rows_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, states: Sequence[State], whole: int, seed: random.Random
) -> None:
    """Late, twice, mixed with a snapshot: the newest version of each row is what stays."""
    target = f"sqlite:///{tmp_path_factory.mktemp('rows') / 'flow.db'}"
    sent = life(states, whole)
    sent += seed.sample(sent, len(sent) // 2)
    seed.shuffle(sent)
    with following(target) as replica:
        replica.migrate()
        for event in sent:
            replica.apply(None, event)
        assert kept(target) == table(states[-1])


@settings(max_examples=60, deadline=None)
@LIVES
def test_rows_of_a_topic_that_is_compacted(
    tmp_path_factory: pytest.TempPathFactory, states: Sequence[State], whole: int, seed: random.Random
) -> None:
    """Some are read at once, and of the others what the broker's cleaner leaves: the last message of each key."""
    target = f"sqlite:///{tmp_path_factory.mktemp('rows') / 'flow.db'}"
    sent = life(states, whole)
    last = {event.key: number for number, event in enumerate(sent)}
    some = seed.randint(0, len(sent))
    left = [sent[number] for number in last.values() if number >= some]
    seed.shuffle(left)
    with following(target) as replica:
        replica.migrate()
        for event in [*sent[:some], *left]:
            replica.apply(None, event)
        assert kept(target) == table(states[-1])


def delta(n: int, old: State, new: State, epoch: str, *, whole: bool = False) -> Event:
    inserted = [row(key, total) for key, total in new.items() if whole or old.get(key) != total]
    deleted = [] if whole else [row(key, total) for key, total in old.items() if new.get(key) != total]
    counts = {"feed-inserted": str(len(inserted)), "feed-deleted": str(len(deleted)), "feed-claim-check": "false"}
    headers = {"feed": "totals", "feed-epoch": epoch, "feed-n": str(n), "feed-snapshot": str(whole).lower(), **counts}
    body = f'{{"v":1,"inserted":[{",".join(inserted)}],"deleted":[{",".join(deleted)}]}}'
    later = timedelta(days=int(epoch.removeprefix("e")), seconds=n)
    return Event("feed.delta", payload_json=body, headers=headers, occurred_at=BEGAN + later)


EPOCHS = st.lists(
    st.lists(st.tuples(STATES, st.booleans()), min_size=1, max_size=5), min_size=1, max_size=3
)  # of each delta the table, and whether it is a snapshot


@settings(max_examples=80, deadline=None)
@given(epochs=EPOCHS, data=st.data())
def test_a_position_applies_skips_or_asks(
    tmp_path_factory: pytest.TempPathFactory, epochs: Sequence[Sequence[tuple[State, bool]]], data: st.DataObject
) -> None:
    """A model of the place of a table: whatever comes, the table is that of a delta, and never an older one."""
    target = f"sqlite:///{tmp_path_factory.mktemp('deltas') / 'flow.db'}"
    written: list[tuple[int, int, State, bool, Event]] = []
    for epoch, deltas in enumerate(epochs, 1):
        old: State = {}
        for n, (state, whole) in enumerate(deltas, 1):
            new = old if whole else state
            written.append((epoch, n, new, whole, delta(n, old, new, f"e{epoch}", whole=whole)))
            old = new
    came = data.draw(st.lists(st.sampled_from(range(len(written))), max_size=15))
    at_epoch, at_n, there = 0, 0, dict[int, str]()
    with following(target) as replica:
        replica.migrate()
        for number in came:
            epoch, n, new, whole, event = written[number]
            if epoch < at_epoch or (epoch == at_epoch and n <= at_n):
                assert not replica.apply(None, event)
            elif whole or n == 1 or (epoch == at_epoch and n == at_n + 1):
                assert replica.apply(None, event)
                at_epoch, at_n, there = epoch, n, dict(new)
            else:
                with pytest.raises(FeedError) as gap:
                    replica.apply(None, event)
                assert gap.value.reason == "gap"
            assert kept(target) == table(there)
            assert replica.status().n == at_n
