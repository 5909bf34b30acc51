"""The tables of topics: logs, ticks, groups and their places. PostgreSQL only.

    topic     the catalog; writers check its version in the statement that inserts
    log       one table per topic, append-only
    tick      moments of a log, as snapshots; what two ticks differ in is what was committed between them
    group     who reads; cursor: where it stands in each shard; range: what a member has taken; parked: what failed
    member    running consumers with heartbeats; term: jobs that only one may do

Migrations and queries are a set of their own in `store/topics/postgres`, as the inbox has. As everywhere, `now` is None
in production (the database's clock decides) and ops never begin, commit or roll back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ...errors import ConfigError, UnsupportedByEngine
from ...event import Event
from ...ids import key_hash
from ...topic import Topic
from ..names import Tables
from .life import Condition, GroupState, listed, standstill

if TYPE_CHECKING:
    from .store import TopicStore

NOBODY = 0  # the owner of a range that was given back
LAST = 2**63 - 1  # no event has this number: a place up to here is open to the end
ParkedState = Literal["retry", "held", "dead"]
QUEUE = "default"  # the one group of a queue
FOR_EVER = 2**31 - 1  # max_attempts of a group whose events are tried for ever: the most that the column holds
Row = Sequence[Any]  # an event's columns, in the order of EVENT_COLUMNS; others may follow

PARTS = (
    "topic",
    "tick",
    "head",
    "group",
    "cursor",
    "range",
    "parked",
    "member",
    "term",
    "latch",
    "incarnation",
    "alert",
    "promise",
)
VIEWS = ("group_status", "group_lag", "member_status", "active_range")
# Filled in when a partition is at hand (partitions.py), or by how a topic is tracked and spread (cleanup.py).
LATER = (
    *("log_part", "log_spread", "log_table", "log_from", "log_to", "log_nobody"),
    *("log_marks", "log_closed", "log_unmark", "log_same", "log_living"),
)

_ROOM = 31  # bytes for the outbox's name in the names made from it: with the longest of them it is 63


@dataclass(frozen=True, slots=True)
class TopicTables(Tables):
    """Named after the outbox they belong to; a long name is cut and made unique again by its hash."""

    def part(self, suffix: str) -> str:
        base = self.event
        if len(base) > _ROOM:
            base = f"{base[: _ROOM - 9]}_{key_hash(base):016x}"[:_ROOM]
        return f"{base}_{suffix}"

    def substitutions(self, quote: str) -> dict[str, str]:
        names = Tables(self.event, self.schema).substitutions(quote)
        parts = {part: self.part(part) for part in (*PARTS, *VIEWS)} | {"migration": self.part("topic_migration")}
        return names | self.quoted(parts, quote) | listed()

    def log(self, topic_id: int, quote: str) -> dict[str, str]:
        """`{log}`, `{log_seq}`, `{log_rest}`, `{mark}`, `{ack}` of one topic, and of a queue's own outbox
        `{queue_event}`, `{queue_pending}`, … Numbers, so that no name is ever too long."""
        names = {
            "log": self.part(f"log_{topic_id}"),
            "log_seq": self.part(f"log_{topic_id}_seq"),
            "log_rest": self.part(f"log_{topic_id}_rest"),
            "mark": self.part(f"mark_{topic_id}"),
            "ack": self.part(f"ack_{topic_id}"),
        }
        queue = self.queue(topic_id).substitutions(quote)
        later = {slot: f"{{{slot}}}" for slot in LATER}
        return self.quoted(names, quote) | {f"queue_{key}": name for key, name in queue.items()} | later

    def queue(self, topic_id: int) -> Tables:
        """The outbox of its own that a queue tracked by rows is."""
        return Tables(self.part(f"queue_{topic_id}"), self.schema)


class TopicRow(NamedTuple):
    """A configured topic as the catalog has it. `version` is what a writer must present."""

    id: int
    version: int
    topic: Topic
    active: int  # groups that are active
    required: int  # bits of the groups that are active or paused
    audience: Sequence[int]  # their ids
    moving: dict[str, Any] | None
    created_at: datetime
    updated_at: datetime


class Place(NamedTuple):
    """A part of one shard of a log: what tick `target` had seen and `base` had not, above `after` up to `upto`."""

    shard: int
    base: int
    target: int
    after: int
    upto: int


class Range(NamedTuple):
    """A place that a member holds under a token."""

    token: int
    place: Place
    attempts: int
    finished: frozenset[int]  # done before the rest was given back


class ClaimedRanges(NamedTuple):
    """What a claim got: ranges with their events, by shard and in order. Without any and not `behind`, the group is at
    the end of `tick`: make one and claim again if it is newer."""

    pages: list[tuple[Range, list[Row]]]
    tick: int  # the newest there was
    behind: bool = False  # something unread is left, for us or for the member that has its shard
    held: frozenset[int] = frozenset()  # keys with parked events in these shards: theirs must follow, as `held`
    split: int = 0  # events that were parked because their range was taken too often
    state: GroupState = "active"  # of the group; only an active one is given something
    alive: bool = True  # False: the member's row is gone or has expired
    share: int = 0  # of the shards, if each live member has as many; 0: nobody has counted them


class Page(list[Row]):
    """Rows of a place, and whether there are `more` behind them although they are fewer than the limit."""

    __slots__ = ("more",)
    more: bool


class Pages(Protocol):
    """What one process has read: what a place holds never changes, so groups that stand at the same one share it."""

    def get(self, topic_id: int, place: Place, limit: int) -> Page | None: ...
    def put(self, topic_id: int, place: Place, limit: int, rows: list[Row], *, more: bool) -> list[Row]:
        """What is handed on for them: a claim gives it away as it is unless it has to leave something out. `more`: the
        place has others behind, for which there was no room."""
        ...


class ParkedEvent(NamedTuple):
    """One event outside the log's order, claimed by a member."""

    row: Row
    token: int
    attempts: int  # including this one
    key_hash: int


class Parking(NamedTuple):
    """An event that leaves a range for the parked table."""

    event: Event
    shard: int
    key_hash: int
    state: ParkedState
    attempts: int
    delay: timedelta
    error: str | None


class ParkedOutcome(NamedTuple):
    """What became of a claimed parked event. `delay` None: done (it goes) or dead (`dead` True)."""

    seq: int
    token: int
    delay: timedelta | None
    error: str | None
    dead: bool = False
    counted: bool = True


class RangeSettlement(NamedTuple):
    """Ranges that are finished as a whole, ranges given back with what is done of them, and what leaves for the parked
    table, all in one transaction. A range whose token is gone settles nothing, neither itself nor its parkings. Those
    are named among the done ones of a range that is given back. Only topics with marks need the done ones of a range
    that is finished."""

    finished: Sequence[tuple[Range, Sequence[int]]] = ()
    returned: Sequence[tuple[Range, Sequence[int]]] = ()
    parkings: Sequence[tuple[int, Parking]] = ()  # (token of its range, event)
    parked: Sequence[ParkedOutcome] = ()
    known: Collection[int] = ()  # tokens of what else the member has: what failed may lie behind it

    def is_one_statement(self, topic: TopicRow) -> bool:
        """For which nothing has to be begun: whole ranges are done, and the topic keeps no marks."""
        marked = topic.topic.tracking in ("bitmap", "acks")
        return not (marked or self.returned or self.parkings or self.parked)


@dataclass(frozen=True, slots=True)
class GroupRow:
    id: int
    topic_id: int
    topic: str
    name: str
    generation: int
    state: GroupState
    ordered: bool
    bit: int | None
    since: datetime | None
    first: int
    start: str
    start_tick: int
    max_attempts: int
    on_exhausted: str
    heartbeat_interval: timedelta
    heartbeat_timeout: timedelta
    heartbeat_at: datetime
    failures: int
    stalled: bool  # dead for want of progress: only an operator resurrects it
    reason: str | None
    state_at: datetime
    created_at: datetime
    lost: int  # events that were deleted before it had them

    @property
    def condition(self) -> Condition:
        return "stalled" if self.stalled else self.state

    @property
    def standstill(self) -> str | None:
        """Why it is given nothing, and what ends that."""
        return standstill(self.topic, self.name, self.condition, self.reason)

    @property
    def attempts(self) -> int | None:
        """None: for ever."""
        return None if self.max_attempts == FOR_EVER else self.max_attempts

    @property
    def blocks(self) -> bool:
        """Whether what keeps failing keeps its key waiting, for ever."""
        return self.ordered and self.on_exhausted == "block"

    def passes_over(self, seq: int, created_at: datetime) -> bool:
        """Whether an event is from before the group's start."""
        return seq < self.first or (self.since is not None and created_at < self.since)


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """How a group is subscribed; kept with it, so that every member and every operator sees the same."""

    ordered: bool = True
    max_attempts: int = 10
    on_exhausted: str = "skip"
    heartbeat_interval: timedelta = timedelta(seconds=60)
    heartbeat_timeout: timedelta = timedelta(seconds=300)

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"expected max_attempts to be a positive int, got {self.max_attempts}")
        if self.on_exhausted not in ("block", "park", "skip"):
            raise ConfigError(f"expected on_exhausted to be block, park or skip, got {self.on_exhausted!r}")
        if not timedelta(0) <= self.heartbeat_interval < self.heartbeat_timeout:
            raise ConfigError(
                f"expected heartbeat_timeout to be longer than heartbeat_interval {self.heartbeat_interval}, "
                f"got {self.heartbeat_timeout}"
            )

    @classmethod
    def of(cls, group: GroupRow) -> GroupOptions:
        return cls(
            group.ordered, group.max_attempts, group.on_exhausted, group.heartbeat_interval, group.heartbeat_timeout
        )


@dataclass(frozen=True, slots=True)
class Start:
    """Where a new group begins. One of `kind`; `since`, `seq` or `tick` where it needs one."""

    kind: Literal["latest", "earliest", "time", "event", "tick"] = "latest"
    since: datetime | None = None
    event: int | None = None  # the number of the first event wanted
    tick: int | None = None
    limit: int | None = None  # earliest: no more than the last `limit` numbers


class StartPlace(NamedTuple):
    """Everything that tick `base` had not seen, but nothing created before `since` nor numbered below `first`."""

    base: int
    first: int
    since: datetime | None


class Beat(NamedTuple):
    """A member lives, and has done this since its last beat."""

    member: int
    processed: int = 0
    failed: int = 0
    filtered: int = 0
    busy_ms: int = 0


@dataclass(frozen=True, slots=True)
class MemberRow:
    id: int
    group_id: int
    topic: str
    group: str
    name: str
    started_at: datetime
    seen_at: datetime
    silent: timedelta
    alive: bool  # its time has not run out: what it has taken is its own
    processed: int
    failed: int
    filtered: int
    busy_ms: int


class GroupTotals(NamedTuple):
    """What a group has done since it was made, and what its members hold now."""

    at: datetime
    silent: timedelta
    members: int  # alive
    processed: int
    failed: int
    filtered: int
    busy_ms: int
    per_second: float
    holding: int  # ranges and parked events with live members


class GroupCheck(NamedTuple):
    """What a check found of a group: its failures one after the other, and whether it was declared dead."""

    group: str
    topic: str
    failures: int
    died: bool
    reason: str
    stalled: bool = False


class Quiet(NamedTuple):
    group: str
    topic: str
    silent: timedelta
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is behind: events not finished, of those the ones taken and parked, and the age of the oldest."""

    group: str
    events: int
    taken: int
    parked: int
    dead: int
    oldest: timedelta | None
    shards: dict[int, int] = field(default_factory=dict)  # unread in each
    exact: bool = True  # False: more than were counted; the rest was reckoned from the numbers that are left


def open_topic_store(dialect: str, tables: Tables) -> TopicStore:
    if dialect != "postgres":
        raise UnsupportedByEngine(f"topics are kept by PostgreSQL; {dialect} has the outbox and the inbox")
    module = import_module(f"{__name__}.store")
    store: TopicStore = module.TopicStore(TopicTables(tables.event, tables.schema))
    return store
