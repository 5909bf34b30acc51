"""What people are told: counts and health of a service, the progress of a job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal


class _Keep:
    def __repr__(self) -> str:
        return "KEEP"


KEEP: Final[Any] = _Keep()  # an argument that was not given: what was agreed stays as it is

Level = Literal["ok", "degraded", "critical"]


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
