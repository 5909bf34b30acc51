"""Moving a topic to another way of tracking, or a queue to pub/sub, while it is written and read.

    outbox.topics.move("orders", tracking="bitmap", dry_run=True)    what it would do; nothing is touched
    outbox.topics.move("orders", tracking="bitmap")                  ends when it is done

A move that was killed goes on where it was when it is called again. Nothing is lost for any group, paused ones
and those with parked events included: between offset, bitmap and acks no group moves at all, only marks come or go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..drivers.script import Script, commit
from ..errors import ConfigError, InUse, StoreBusy
from ..store.grants.tenants import sees_all
from ..store.topics import QUEUE, GroupRow, TopicRow
from ..topic import TRACKINGS, Semantics, Tracking
from .context import TopicContext

WAIT = 0.1  # for transactions that were under way, and for locks
LONGEST_WAIT = 2.0

MoveProgress = Callable[[dict[str, Any]], object]


@dataclass(frozen=True, slots=True)
class MovePlan:
    """What a move does, or has done."""

    topic: str
    semantics: Semantics  # in the end
    tracking: Tracking  # as it was
    to: Tracking
    steps: Sequence[str]
    under_way: dict[str, Any] | None  # a move that was begun and not finished


def check(row: TopicRow, semantics: Semantics, to: Tracking, groups: Sequence[GroupRow]) -> None:
    name = row.topic.name
    fitting = TRACKINGS[semantics]
    if to not in fitting:
        raise ConfigError(
            f"topic {name!r} is a {semantics} topic: its tracking may be {' or '.join(fitting)}, got {to!r}"
        )
    if to == "rows" and row.topic.spread > 1:
        raise ConfigError(
            f"topic {name!r} is spread over {row.topic.spread} tables: its tracking may be offset, got {to!r}, which "
            "cannot be spread; make another queue, and let this one run empty"
        )
    live = [group.name for group in groups if group.state != "cancelled"]
    if to == "bitmap" and len(live) > 64:
        raise ConfigError(
            f"topic {name!r} has {len(live)} groups and a bitmap has room for 64; move it to 'acks' or 'offset'"
        )
    if semantics == "queue" != row.topic.semantics and set(live) - {QUEUE}:
        raise InUse(
            "topic",
            name,
            f"topic {name!r} is read by {', '.join(live)}: a queue has one group, {QUEUE!r}; cancel the rest",
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
    context: TopicContext[Any],
    topic: str,
    to: Tracking | None = None,
    progress: MoveProgress | None = None,
    *,
    semantics: Semantics | None = None,
    ordered: bool = False,
    dry_run: bool = False,
) -> Script[MovePlan]:
    row = yield from commit(context.known(topic))
    groups = yield from commit(context.store.groups(topic))
    was, semantics = row.topic.tracking, semantics or row.topic.semantics
    if to is None:
        to = was if was in TRACKINGS[semantics] else "offset"
    check(row, semantics, to, groups)
    if semantics == "queue":
        yield from commit(context.unfed(topic))
    # A queue and a pub/sub topic that are tracked by offset are the same tables.
    ways = [to] if semantics == row.topic.semantics else list(dict.fromkeys(("offset", to)))
    steps = [step for begin, end in pairwise((was, *ways)) for step in _steps(begin, end)]
    if semantics != row.topic.semantics:
        at = len(_steps(was, "offset"))
        steps.insert(at, f"call it {semantics}: its group {QUEUE!r} stays, with its place")
    plan = MovePlan(topic, semantics, was, to, steps, row.moving)
    if dry_run:
        return plan
    yield from commit(sees_all(context.store, "parked"))
    for way in ways:
        yield from _move(context, topic, way, progress, ordered)
        if semantics != row.topic.semantics and way == "offset":
            yield from commit(context.store.rename_semantics(topic, semantics))
    return plan


def _move(
    context: TopicContext[Any], topic: str, to: Tracking, progress: MoveProgress | None, ordered: bool
) -> Script[None]:
    """`ordered`: whether the group that a queue on a log has keeps the order of each key."""
    moving = yield from commit(context.store.begin_move(topic, to, context.clock.database_now(), ordered=ordered))
    busy = 0
    while moving is not None:
        if progress is not None:
            progress(moving)
        try:
            if moving["phase"] == "prepare":  # a fresh tick: less to be looked for after the switch
                row = yield from commit(context.known(topic))
                yield from commit(context.store.tick(row, context.clock.database_now(), wait=True, force=True))
            moving = yield from commit(context.store.move_step(topic, context.clock.database_now()))
        except StoreBusy:  # somebody has the table; nothing was done, and writers shall not wait for us all the time
            busy += 1
            yield min(WAIT * 2**busy, LONGEST_WAIT)
            continue
        busy = 0
        if moving is not None and moving["waits"]:
            yield WAIT
