"""Fair claims: whatever one tenant has waiting, the next event of another waits for a round at most. And a claim is as
full as any other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from kit import Probe, rows, until
from relaybox import AsyncOutbox, Event, Outbox, Settings
from relaybox.drivers.postgres_sessions import OUR_SESSIONS
from relaybox.errors import ConfigError, SchemaMissing
from relaybox.ids import new_token
from relaybox.store.claims import Claim, Death, HeldRow, RetryRow
from relaybox.store.outbox.fair import TenantRound
from relaybox.store.outbox.postgres import PostgresStore
from relaybox.store.outbox.values import ClaimedRow, Settlement
from relaybox.types import DeliverySettings

from .test_plan import buffers, explain, nodes

FAIR = Settings(delivery=DeliverySettings(fair="tenant", instance_ttl="1s", lease="5s"))
OTHERS = [f"t{n:02}" for n in range(99)]
LOTS = 20_000
LATER = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def box(url: str) -> Iterator[Outbox]:
    with closing(Outbox(url)) as made:
        made.migrate(fair="tenant")
        yield made


def write(box: Outbox, tenants: Sequence[str | None], at_once: int = 100) -> None:
    """Few at a time, so that none of them is a batch."""
    with box.transaction() as tx:
        for start in range(0, len(tenants), at_once):
            box.write_all(tx, [Event("Happened", {}, tenant=name) for name in tenants[start : start + at_once]])


def claim(box: Outbox, limit: int, at: TenantRound | None = None) -> list[ClaimedRow]:
    """By a process of its own, unless it is given the place of one."""
    mine = Claim(1, new_token(), timedelta(seconds=30))
    return box._db.run(box.store.claim_fair(mine, limit, at or TenantRound(), None))


def by_tenant(claimed: Sequence[ClaimedRow]) -> Counter[str]:
    return Counter(one.row[5] or "" for one in claimed)


# -- claims ------------------------------------------------------------------------------------------


def test_a_claim_takes_from_all_and_is_full(box: Outbox) -> None:
    write(box, ["big"] * 1_000 + ["a", "b", "c"] * 3 + [None] * 2)
    claimed = claim(box, 100)
    assert by_tenant(claimed) == {"big": 89, "a": 3, "b": 3, "c": 3, "": 2}
    assert len({one.row[0] for one in claimed}) == 100
    assert {one.attempts for one in claimed} == {1}
    assert by_tenant(claim(box, 100)) == {"big": 100}


def test_nobody_waits_for_more_than_a_round(box: Outbox) -> None:
    """More tenants than a claim has room for: the next begins where this one ended."""
    write(box, ["big"] * 500 + OTHERS[:30] * 5)
    at, seen = TenantRound(), Counter[str]()
    for _ in range(31):
        seen += by_tenant(claim(box, 8, at))
    assert len(seen) == 31, seen
    assert seen["big"] < 150


def test_what_is_not_due_takes_nobodys_place(box: Outbox) -> None:
    with box.transaction() as tx:
        box.write_all(tx, [Event("Later", {}, tenant=name, deliver_at=LATER) for name in OTHERS])
    write(box, ["z"] * 20 + ["a"] * 5)
    at = TenantRound()
    assert by_tenant(claim(box, 10, at)) + by_tenant(claim(box, 15, at)) == {"a": 5, "z": 20}
    assert not claim(box, 10, at)


def test_two_claimers_share_the_tenants(box: Outbox) -> None:
    write(box, ["big"] * 100 + ["a", "b"] * 20)
    found = [claim(box, 40) for _ in range(4)]
    numbers = [one.row[0] for claimed in found for one in claimed]
    assert len(numbers) == len(set(numbers)) == 140
    assert all(by_tenant(claimed)["a"] for claimed in found[:2])


def test_whatever_comes_back_is_still_its_tenants(box: Outbox, url: str) -> None:
    """A failure, a release, a lost claim, a replay, of dead letters and of finished events."""
    write(box, ["a"] * 6)
    store, db = box.store, box._db
    claimed = claim(box, 6)
    held = [one.row[0] for one in claimed]
    tokens = _tokens(box, url)
    db.run(
        store.settle(
            Settlement(
                done=[HeldRow(held[0], tokens[held[0]])],
                retry=[RetryRow(held[1], tokens[held[1]], timedelta(0), "no")],
                dead=[Death(held[2], tokens[held[2]], "no")],
            ),
            None,
        )
    )
    db.run(store.release([HeldRow(held[3], tokens[held[3]])], None))
    db.run(store.abandon([Claim(1, tokens[held[4]], timedelta(0))], None))
    assert box.events.replay([str(one.row[1]) for one in claimed[:1]]) == 1
    assert box.dead.replay([str(claimed[2].row[1])]) == 1
    assert {row[0] for row in rows(url, "SELECT tenant FROM outbox_event_pending")} == {"a"}
    assert by_tenant(claim(box, 10)) == {"a": 6}


def _tokens(box: Outbox, url: str) -> dict[int, int]:
    if box.store.dialect != "postgres":
        return dict(rows(url, "SELECT seq, token FROM outbox_event_pending"))
    return dict(rows(url, "SELECT item / 65536, token FROM outbox_event_claim, unnest(items) AS item"))


# -- batches (PostgreSQL) -------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["postgres"])
def test_batches_take_turns_too(box: Outbox, url: str) -> None:
    write(box, ["big"] * 3_000, at_once=3_000)
    write(box, ["other"] * 250, at_once=250)
    write(box, ["small"] * 10)
    assert sorted(rows(url, "SELECT DISTINCT tenant FROM outbox_event_claim")) == [("big",), ("other",)]
    first = by_tenant(claim(box, 300))
    assert first["small"] == 10
    assert first["other"] >= 100
    assert sum(first.values()) == 300
    total = first
    while claimed := claim(box, 300):
        total += by_tenant(claimed)
    assert total == {"big": 3_000, "other": 250, "small": 10}


@pytest.mark.parametrize("engine", ["postgres"])
def test_batches_of_several_tenants_are_taken_apart(box: Outbox, url: str) -> None:
    write(box, ["big", "a"] * 2_000, at_once=4_000)
    write(box, ["b", "c"] * 150, at_once=300)
    assert {row[0] for row in rows(url, "SELECT tenant FROM outbox_event_claim")} == {None}
    at, seen = TenantRound(), Counter[str]()
    for _ in range(8):
        seen += by_tenant(claim(box, 100, at))
    assert min(seen[name] for name in ("a", "b", "c", "big")) >= 50
    while claimed := claim(box, 500, at):
        seen += by_tenant(claimed)
    assert seen == {"big": 2_000, "a": 2_000, "b": 150, "c": 150}


@pytest.mark.parametrize("engine", ["postgres"])
def test_a_claim_reads_what_it_takes(box: Outbox, url: str) -> None:
    """However much waits, and however many tenants there are: no scan, and a bounded number of pages."""
    store = PostgresStore()
    pages: list[int] = []
    for much in (2_000, 40_000):
        write(box, (["big"] * 20 + OTHERS[:20]) * (much // 40), at_once=150)
        with psycopg.connect(url, autocommit=True) as connection:
            for setting, value in OUR_SESSIONS.items():
                connection.execute(f"SET {setting} = '{value}'")
            connection.execute("VACUUM ANALYZE outbox_event, outbox_event_pending, outbox_event_claim")
            pages.append(sum(buffers(plan) for plan in _plans(connection, store)))
            for plan in _plans(connection, store):
                for node in nodes(plan["Plan"]):
                    if node.get("Relation Name") in ("outbox_event", "outbox_event_pending"):
                        assert node["Node Type"] in ("Index Scan", "Index Only Scan", "Tid Scan", "ModifyTable"), node
    assert pages[1] <= pages[0] + 300, pages


def _plans(connection: psycopg.Connection[Any], store: PostgresStore) -> list[dict[str, Any]]:
    mine = Claim(1, new_token(), timedelta(seconds=30))
    return [explain(connection, store.claim_fair(mine, 50, TenantRound(), None))]


@pytest.mark.parametrize("engine", ["postgres"])
def test_a_claim_keeps_its_limit_under_any_plan(box: Outbox, url: str) -> None:
    write(box, ["a", "b", "c"] * 60)
    write(box, ["d"] * 300, at_once=300)
    store = PostgresStore()
    with psycopg.connect(url, autocommit=True) as connection:
        for off in ("hashjoin", "mergejoin", "nestloop", "sort", "material", "hashagg", "indexscan", "bitmapscan"):
            connection.execute(f"SET enable_{off} = off")
            with connection.transaction(force_rollback=True):
                op = store.claim_fair(Claim(1, 1, timedelta(seconds=9)), 14, TenantRound(), None)
                text, params = next(op).positional("format")
                *found, last = connection.execute(text, params).fetchall()  # type: ignore[call-overload]
                assert Counter(row[5] for row in found) == {"a": 4, "b": 4, "c": 3, "d": 3}, off
                assert last[:3] == (14, "d", None)


# -- delivery ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Outbox, AsyncOutbox])
async def test_a_tenant_with_much_waiting_delays_nobody(url: str, probe: Probe, kind: Any) -> None:
    with closing(Outbox(url)) as writer:
        writer.migrate(fair="tenant")
        write(writer, ["big"] * LOTS, at_once=5_000)
        write(writer, [name for name in OTHERS for _ in range(10)])
    order: list[str] = []

    async def listen(event: Event) -> None:
        order.append(event.tenant or "")

    box = kind(url, settings=FAIR)
    service = box.deliver(listen)
    await _maybe(service.start, kind)
    try:
        await until(lambda: len(order) - order.count("big") == 990, "the others are served")
        last = max(place for place, name in enumerate(order) if name != "big")
        assert order[:last].count("big") < 5_000, "the others waited for it"
    finally:
        await _maybe(box.close, kind)


async def _maybe(call: Any, kind: Any) -> None:
    await (call() if kind is AsyncOutbox else asyncio.to_thread(call))


def test_fair_claims_need_their_index(url: str) -> None:
    with closing(Outbox(url)) as box:
        assert [one.name for one in box.migrate(dry_run=True, fair="tenant")][:1] == ["outbox_event_pending_tenant"]
        service = box.deliver(print, fair="tenant")
        with pytest.raises(SchemaMissing, match="relaybox migrate --fair tenant"):
            service.start()
        box.migrate(fair="tenant")
        assert not box.migrate(fair="tenant")
    with closing(Outbox(url, settings=FAIR)) as box:
        box.verify()
        with box.deliver(print, fair="tenant"):
            pass


def test_the_settings_ask_for_the_index_too(url: str) -> None:
    with closing(Outbox(url, settings=FAIR)) as box:
        with pytest.raises(SchemaMissing, match="outbox_event_pending_tenant"):
            box.verify()
        assert "outbox_event_pending_tenant" in {one.name for one in box.migrate()}
        box.verify()


@pytest.mark.parametrize("engine", ["sqlite"])
def test_it_does_not_go_with_order(url: str) -> None:
    with closing(Outbox(url)) as box, pytest.raises(ConfigError, match=r"fair='tenant' .* or ordered"):
        box.deliver(print, ordered=True, fair="tenant")
    with closing(Outbox(url, settings=FAIR)) as box:
        with pytest.raises(ConfigError, match=r"fair='tenant' .* or ordered"):
            box.deliver(print, ordered=True)
        box.deliver(print, ordered=True, fair="off")
        with pytest.raises(ConfigError, match=r"delivery\.fair"):
            box.deliver(print, fair="always")  # type: ignore[arg-type]


def test_a_writer_of_its_own_need_not_know_of_it(box: Outbox) -> None:
    """What it puts into the table without a tenant is nobody's, and comes."""
    write(box, ["a", "b"])
    now = {"postgres": "now()", "sqlite": "1000000", "mysql": "utc_timestamp(6)"}[box.store.dialect]
    with box.transaction() as tx:
        cursor = tx.connection.cursor()
        cursor.execute(
            "INSERT INTO outbox_event (seq, event_id, event_type, payload, occurred_at, created_at) "
            f"VALUES (900, 'x', 'T', '', {now}, {now})"
        )
        cursor.execute(f"INSERT INTO outbox_event_pending (seq, due, key_hash, attempts) VALUES (900, {now}, 1, 0)")
    assert by_tenant(claim(box, 2)) + by_tenant(claim(box, 2)) == {"a": 1, "b": 1, "": 1}
