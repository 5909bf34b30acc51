"""What people ask with and are told: which events, what became of them, how a service and a product are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from .durations import Duration, parse_duration
from .errors import ConfigError
from .event import Event


class _Keep:
    def __repr__(self) -> str:
        return "KEEP"


KEEP: Final[Any] = _Keep()  # an argument that was not given: what was agreed stays as it is

Level = Literal["ok", "degraded", "critical"]
State = Literal["waiting", "claimed", "retry", "held", "dead", "done"]
Cause = Literal["retry", "dead", "gap"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Where:
    """Which events: all that is given must hold. `ALL` is a Where without conditions."""

    ids: Collection[str] | None = None
    type: str | None = None
    aggregate_type: str | None = None
    key: str | None = None
    tenant: str | None = None
    sender: str | None = None  # who sent it; only messages of an inbox have one
    error: str | None = None  # a part of the text of its last error
    data_key: str | None = None  # the id of the data key that its payload is encrypted with
    # Times, or how long ago. Of a dead letter that is when it died, of any other event when it was due first or came.
    since: datetime | Duration | None = None
    until: datetime | Duration | None = None

    def __post_init__(self) -> None:
        if isinstance(self.ids, str) or not all(isinstance(id, str) for id in self.ids or ()):
            raise ConfigError("expected ids to be several event ids; one id is given as it is, without a Where")
        for name in ("since", "until"):
            value = getattr(self, name)
            if isinstance(value, datetime):
                if value.tzinfo is None:
                    raise ConfigError(f"expected {name} to have a time zone, got the naive {value.isoformat()}")
            elif value is not None:
                object.__setattr__(self, name, parse_duration(value, name))

    @property
    def given(self) -> list[str]:
        """The names of the conditions."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]


ALL: Final = Where()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that was given up, with why and when. The repr shows no payload."""

    event: Event
    attempts: int
    error: str | None
    dead_at: datetime


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event and what has become of it so far. The repr shows no payload."""

    event: Event
    state: State
    attempts: int | None  # None: it is done, and nobody keeps how often it was tried
    error: str | None  # of the last attempt
    due: datetime | None  # when it may be tried; None: it is over, is being handled, or waits for another event
    ended_at: datetime | None  # when it died or was processed; None: neither, or not known


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A key of ordered events that does not go on, and why: its next event is tried again, is dead, or has not come."""

    key: str | None
    cause: Cause
    since: datetime
    event_id: str | None = None  # the event that the others wait for
    attempts: int | None = None
    error: str | None = None
    first: int | None = None  # of a gap: the numbers that have not come
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """One look at an outbox."""

    due: int
    delayed: int
    claimed: int
    retrying: int
    dead: int
    oldest_due: timedelta
    events: int  # kept in all; an estimate where counting them would be slow


@dataclass(frozen=True, slots=True)
class Counts:
    """What a service has done in this process since its start."""

    done: int = 0
    failed: int = 0  # attempts that failed; their events come again
    dead: int = 0  # events given up
    ignored: int = 0  # of those done: no listener wanted them


@dataclass(frozen=True, slots=True)
class Health:
    """`critical`: it does not do its work. Not `live`: only a restart helps."""

    level: Level = "ok"
    reasons: tuple[str, ...] = ()
    live: bool = True

    @property
    def ready(self) -> bool:
        """Whether it can do its work now: its level is not critical."""
        return self.live and self.level != "critical"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """From where on something is degraded, and from where on it is critical."""

    waiting: tuple[int, int] = (1_000, 100_000)
    dead: tuple[int, int] = (1, 100)
    oldest: tuple[Duration, Duration] = (timedelta(minutes=1), timedelta(minutes=15))  # has waited so long

    def __post_init__(self) -> None:
        rising = tuple(parse_duration(value, "oldest") for value in self.oldest)
        object.__setattr__(self, "oldest", rising)
        for name in ("waiting", "dead", "oldest"):
            degraded, critical = getattr(self, name)
            if not type(degraded)(0) < degraded <= critical:
                raise ConfigError(f"expected {name} to be two rising limits above 0, got {degraded} and {critical}")

    def judge(self, waiting: int, dead: int, oldest: timedelta, alive: int) -> Health:
        """`alive`: how many processes work on what waits."""
        found = [
            (_level(waiting, self.waiting), f"{waiting} wait"),
            (_level(dead, self.dead), f"{dead} dead letter{'s' if dead > 1 else ''}"),
            (_level(oldest, self.oldest), f"the oldest waits since {oldest}"),
            (int(waiting > 0 and not alive), f"{waiting} wait and no process works on them"),
        ]
        levels: tuple[Level, Level, Level] = ("ok", "degraded", "critical")
        reasons = [text for level, text in sorted(found, reverse=True) if level]
        return Health(levels[max(level for level, _ in found)], tuple(reasons))


def _level(value: Any, limits: Sequence[Any]) -> int:
    """How many limits are reached."""
    return sum(value >= limit for limit in limits)


LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change that an operator made."""

    id: int  # ascending
    at: datetime
    actor: str
    verb: str  # replay, discard, pause …
    what: str  # dead letters, group orders/mail …
    changed: int | None  # how many; None: not a matter of numbers
    reason: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a long job has come. `what`: in words, what it does or how it ended."""

    done: int
    total: int | None
    what: str
