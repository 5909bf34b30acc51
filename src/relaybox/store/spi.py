"""What an outbox asks of its database: the ops every dialect answers, and what a dialect declares.

Ops yield statements and never begin, commit or roll back. `now` is None in production, so the database's
clock decides; tests pass a time. Times go in and come out as aware UTC datetimes on every dialect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from ..event import Event
from ..op import Op, Query
from .dialect import Capabilities
from .instances import Instance
from .names import Tables
from .schema import Migration


class Claim(NamedTuple):
    """Who holds rows: set at insert by the hot path, or by a claim."""

    owner: int
    token: int
    lease: timedelta


class Claimed(NamedTuple):
    """A row as claimed: the event's columns, the attempts including this one, and its key where that is leased."""

    row: tuple[Any, ...]
    attempts: int
    key_hash: int | None = None


class Known(NamedTuple):
    """What a process has claimed: claims of which nothing has left undone, by token, and of the others each event."""

    tokens: Collection[int]
    seqs: Collection[int]


class Held(NamedTuple):
    """A claim on one row: what every later write must present."""

    seq: int
    token: int


class KeyLease(NamedTuple):
    """A key that is ours while the claim with this token lives."""

    key_hash: int
    token: int


@dataclass(slots=True)
class Turn:
    """Where a claimer stands in its round over all keys (a claim moves it on), and what its last claim met."""

    after: int = -1  # the hash of a key; -1 is before the first
    tried: int = 0  # keys it wanted
    taken: int = 0  # and got
    busy: bool = False  # rows wait whose key somebody has
    smooth: bool = False  # every key it looked at was to be had


class KeyChoice(NamedTuple):
    """How `claim_keys` chooses: by which locks, from how many keys at a time, at most how many of them."""

    by: Literal["advisory", "rows"] = "rows"
    candidates: int = 200
    keys: int = 50
    namespace: int = 1


class Retry(NamedTuple):
    seq: int
    token: int
    delay: timedelta
    error: str
    counted: bool = True  # False: this attempt was nobody's fault


class Death(NamedTuple):
    seq: int
    token: int
    error: str


class Settlement(NamedTuple):
    """A batch of outcomes. In ordered delivery `hold` names the heads whose keys must wait, `park` those
    whose keys wait for an operator, and everything settled for good frees its key. `free` are leases of keys
    of which nothing is left in their claim. `whole` are claims of which everything that is left is done, with how
    many events that is: they are not in `done`."""

    done: Sequence[Held] = ()
    retry: Sequence[Retry] = ()
    dead: Sequence[Death] = ()
    hold: Sequence[Held] = ()
    park: Sequence[Held] = ()
    ordered: bool = False
    free: Sequence[KeyLease] = ()
    whole: Mapping[int, int] = MappingProxyType({})

    @property
    def several(self) -> bool:
        """Whether a store that can needs more than one statement for it."""
        if self.retry or self.dead or self.free:
            return True
        return bool(self.done) if self.whole else self.ordered


@dataclass(frozen=True, slots=True)
class DeadFilter:
    event_type: str | None = None
    aggregate_type: str | None = None
    key: str | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead event with why and when. The repr shows no payload (Event's does not either)."""

    event: Event
    attempts: int
    error: str | None
    dead_at: datetime


@dataclass(frozen=True, slots=True)
class BlockedKey:
    key: str | None
    event_id: str | None
    parked: bool
    since: datetime
    attempts: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """One look at an outbox. `events` is the planner's estimate where counting would be slow."""

    due: int
    delayed: int
    claimed: int
    retrying: int
    dead: int
    oldest_due: timedelta
    events: int


class Purge(NamedTuple):
    """One batch of a purge: rows looked at, where it got to, rows deleted."""

    seen: int
    last: int
    gone: int


class OutboxStore(Protocol):
    dialect: str
    tables: Tables
    capabilities: Capabilities
    sql: dict[str, Query]

    # write
    def write(
        self, events: Sequence[Event], claim: Claim | None, now: datetime | None, *, copy: bool = False
    ) -> Op[list[int]]: ...
    def write_plain(self, events: Sequence[Event], now: datetime | None) -> Op[list[int]]: ...
    def stored(self, event_ids: Sequence[str]) -> Op[set[str]]: ...
    def under_way(self, event_ids: Sequence[str]) -> Op[set[str]]:
        """Transactions that may yet store these, by their names; or waits for them and returns none. Needs a
        transaction."""
        ...

    # claim
    def claim(self, claim: Claim, limit: int, now: datetime | None) -> Op[list[Claimed]]: ...
    def claim_ordered(
        self,
        claim: Claim,
        limit: int,
        shards: int,
        now: datetime | None,
        turn: Turn | None = None,
        full: Collection[int] = (),
        leaving: Collection[int] = (),
        known: Known | None = None,
    ) -> Op[list[Claimed]]:
        """Nothing of the keys whose hashes are in `full`, nor of the shards that are `leaving`. `known`: what the owner
        knows that it has. What else the database has in its name is given back first."""
        ...

    def claim_keys(
        self, claim: Claim, limit: int, choice: KeyChoice, turn: Turn, now: datetime | None
    ) -> Op[list[Claimed]]: ...
    def verify(self, held: Sequence[Held]) -> Op[set[int]]: ...
    def renew(self, held: Sequence[Held], lease: timedelta, now: datetime | None) -> Op[set[int]]: ...
    def release(self, held: Sequence[Held], now: datetime | None, free: Sequence[KeyLease] = ()) -> Op[int]: ...
    def abandon(self, claims: Sequence[Claim], now: datetime | None) -> Op[int]: ...
    def oldest(self, now: datetime | None) -> Op[timedelta]: ...
    def next_due(self, now: datetime | None) -> Op[timedelta | None]: ...

    # settle
    def settle(self, settlement: Settlement, now: datetime | None) -> Op[int]: ...
    def blocked(self, limit: int) -> Op[list[BlockedKey]]: ...
    def unblock(self, key: str) -> Op[bool]: ...

    # instances and shards
    def register(self, name: str, role: str, ttl: timedelta, now: datetime | None) -> Op[int]: ...
    def beat(self, instance: int, ttl: timedelta, now: datetime | None) -> Op[bool]: ...

    def note(self, instance: int, text: str | None) -> Op[None]: ...
    def retire(self, instance: int, now: datetime | None) -> Op[int]: ...
    def take_over(self, survivor: int | None, now: datetime | None) -> Op[tuple[int, int]]: ...
    def instances(self, now: datetime | None) -> Op[list[Instance]]: ...
    def acquire_shards(
        self,
        owner: int,
        want: int,
        shards: int,
        ttl: timedelta,
        now: datetime | None,
        among: Sequence[int] | None = None,
    ) -> Op[dict[int, int]]: ...
    def renew_shards(self, owner: int, ttl: timedelta, now: datetime | None) -> Op[dict[int, int]]: ...
    def release_shards(self, owner: int, shards: Sequence[int]) -> Op[None]: ...

    # dead letters and purge
    def dead(self, where: DeadFilter, after: int, limit: int) -> Op[list[DeadLetter]]: ...
    def dead_one(self, event_id: str) -> Op[DeadLetter | None]: ...
    def count_dead(self, where: DeadFilter) -> Op[int]: ...
    def dead_numbers(self, where: DeadFilter, after: int, newest: int, limit: int) -> Op[list[int]]: ...

    def newest_dead(self, now: datetime | None) -> Op[tuple[int, datetime]]: ...
    def replay(self, seqs: Sequence[int], cutoff: datetime, now: datetime | None) -> Op[list[int]]: ...
    def time(self, now: datetime | None) -> Op[datetime]: ...

    def purge_done(self, before: datetime, after: int, limit: int) -> Op[Purge]: ...
    def purge_dead(self, before: datetime, limit: int) -> Op[int]: ...
    def purge_age(self, before: datetime, limit: int) -> Op[int]: ...

    # seeing
    def status(self, now: datetime | None) -> Op[Status]: ...
    def failing(self) -> Op[int]: ...
    def waiting(self, limit: int, now: datetime | None) -> Op[list[tuple[Any, ...]]]: ...
    def notify(self, now: datetime | None) -> Op[bool]: ...

    # schema
    def migrations(self) -> list[Migration]: ...
    def applied(self) -> Op[list[Migration]]: ...
    def plan(self) -> Op[list[Migration]]: ...
    def migrate(self) -> Op[list[Migration]]: ...
    def verify_schema(self) -> Op[None]: ...
    def drift(self) -> Op[list[str]]: ...
