"""The schema: made once however many try, compared with what it should be, under any allowed name."""

from __future__ import annotations

import asyncio

import pytest

from relaybox.drivers.pool import AsyncDatabase
from relaybox.errors import ConfigError, SchemaDrift, SchemaMissing, SchemaTooNew
from relaybox.event import Event
from relaybox.op import Op
from relaybox.store.names import Tables
from relaybox.store.outbox.values import Settlement

from .harness import LEASE, T0, Harness, some_events

BAD_NAMES = (
    "",
    "a b",
    "1a",
    'x"; DROP TABLE users; --',
    "x`; --",
    "x'",
    "public.x",
    "é",
    "x\n",
    "x\x00",
    "%s",
    ":now",
    "{event}",
    "a" * 49,
)


class SchemaContract(Harness):
    async def test_migrating_again_does_nothing(self) -> None:
        assert await self.run(self.store.migrate()) == []
        assert await self.run(self.store.plan()) == []
        await self.run(self.store.verify_schema())
        assert await self.run(self.store.drift()) == []
        done = await self.run(self.store.applied())
        assert [m.version for m in done] == [m.version for m in self.store.migrations()]
        assert all(m.applied_at is not None and m.applied_at.tzinfo is not None for m in done)

    async def test_before_migrating_the_plan_is_everything(self) -> None:
        self.store = self.fresh_store()
        assert await self.run(self.store.applied()) == []
        assert await self.run(self.store.plan()) == self.store.migrations()
        with pytest.raises(SchemaMissing):
            await self.run(self.store.verify_schema())
        assert await self.run(self.store.drift())

    async def test_of_many_that_migrate_at_once_one_does(self) -> None:
        self.store = self.fresh_store()
        runners = [self.db, self.another(), self.another(), self.another()]
        done = await asyncio.gather(*(db.persist(self.store.migrate) for db in runners))
        assert sorted(map(len, done)) == [0, 0, 0, len(self.store.migrations())]
        assert await self.run(self.store.drift()) == []

    async def test_a_dropped_column_is_reported(self) -> None:
        await self.run(
            self.raw(f"DROP VIEW {self.named('status')}", f"ALTER TABLE {self.named('pending')} DROP COLUMN since")
        )
        [line] = await self.run(self.store.drift())
        assert line == f"{self.store.tables.part('pending')}.since is missing"

    async def test_a_dropped_constraint_is_reported(self) -> None:
        name = f"{self.store.tables.event}_limits"
        if self.store.dialect == "sqlite":
            pytest.skip("SQLite cannot drop one")
        await self.run(self.raw(f"ALTER TABLE {self.named('event')} DROP CONSTRAINT {name}"))
        assert await self.run(self.store.drift()) == [f"constraint {name} is missing"]

    async def test_a_dropped_index_is_reported(self) -> None:
        [name] = [name for name in self.store.expected_indexes() if name.endswith("due")]
        quoted = f"{self.store.quote}{name}{self.store.quote}"
        on = f" ON {self.named('pending')}" if self.store.dialect == "mysql" else ""
        await self.run(self.raw(f"DROP INDEX {quoted}{on}"))
        assert await self.run(self.store.drift()) == [f"index {name} is missing"]

    async def test_tables_of_a_newer_release_are_left_alone(self) -> None:
        def recorded() -> Op[None]:
            yield self.store.sql["schema.record"].bind(version=999, name="future", checksum="x")

        await self.run(recorded())
        for make in (self.store.plan, self.store.migrate, self.store.verify_schema):
            with pytest.raises(SchemaTooNew):
                await self.run(make())

    async def test_a_migration_applied_from_another_file_is_reported(self) -> None:
        await self.run(self.raw(f"UPDATE {self.named('migration')} SET checksum = 'x'"))
        with pytest.raises(SchemaDrift):
            await self.run(self.store.plan())

    @pytest.mark.parametrize("name", ["order", "MyOutbox", "_x", "a" * 48])
    async def test_any_allowed_name_works(self, name: str) -> None:
        self.store = self.make_store(Tables((name + self.fresh_store().tables.event)[-48:]))
        await self.run(self.store.migrate())
        assert await self.run(self.store.drift()) == []
        await self.write(Event("A", None))
        taken = await self.take()
        assert await self.run(self.store.settle(Settlement(done=taken.held), T0)) == 0

    async def test_a_reserved_word_is_just_a_name(self) -> None:
        self.store = self.make_store(Tables("select"))
        await self.run(self.store.migrate())
        assert await self.run(self.store.drift()) == []
        events = some_events(2)
        await self.write(*events)
        assert {event.id for event in events} <= set((await self.take()).ids)

    async def test_a_schema_of_its_own(self) -> None:
        if self.store.dialect != "postgres":
            pytest.skip("only PostgreSQL has schemas")
        tables = self.fresh_store("Relay").tables
        self.store = self.make_store(Tables("select", schema=tables.event))
        runners = [self.db, self.another(), self.another()]
        await asyncio.gather(*(db.persist(self.store.migrate) for db in runners))
        assert await self.run(self.store.drift()) == []
        await self.run(self.store.verify_schema())
        await self.write(*some_events(250), copy=await self.db.copies())
        assert len((await self.take()).rows) == 250

    async def test_two_outboxes_in_one_database_do_not_meet(self) -> None:
        other = self.fresh_store()
        await self.run(other.migrate())
        await self.write(Event("A", None, id="same"))
        await self.run(other.write([Event("B", None, id="same")], None, T0))
        assert [event.type for event in (await self.take()).events] == ["A"]

    def test_a_name_that_is_not_one_is_refused(self) -> None:
        for name in BAD_NAMES:
            with pytest.raises(ConfigError):
                self.make_store(Tables(name))
            with pytest.raises(ConfigError):
                self.make_store(Tables("fine", schema=name))

    async def test_a_notification_wakes_a_listener(self) -> None:
        if not self.store.capabilities.listen:
            pytest.skip("this engine has no notifications")
        database = self.db.database
        if not isinstance(database, AsyncDatabase) or database.listen is None:
            assert not await self.run(self.store.notify(T0))  # no instance is there to hear it
            return
        ready, woken = asyncio.Event(), asyncio.Event()
        listening = asyncio.ensure_future(database.listen(self.store.tables.channel, ready.set, woken.set))
        try:
            await asyncio.wait_for(ready.wait(), 10)
            assert not await self.run(self.store.notify(T0))
            await self.run(self.store.register("me", "multi", LEASE, T0))
            assert await self.run(self.store.notify(T0))
            await asyncio.wait_for(woken.wait(), 10)
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
