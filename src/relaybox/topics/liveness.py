"""Heartbeats of this process's members, on connections of their own: busy handlers and an exhausted pool cannot
silence them. One statement speaks for all members, but only for those that are really alive.

A member that cannot reach the database stops taking work when its time is over, by its own monotonic clock: before
others may take what it has. It goes on when a beat gets through.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..clock import Clock
from ..drivers import open_async
from ..engine.loops import Loops
from ..engine.presence import SIGN_OFF, keep_beating
from ..errors import StoreError
from ..facts import Observers
from ..op import Op
from ..settings import Settings
from ..store.topics import Beat, GroupRow
from ..store.topics.life import GroupState

if TYPE_CHECKING:
    from ..store.topics.store import TopicStore

log = logging.getLogger("relaybox")

CONNECTIONS = 2

OnState = Callable[[GroupState], None]
IsAlive = Callable[[], bool]


def sign_off(store: TopicStore, beat: Beat, now: datetime | None) -> Op[None]:
    """The last beat, for what was counted."""
    yield from store.beat([beat], timedelta(0), now)
    yield from store.leave(beat.member, now)


@dataclass(eq=False)
class Membership:
    """One member of one group, as the database knows it."""

    _heartbeats: Heartbeats
    group: GroupRow
    name: str
    _told: OnState
    _lost: Callable[[], None]
    alive: IsAlive
    member: int = 0
    alive_until: float = 0.0

    def __post_init__(self) -> None:
        self.state: GroupState = self.group.state
        self.changes = 0  # by this process
        self._counts = [0, 0, 0, 0.0]

    @property
    def silent(self) -> bool:
        """Others may have taken what this member holds: it must not begin anything."""
        return self._heartbeats.clock.monotonic() >= self.alive_until

    def count(self, *, processed: int = 0, failed: int = 0, filtered: int = 0, busy: float = 0.0) -> None:
        """What was done; told with the next beat."""
        counts = self._counts
        counts[0] += processed
        counts[1] += failed
        counts[2] += filtered
        counts[3] += busy

    async def leave(self) -> None:
        """The group stays; what this member had taken is free."""
        await self._heartbeats.leave(self)

    def beat(self) -> Beat:
        processed, failed, filtered, busy = self._counts
        return Beat(self.member, int(processed), int(failed), int(filtered), int(busy * 1000))

    def state_changed(self, state: GroupState) -> None:
        """This process changed the state. The answer to a beat sent before may bring the old one: it is ignored."""
        self.changes += 1
        self.tell(state)

    def answered(self, beat: Beat, state: GroupState, alive_until: float, changes: int) -> None:
        _, processed, failed, filtered, busy_ms = beat
        self.count(processed=-processed, failed=-failed, filtered=-filtered, busy=-busy_ms / 1000)
        self.alive_until = alive_until
        if changes == self.changes:
            self.tell(state)

    def tell(self, state: GroupState) -> None:
        if state != self.state:
            self.state = state
            self._told(state)

    def rejoined(self, member: int, alive_until: float) -> None:
        self.member, self.alive_until = member, alive_until
        self._lost()


class Heartbeats:
    """One per process. Any number of groups."""

    def __init__(self, target: Any, store: TopicStore, settings: Settings, clock: Clock, observers: Observers) -> None:
        self._db = open_async(target, size=CONNECTIONS, timeout=settings.delivery.statement_seconds)
        self._beats = self._db.within(settings.delivery.heartbeat_seconds)
        self._store = store
        self._ttl = settings.delivery.instance_ttl
        self.clock = clock
        self._observers = observers
        self._members: dict[int, Membership] = {}
        self._loops = Loops(observers, clock)
        self._beating = False
        self.held = False  # for tests of crashes: members stay and work, but nobody hears of them

    async def join(
        self,
        group: GroupRow,
        name: str,
        *,
        told: OnState = lambda state: None,
        lost: Callable[[], None] = lambda: None,
        alive: IsAlive = lambda: True,
    ) -> Membership:
        """`told` of every change of the group's state; `lost` when this member had been removed and joined anew;
        `alive`: whether this process should vouch for the member."""
        membership = Membership(self, group, name, told, lost, alive)
        membership.member, membership.alive_until = await self._enter(membership)
        self._members[membership.member] = membership
        if not self._beating:
            self._beating = True
            keep_beating(self._loops, self._beat_in_time, self._ttl, self.clock)
        return membership

    async def leave(self, membership: Membership) -> None:
        if self._members.pop(membership.member, None) is None:
            return
        membership.alive_until = 0.0
        async with asyncio.timeout(SIGN_OFF):
            await self._db.run(sign_off(self._store, membership.beat(), self.clock.database_now()))

    async def close(self) -> None:
        """Leaves with every member that is still here; no group is cancelled by that."""
        await self._loops.close()
        for membership in list(self._members.values()):
            try:
                await self.leave(membership)
            except Exception as error:
                log.error("could not sign off from group %s; it will expire: %s", membership.group.name, error)
        await self._db.close()

    def state_changed(self, group: GroupRow) -> None:
        for membership in self._members.values():
            if membership.group.id == group.id:
                membership.state_changed(group.state)

    @property
    def missing(self) -> int:
        """Background tasks that ended and are not replaced yet."""
        return self._loops.missing

    # -- the loop ---------------------------------------------------------------------------------

    async def _beat_in_time(self) -> None:
        if not self.held:
            await self.beat()

    async def beat(self) -> None:
        """Speak for everybody who is alive, and hear how their groups are."""
        members = [entry for _, entry in sorted(self._members.items()) if entry.alive()]
        beats, changes = [entry.beat() for entry in members], {entry.member: entry.changes for entry in members}
        if not beats:
            return
        started = self.clock.monotonic()
        states = await self._beats.run(self._store.beat(beats, self._ttl, self.clock.database_now()), tx=False)
        until = started + self._ttl.total_seconds()
        moved: list[tuple[Membership, GroupState | None]] = []
        for beat in beats:
            membership = self._members.get(beat.member)
            if membership is None:
                continue  # left meanwhile
            state = states.get(beat.member)
            if state is not None:
                membership.answered(beat, state, until, changes[beat.member])
            if state in (None, "dead", "cancelled"):
                moved.append((membership, state))
        for membership, state in moved:  # after all were answered: none waits for another's topic
            try:
                await self._moved(membership, state)
            except StoreError as error:  # the next beat tries again
                log.error("could not look after group %s: %s", membership.group.name, error)

    async def _moved(self, membership: Membership, state: GroupState | None) -> None:
        if state is None:
            await self._removed(membership)
        elif state == "dead":
            await self._resurrect(membership)
        else:
            self._ended(membership)

    async def _resurrect(self, membership: Membership) -> None:
        """A sign of life brings a silent group back, where it stood. One that stalled waits for an operator."""
        group = await self._beats.run(
            self._store.apply(membership.group, "beat", "a member's heartbeat", self.clock.database_now())
        )
        if group.state == "active":
            log.warning("group %s of topic %s was dead and is active again", group.name, group.topic)
        membership.group = group
        membership.tell(group.state)

    async def _removed(self, membership: Membership) -> None:
        """Our row is gone: we were silent for very long, or the group is no more. It is never made anew from here."""
        group = await self._beats.run(self._store.group(membership.group.topic, membership.group.name), tx=False)
        if group is None or group.id != membership.group.id or group.state == "cancelled":
            self._ended(membership)
            return
        log.warning("this member of group %s was removed after a silence; it joins again", group.name)
        gone, (member, alive_until) = membership.member, await self._enter(membership)
        if self._members.pop(gone, None) is None:  # it left meanwhile
            await self._beats.run(self._store.leave(member, self.clock.database_now()))
            return
        self._members[member] = membership
        membership.rejoined(member, alive_until)

    def _ended(self, membership: Membership) -> None:
        group = membership.group
        log.error("group %s of topic %s was cancelled: its members here stop", group.name, group.topic)
        self._members.pop(membership.member, None)
        membership.alive_until = 0.0
        membership.tell("cancelled")

    async def _enter(self, membership: Membership) -> tuple[int, float]:
        started, now = self.clock.monotonic(), self.clock.database_now()
        member = await self._db.run(self._store.join(membership.group, membership.name, self._ttl, now))
        return member, started + self._ttl.total_seconds()
