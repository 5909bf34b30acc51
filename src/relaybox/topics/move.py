"""Moving a topic to another way of tracking, while it is written and read.

    plan_move(home, "orders", "bitmap")     what it will do, in words; nothing is touched
    move(home, "orders", "bitmap")          ends when it is done

A move that was killed goes on where it was when it is called again. Nothing is lost for any group, paused ones
and those with parked events included: between offset, bitmap and acks no group moves at all, only marks come or go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..drivers.script import Script, commit
from ..errors import ConfigError, StoreBusy
from ..store.topics import GroupRow, TopicRow
from ..topic import Tracking
from .home import Home

WAIT = 0.1  # for transactions that were under way, and for locks
LONGEST_WAIT = 2.0

Progress = Callable[[dict[str, Any]], object]


@dataclass(frozen=True, slots=True)
class MovePlan:
    topic: str
    tracking: Tracking
    to: Tracking
    steps: Sequence[str]
    under_way: dict[str, Any] | None  # a move that was begun and not finished


def plan_move(home: Home[Any], topic: str, to: Tracking) -> Script[MovePlan]:
    row = yield from commit(home.known(topic))
    groups = yield from commit(home.store.groups(topic))
    check(row, to, groups)
    return MovePlan(topic, row.topic.tracking, to, _steps(row.topic.tracking, to), row.moving)


def check(row: TopicRow, to: Tracking, groups: Sequence[GroupRow]) -> None:
    name = row.topic.name
    fitting = ("rows", "offset") if row.topic.semantics == "queue" else ("offset", "bitmap", "acks")
    if to not in fitting:
        kind = row.topic.semantics
        raise ConfigError(f"topic {name!r} is a {kind} topic: its tracking may be {' or '.join(fitting)}, got {to!r}")
    live = sum(group.state != "cancelled" for group in groups)
    if to == "bitmap" and live > 64:
        raise ConfigError(
            f"topic {name!r} has {live} groups and a bitmap has room for 64; move it to 'acks' or 'offset'"
        )


def _steps(was: Tracking, to: Tracking) -> list[str]:
    if was == to:
        return []
    if was == "rows" or to == "rows":
        return [
            f"make the tables of tracking {to!r}",
            "tell writers, in one transaction that waits for those under way: they write to the new table",
            "take what waits out of the old table and put it into the new one, in batches, each in one transaction",
            "drop the old table, with the finished events in it",
            "consumers of the queue start anew when the move is over; until then nothing is delivered",
        ]
    steps = []
    if was != "offset":
        steps += [
            "tell writers: they make no marks any more",
            "wait until the transactions that wrote meanwhile have ended; the marks go",
        ]
    if to != "offset":
        steps += [
            "make marks for what is stored, in batches, while writers go on (until here it can be rolled back"
            + ("; it is tracked by offset then)" if was != "offset" else ")"),
            "tell writers: they make marks",
            "wait until the transactions that wrote meanwhile have ended, and make the marks that are missing",
            "note as done what groups have read already",
        ]
    return steps


def move(
    home: Home[Any], topic: str, to: Tracking, progress: Progress | None = None, *, ordered: bool = False
) -> Script[None]:
    """`ordered`: whether the group that a queue on a log has keeps the order of each key."""
    yield from plan_move(home, topic, to)
    moving = yield from commit(home.store.begin_move(topic, to, home.clock.database_now(), ordered=ordered))
    busy = 0
    while moving is not None:
        if progress is not None:
            progress(moving)
        try:
            if moving["phase"] == "prepare":  # a fresh tick: less to be looked for after the switch
                row = yield from commit(home.known(topic))
                yield from commit(home.store.tick(row, home.clock.database_now(), wait=True, force=True))
            moving = yield from commit(home.store.move_step(topic, home.clock.database_now()))
        except StoreBusy:  # somebody has the table; nothing was done, and writers shall not wait for us all the time
            busy += 1
            yield min(WAIT * 2**busy, LONGEST_WAIT)
            continue
        busy = 0
        if moving is not None and moving["waits"]:
            yield WAIT
