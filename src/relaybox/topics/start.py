"""Where a new group begins, and where `seek` moves one.

StartFrom.latest()          what is committed from now on
StartFrom.earliest()        all that is kept; earliest(1000): the last thousand, then what follows
StartFrom.time(t)           what was created at t or later
StartFrom.event(number)     from this event on
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..errors import ConfigError
from ..store.topics import Start


@dataclass(frozen=True, slots=True)
class StartFrom:
    """A place in a topic. It is fixed when a group is made: a member that comes later joins where the group stands."""

    start: Start
    backfill: bool = False

    @classmethod
    def latest(cls) -> StartFrom:
        """What is committed from now on."""
        return cls(Start("latest"))

    @classmethod
    def earliest(cls, limit: int | None = None, *, backfill: bool = True) -> StartFrom:
        """All that is kept. `limit`: only the last so many numbers; those of transactions that rolled back count too.
        `backfill`: where a topic knows of each event which groups have it (tracking bitmap or acks), what is not
        complete yet waits for this group too."""
        if limit is not None and limit < 1:
            raise ConfigError(f"expected limit to be a positive int or None, got {limit}")
        return cls(Start("earliest", limit=limit), backfill)

    @classmethod
    def time(cls, since: datetime) -> StartFrom:
        """What was created at this time or later."""
        if since.tzinfo is None:
            raise ConfigError(f"expected a time with a time zone, got {since.isoformat()}; add tzinfo=UTC")
        return cls(Start("time", since=since))

    @classmethod
    def event(cls, number: int) -> StartFrom:
        """From the event with this number on; `write` returns it."""
        if number < 1:
            raise ConfigError(f"expected an event's number, which is 1 or more, got {number}")
        return cls(Start("event", event=number))
