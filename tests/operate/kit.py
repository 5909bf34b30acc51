"""Products with events in every state, behind one face for both twins."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

from relaybox import AsyncInbox, AsyncOutbox, Event, Inbox, Outbox
from relaybox.drivers import open_sync
from relaybox.facts import Fact
from relaybox.store.claims import Claim, Death, HeldRow, RetryRow
from relaybox.store.inbox.claim import Arrived, Share
from relaybox.store.inbox.settle import Settling
from relaybox.store.outbox.values import Settlement

MINUTE = timedelta(minutes=1)


class Desk:
    """A product whose events the test brings into a state, and its operator."""

    engines: tuple[str, ...] = ("postgres", "sqlite", "mariadb")
    log = False  # what is done lies behind a place, and what waits before it

    def __init__(self, url: str, is_async: bool, **options: Any) -> None:
        self.url, self.is_async = url, is_async
        self.facts: list[Fact] = []
        self.box = self.opened(observers=[self.facts.append], **options)

    def opened(self, **options: Any) -> Any:
        raise NotImplementedError

    async def call(self, name: str, *args: Any, **options: Any) -> Any:
        method = self.box
        for part in name.split("."):
            method = getattr(method, part)
        if self.is_async:
            return await method(*args, **options)
        return await asyncio.to_thread(method, *args, **options)

    async def close(self) -> None:
        await self.call("close")

    # -- what the test brings about -------------------------------------------------------------------

    def write(self, *events: Event) -> None:
        raise NotImplementedError

    def kill(self, *events: Event, error: str = "ValueError: no", written: bool = False) -> None:
        raise NotImplementedError

    def kill_due(self) -> None:
        """Everything that may be claimed."""
        raise NotImplementedError

    def finish(self, *events: Event, written: bool = False) -> None:
        raise NotImplementedError

    def fail(self, *events: Event, error: str = "ValueError: no") -> None:
        """Tried once, and due again."""
        raise NotImplementedError

    def claim(self) -> list[str]:
        """Take what is due, and keep it."""
        raise NotImplementedError


class OutboxDesk(Desk):
    def opened(self, **options: Any) -> Any:
        return (AsyncOutbox if self.is_async else Outbox)(self.url, **options)

    def write(self, *events: Event) -> None:
        with closing(Outbox(self.url)) as box, box.transaction() as tx:
            box.write_all(tx, events)

    def _settle(self, events: Sequence[Event] | None, written: bool, make: Any) -> None:
        if not written:
            self.write(*(events or ()))
        store = self.box.store
        with closing(open_sync(self.url)) as db:
            owner = db.run(store.register("test", "multi", MINUTE, None))
            mine = []
            for token in range(7, 7_000):  # a claim may be smaller than was asked for
                rows = db.run(store.claim(Claim(owner, token, MINUTE), 10_000, None))
                mine += [
                    HeldRow(row.row[0], token) for row in rows if events is None or Event.stored(row.row) in events
                ]
                if not rows:
                    break
            assert events is None or len(mine) == len(events)
            db.run(store.settle(make(mine), None))
            db.run(store.retire(owner, None))

    def kill(self, *events: Event, error: str = "ValueError: no", written: bool = False) -> None:
        self._settle(events, written, lambda held: Settlement(dead=[Death(h.seq, h.token, error) for h in held]))

    def kill_due(self) -> None:
        self._settle(None, True, lambda held: Settlement(dead=[Death(h.seq, h.token, "again") for h in held]))

    def finish(self, *events: Event, written: bool = False) -> None:
        self._settle(events, written, lambda held: Settlement(done=held))

    def fail(self, *events: Event, error: str = "ValueError: no") -> None:
        zero = timedelta(0)
        self._settle(
            events, False, lambda held: Settlement(retry=[RetryRow(h.seq, h.token, zero, error, True) for h in held])
        )

    def claim(self) -> list[str]:
        store = self.box.store
        with closing(open_sync(self.url)) as db:
            owner = db.run(store.register("holder", "multi", MINUTE, None))
            return [Event.stored(row.row).id for row in db.run(store.claim(Claim(owner, 8, MINUTE), 1000, None))]


class InboxDesk(Desk):
    def opened(self, **options: Any) -> Any:
        return (AsyncInbox if self.is_async else Inbox)(self.url, **options)

    def write(self, *events: Event) -> None:
        with Inbox(self.url) as inbox:
            assert all(inbox.accept_all(None, events))

    def _claimed(self, db: Any) -> tuple[int, list[tuple[Arrived, HeldRow]]]:
        """Everything that is due, in the name of somebody who is alive."""
        store, found = self.box.store, []
        owner = db.run(store.register("test", "inbox", MINUTE, None))
        for token in range(7, 7_000):
            rows, _ = db.run(store.claim_messages(Claim(owner, token, MINUTE), 10_000, None, share=Share()))
            found += [(row, HeldRow(row.row[0], token)) for row in rows]
            if not rows:
                break
        return owner, found

    def _settle(self, events: Sequence[Event] | None, written: bool, settle: Any) -> None:
        if not written:
            self.write(*(events or ()))
        store = self.box.store
        wanted = None if events is None else {event.id for event in events}
        with closing(open_sync(self.url)) as db:
            owner, found = self._claimed(db)
            mine = [held for row, held in found if wanted is None or row.row[1] in wanted]
            assert wanted is None or len(mine) == len(wanted)
            if mine:
                db.run(settle(store, mine))
            db.run(store.retire(owner, None))

    def kill(self, *events: Event, error: str = "ValueError: no", written: bool = False) -> None:
        def dead(store: Any, held: Sequence[HeldRow]) -> Any:
            return store.settle_messages(Settling([], [Death(h.seq, h.token, error) for h in held], [], [], []), None)

        self._settle(events, written, dead)

    def kill_due(self) -> None:
        def dead(store: Any, held: Sequence[HeldRow]) -> Any:
            return store.settle_messages(Settling([], [Death(h.seq, h.token, "again") for h in held], [], [], []), None)

        self._settle(None, True, dead)

    def finish(self, *events: Event, written: bool = False) -> None:
        self._settle(events, written, lambda store, held: store.mark_all(held, None))

    def fail(self, *events: Event, error: str = "ValueError: no") -> None:
        def again(store: Any, held: Sequence[HeldRow]) -> Any:
            retry = [RetryRow(h.seq, h.token, timedelta(0), error, True) for h in held]
            return store.settle_messages(Settling(retry, [], [], [], []), None)

        self._settle(events, False, again)

    def claim(self) -> list[str]:
        with closing(open_sync(self.url)) as db:
            return [row.row[1] for row, _ in self._claimed(db)[1]]


DESKS: dict[str, type[Desk]] = {"outbox": OutboxDesk, "inbox": InboxDesk}
