"""A dump restored into another cluster: found out, refused, and repaired without losing an unread event."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from kit import one, restored, rows, until
from relaybox import AsyncMaintainer, AsyncOutbox, AsyncRelay, Event
from relaybox.brokers.lines.sink import JsonLinesSink
from relaybox.drivers import open_sync
from relaybox.errors import GroupError, StoreBusy
from relaybox.maintenance import repair
from relaybox.outbox.doctor import examine
from relaybox.store.names import Tables
from relaybox.store.outbox import open_store
from relaybox.store.topics import open_topic_store
from relaybox.testing.servers import PostgresServer, require
from topics.kit import World, happened, numbers

STOPPED = "UPDATE outbox_event_member SET expires_at = clock_timestamp()"


@pytest.fixture
def elsewhere() -> Iterator[PostgresServer]:
    require("postgres-system", durable=False)  # skips, or fails under CI, where there is none
    with PostgresServer.from_system(durable=False) as server:
        yield server


@pytest.mark.parametrize("tracking", ["offset", "bitmap"])
@pytest.mark.parametrize("younger", [True, False], ids=["higher numbers there", "lower numbers there"])
def test_nothing_unread_is_lost(elsewhere: PostgresServer, tracking: str, younger: bool) -> None:
    here = require("postgres-system", durable=False)
    if younger:
        with psycopg.connect(elsewhere.url(), autocommit=True) as other:
            for _ in range(3000):
                other.execute("SELECT pg_current_xact_id()")
    with World(here.create_database(), options={"tracking": tracking}) as old:
        done, half, idle = old.group("done"), old.group("half"), old.group("idle")
        with psycopg.connect(old.url) as late:  # commits after the first ticks
            (late_seq,) = old.write(happened(0), on=late)
            first = old.write_many(300, keys=20)
            members = {group.name: old.member(group) for group in (done, half)}
            assert len(old.drain(done, members["done"])) == 300
            taken = old.take(half, members["half"], events=20, ranges=6)
            old.finish(half, taken)
            had = set(numbers(taken.pages))
            old.take(half, members["half"], events=20, ranges=3)  # taken, and lost with the process
            late.commit()
        second = old.write_many(50, keys=20)
        rows(old.url, STOPPED)
        everything = {late_seq, *first, *second}
        url = restored(old.url, elsewhere)
    assert tell(url) == ["critical"]

    with World.__new__(World) as new:
        new.url, new.now, new.options = url, None, {}
        new.db, new.store = open_sync(url), open_topic_store("postgres", Tables())
        topic = new.run(new.store.topic("t"))
        assert topic is not None
        new.topic = topic
        third = new.write_many(30, keys=20)  # written before anybody noticed
        assert repair(new.db, new.store) == 381
        assert repair(new.db, new.store) == 0
        assert tell(url) == ["ok"]
        groups = {group.name: group for group in new.run(new.store.groups("t"))}
        got = {name: new.drain(group, new.member(group, "new")) for name, group in groups.items()}
        assert set(got["idle"]) == everything | set(third)
        assert set(got["half"]) >= (everything | set(third)) - had
        assert set(got["done"]) >= {late_seq, *second, *third}
        assert all(len(seqs) == len(set(seqs)) for seqs in got.values())
        fourth = new.write_many(10, keys=20)
        assert all(set(new.drain(group, new.member(group, "newer"))) == set(fourth) for group in groups.values())
    assert idle.name in got


async def test_who_would_read_is_refused_until_it_is_repaired(
    elsewhere: PostgresServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Numbers are lower there: new events would look as if everybody had read them."""
    here = require("postgres-system", durable=False)
    with psycopg.connect(here.url(), autocommit=True) as other:
        for _ in range(3000):
            other.execute("SELECT pg_current_xact_id()")
    with World(here.create_database()) as old:
        group = old.group("g")
        old.write_many(10)
        assert len(old.drain(group, old.member(group))) == 10
        rows(old.url, STOPPED)
        url = restored(old.url, elsewhere)
    seen: list[int] = []

    async def note(event: Event) -> None:
        seen.append(event.payload["n"])

    refused = pytest.raises(GroupError, match=r"comes from cluster \d+, this is \d+.*`relaybox doctor --repair`")
    async with AsyncOutbox(url) as box:
        async with box.transaction() as tx:
            await box.write(tx, Event("Happened", {"n": 11}, topic="t"))  # writing goes on
        group = box.topics.group("t", "g")
        with refused:
            await group.deliver(note).start()
        with refused:
            await group.consumer().poll()
        with refused:
            await group.lag()
        with refused:
            async with AsyncRelay(
                AsyncOutbox(url).topics.group("t", "g"), JsonLinesSink(path=tmp_path / "out"), to="out"
            ):
                pass
        with closing(open_sync(url)) as db:
            assert repair(db, open_topic_store("postgres", Tables())) == 11
        pushed = await group.deliver(note).start()
        await pushed.drain()
        assert 11 in seen
        rows(url, "UPDATE outbox_event_incarnation SET system_identifier = 1")  # carried away while it runs
        await until(lambda: "comes from cluster 1," in caplog.text)


def tell(url: str) -> list[str]:
    database = open_sync(url)
    try:
        found = examine(database, open_store("postgres", Tables()))
    finally:
        database.close()
    return [finding.level for finding in found if finding.check == "incarnation"]


async def test_a_maintainer_touches_nothing_until_it_is_repaired() -> None:
    with World() as world:
        world.write_many(10)
        rows(world.url, "UPDATE outbox_event_incarnation SET system_identifier = 1")
        maintainer = AsyncMaintainer(world.url)
        await maintainer.once()
        assert not maintainer.report.leading
        assert one(world.url, "SELECT name FROM outbox_event_alert") == "foreign_cluster"
        assert one(world.url, "SELECT max(tick) FROM outbox_event_tick") == 0
        group = world.group()
        member = world.member(group)
        with pytest.raises(StoreBusy, match="1 consumer"):
            repair(world.db, world.store)
        world.run(world.store.leave(member, None))
        assert repair(world.db, world.store) == 10
        maintainer = AsyncMaintainer(world.url)
        await maintainer.once()
        assert maintainer.report.leading
        assert one(world.url, "SELECT count(*) FROM outbox_event_alert WHERE name = 'foreign_cluster'") == 0


def test_what_broke_off_is_finished_by_the_next_repair() -> None:
    """Places are remembered before anything is stamped, and found again."""
    with World() as world:
        group = world.group()
        first = world.write_many(100, keys=10)
        world.drain(group, world.member(group))
        rows(world.url, STOPPED)
        second = world.write_many(100, keys=10)
        rows(world.url, "UPDATE outbox_event_incarnation SET system_identifier = 1")
        for shard in range(4):
            world.run(world.store.place_again(world.topic, shard))
        world.run(world.store.stamp(world.topic, 0, 0, 5))
        repair(world.db, world.store)
        got = world.drain(group, world.member(group, "again"))
        assert set(got) >= set(second)
        assert not set(got) & set(first), "it had these, and no transaction was open in between"
