"""The pending messages of an inbox as a source of deliveries for the engine.

What was done is settled already, in the transaction of its effect; the engine's settling is for what failed, and for
waking what waited for a number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import assert_never

from ..clock import Clock
from ..codec import Codec
from ..delivery import Delivery
from ..drivers.spi import AsyncRunner
from ..engine.protocols import AlwaysAlive, Pulse, Settled
from ..engine.rows.room import PayloadRoom
from ..event import Event
from ..ids import key_hash, new_token
from ..outcome import Dead, Done, RetryAt, Skip
from ..sealing import sealing
from ..settings import Settings
from ..store.claims import Claim, Death, HeldRow, RetryRow
from ..store.inbox import InboxStore
from ..store.inbox.claim import SUSPECT, Arrived, Share
from ..store.inbox.order import Order, Priority
from ..store.inbox.settle import NextNumber, Past, Settling

AGAIN = (0.05, 0.1, 0.2)  # seconds until it is asked again for messages that a transaction has
LINGER = 0.002  # seconds between two claims while messages come one by one: what comes meanwhile is claimed together


class MessageDelivery(Delivery):
    """A delivery with its number, if it has one."""

    __slots__ = ("erased", "key_hash", "position", "replayed", "strikes")

    def __init__(self, arrived: Arrived, codec: Codec, token: int, lease_end: float, *, ordered: bool) -> None:
        super().__init__(
            Event.stored(arrived.row, codec, sender=arrived.sender),
            arrived.row[0],
            token,
            arrived.attempts,
            lease_end,
            hot=False,
            ordered=ordered and arrived.position is not None and arrived.row[4] is not None,
        )
        self.key_hash = arrived.key_hash
        self.position = arrived.position
        self.replayed = arrived.replayed
        self.strikes = arrived.strikes
        self.erased = False  # found to be unreadable for good: nobody waits for its number


@dataclass(eq=False)
class InboxSource:
    _db: AsyncRunner
    _store: InboxStore
    _settings: Settings
    _clock: Clock
    _: KW_ONLY
    order: Order | None
    priority: Priority | None
    share: Share
    owner: int = 0

    def __post_init__(self) -> None:
        self._suspect: MessageDelivery | None = None  # while it is here nothing else is claimed
        self._moved = 0  # how often keys have moved on
        self._not_before = 0.0  # of the loop's clock: the next claim
        self._doubtful: list[Claim] = []  # asked for, no reply: the database may have made them
        # A renewal must not have locked what is being settled: locked rows are passed over.
        self._writing = asyncio.Lock()
        self.ordered = self.order is not None
        self.pulse: Pulse = AlwaysAlive()  # set by InboxRegistration
        self.freed: Callable[[], None] = lambda: None
        self.room = PayloadRoom(self._settings.delivery)

    @property
    def full(self) -> bool:
        return self.room.full

    @property
    def silent(self) -> bool:
        return self._clock.monotonic() >= self.pulse.alive_until

    async def claim(self, limit: int, past: Collection[str] = ()) -> list[Delivery]:
        """Nothing means that nothing is due: not that all we looked at had to be held back, nor that a key has moved on
        meanwhile."""
        full = frozenset(map(key_hash, past))
        while not self.silent and self._suspect is None:
            moved = self._moved
            messages, more = await self._claim(limit, full)
            if messages or not (more or moved != self._moved):
                return messages
        return []

    async def _claim(self, limit: int, full: Collection[int]) -> tuple[list[Delivery], bool]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self._not_before - loop.time()))
        now = self._clock.database_now()
        if self._doubtful:
            await self._db.run(self._store.abandon_messages(self._doubtful, now))
            self._doubtful.clear()
        limit, room = self.room.ask(limit)
        if not limit:
            return [], False
        claim = Claim(self.owner, new_token(), self._settings.delivery.lease, room)
        ends = self._clock.monotonic() + claim.lease.total_seconds()
        self._doubtful.append(claim)
        order, priority = self.order, self.priority
        arrived, more = await self._db.run(
            self._store.claim_messages(claim, limit, now, share=self.share, order=order, priority=priority, full=full),
            tx=not self._store.claims_at_once(order, priority),
        )
        if claim.owner != self.owner:  # declared dead meanwhile: the claim is nobody's and stays in doubt
            return [], True
        back: Collection[int] = ()
        if self.room.measures or any(one.row[7] is None for one in arrived):
            arrived, back = await self._load(arrived)
        self._not_before = loop.time() + LINGER if 0 < len(arrived) < limit else 0.0
        codec = self._store.codec
        messages = [MessageDelivery(one, codec, claim.token, ends, ordered=self.ordered) for one in arrived]
        if (vault := sealing(codec)) is not None:
            if (keys := vault.load([one.event for one in messages])) is not None:
                await keys
            for message in messages:
                message.event = vault.opened(message.event)
        self._doubtful.clear()  # not before: what the engine does not learn of must be given back
        if back:
            await self.release([message for message in messages if message.seq in back])
            messages = [message for message in messages if message.seq not in back]
        if len(messages) == 1 and messages[0].strikes > SUSPECT:
            self._suspect = messages[0]
        return list(messages), more

    async def _load(self, arrived: Sequence[Arrived]) -> tuple[list[Arrived], Collection[int]]:
        """With the payloads that the claim left in the database, as far as there is room; and what has to go back."""
        loaded = await self._db.run(self._store.load(arrived, self.room.left, first=self.room.empty), tx=False)
        there = [one._replace(row=loaded.rows.get(one.row[0], one.row)) for one in arrived]
        self.room.met([loaded.sizes.get(one.row[0]) or len(one.row[7] or b"") for one in there])
        return there, loaded.back

    async def settle(self, outcomes: Sequence[Settled]) -> int:
        settling = self._settling(outcomes)
        lost = await self._write(settling) if any(settling) else 0
        self._gone([delivery for delivery, _ in outcomes])
        if settling.wake or settling.skip:
            self._moved += 1
            self.freed()
        return lost

    async def _write(self, settling: Settling) -> int:
        """What a listener's transaction still has is looked at again: after a connection was given up, the server is
        done with it soon."""
        lost = 0
        for pause in (*AGAIN, None):
            async with self._writing:
                late = await self._db.run(self._store.settle_messages(settling, self._clock.database_now()))
            lost += late.lost
            if not late.locked or pause is None:
                break
            settling = settling.of(late.locked)
            await self._clock.sleep(pause)
        return lost + len(late.locked)

    def _settling(self, outcomes: Sequence[Settled]) -> Settling:
        settling = Settling([], [], [], [], [])
        for delivery, outcome in outcomes:
            assert isinstance(delivery, MessageDelivery)
            after = NextNumber(delivery.key_hash, delivery.position + 1) if delivery.position is not None else None
            match outcome:
                case Done():
                    if self.order is not None and after is not None:
                        settling.wake.append(after)
                case Skip():
                    settling.forget.append(HeldRow(delivery.seq, delivery.token))
                case RetryAt(delay, error, counted):
                    settling.retry.append(RetryRow(delivery.seq, delivery.token, delay, error, counted))
                case Dead(error):
                    settling.dead.append(Death(delivery.seq, delivery.token, error))
                    key = delivery.event.key
                    passed = self.order is not None and (self.order.dead == "skip" or delivery.erased)
                    if passed and after is not None and key is not None:
                        settling.skip.append(Past(delivery.seq, key, after))
                case _:
                    assert_never(outcome)
        return settling

    def _gone(self, deliveries: Sequence[Delivery]) -> None:
        if self._suspect is not None and any(delivery.seq == self._suspect.seq for delivery in deliveries):
            self._suspect = None
            self.freed()

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        async with self._writing:
            await self._db.run(self._store.release_messages(_held(deliveries), self._clock.database_now()))
        self._gone(deliveries)

    async def renew(self, deliveries: Sequence[Delivery]) -> set[int]:
        async with self._writing:
            renewal = self._store.renew_messages(
                _held(deliveries), self._settings.delivery.lease, self._clock.database_now()
            )
            return await self._db.run(renewal)

    async def oldest(self) -> timedelta:
        return await self._db.run(self._store.oldest_message(self._clock.database_now()), tx=False)

    async def next_due(self) -> timedelta | None:
        return await self._db.run(self._store.next_message(self._clock.database_now()), tx=False)


def _held(deliveries: Sequence[Delivery]) -> list[HeldRow]:
    return [HeldRow(delivery.seq, delivery.token) for delivery in deliveries]
