"""Who reads a topic. A group's place is fixed in the transaction that makes it: a tick is taken there, and the group
gets whatever that tick had not seen, so nothing committed later is missed and no writer waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ...errors import ConfigError, IllegalMove, NotFound, TooManyGroups
from ...op import Op
from . import QUEUE, GroupOptions, GroupRow, Start, StartPlace, TopicRow
from .life import MOVES, TOWARDS, GroupState, Verb, effects, reachable, state_of
from .ticks import TickOps

BITS = 64


class GroupOps(TickOps):
    # -- joining ----------------------------------------------------------------------------------

    def subscribe(
        self, topic: TopicRow, name: str, start: Start, options: GroupOptions | None, now: datetime | None
    ) -> Op[tuple[GroupRow, bool]]:
        """The group, and whether it is new. One that is there is joined, and takes the given options; a dead one is
        resurrected unless it stalled; a cancelled one begins anew, as another generation. Needs a transaction."""
        if not name or not name.isprintable() or len(name) > 255:
            raise ConfigError(f"expected a group's name to be 1 to 255 printable characters, got {name!r}")
        if topic.topic.tracking == "rows" and name != QUEUE:
            raise ConfigError(f"topic {topic.topic.name!r} is a queue: its one group is {QUEUE!r}, got {name!r}")
        yield from self._lock_groups(topic.id)
        group = yield from self.group(topic.topic.name, name)
        if group is None or group.state == "cancelled":
            return (yield from self._create_group(topic, name, start, options or GroupOptions(), now)), True
        if options is not None:
            group = yield from self._take_options(group, options)
        return (yield from self._apply(group, "start", "joined again", now)), False

    def _create_group(
        self, topic: TopicRow, name: str, start: Start, options: GroupOptions, now: datetime | None
    ) -> Op[GroupRow]:
        rows = topic.topic.tracking == "rows"  # which wait in a table of their own: the group has a state and no place
        place = StartPlace(0, 0, None) if rows else (yield from self.start_of(topic, start, now))
        bit = (yield from self.take_bit(topic)) if topic.topic.tracking == "bitmap" else None
        inserted = yield self.sql["topic.group.insert"].bind(
            topic=topic.id,
            name=name,
            ordered=options.ordered,
            bit=bit,
            since=place.since,
            first=place.first,
            start=_words(start),
            base=place.base,
            now=now,
            **_bound(options),
        )
        group_id = inserted.rows[0][0]
        if not rows:
            yield self.sql["topic.group.cursors"].bind(id=group_id, shards=topic.topic.shards, base=place.base, now=now)
            yield from self.promise(topic.id, place.base, now)
        yield self.sql["topic.group.count"].bind(topic=topic.id)
        return (yield from self._group_by_id(group_id))

    def promise(self, topic_id: int, tick: int, now: datetime | None) -> Op[None]:
        """Somebody is to have what that tick had not seen. Needs the topic row's lock."""
        yield self.sql["topic.group.promise"].bind(topic=topic_id, tick=tick, now=now)

    def _take_options(self, group: GroupRow, options: GroupOptions) -> Op[GroupRow]:
        if options.ordered != group.ordered:
            kept = "in order" if group.ordered else "in any order"
            raise ConfigError(
                f"group {group.name!r} of topic {group.topic!r} reads {kept}; join it with ordered={group.ordered}, or "
                "cancel it and subscribe again"
            )
        yield self.sql["topic.group.options"].bind(id=group.id, **_bound(options))
        if group.ordered and group.on_exhausted == "park" != options.on_exhausted:
            yield self.sql["topic.parked.lock"].bind(group=group.id)
            yield self.sql["topic.parked.free"].bind(group=group.id)
        return (yield from self._group_by_id(group.id))

    def start_of(self, topic: TopicRow, start: Start, now: datetime | None) -> Op[StartPlace]:
        """The place that a start means now: a tick is made for `latest`. Needs a transaction."""
        match start.kind:
            case "latest":
                return StartPlace((yield from self._tick_now(topic, now)), 0, None)
            case "earliest":
                first = 0
                if start.limit is not None:
                    last = yield self.log(topic.id)["topic.group.last_number"].bind()
                    first = max(0, last.rows[0][0] - start.limit + 1)
                return StartPlace(0, first, None)
            case "time":
                found = yield self.sql["topic.group.tick_before_time"].bind(topic=topic.id, since=start.since)
                return StartPlace(found.rows[0][0], 0, start.since)
            case "event":
                found = yield self.sql["topic.group.tick_before_event"].bind(topic=topic.id, event=start.event)
                return StartPlace(found.rows[0][0], start.event or 0, None)
            case "tick":
                found = yield self.sql["topic.group.has_tick"].bind(topic=topic.id, tick=start.tick)
                if not found.rows:
                    raise ConfigError(f"topic {topic.topic.name!r} has no tick {start.tick} (any more); use a time")
                return StartPlace(found.rows[0][0], 0, None)

    def _tick_now(self, topic: TopicRow, now: datetime | None) -> Op[int]:
        return (yield from self.tick(topic, now, wait=True, force=True)) or 0

    # -- bits -------------------------------------------------------------------------------------

    def take_bit(self, topic: TopicRow) -> Op[int]:
        """A bit that no group has and no mark refers to. Needs the topic row's lock, and comes after the group's start
        tick: an event with the old owner's bit that this cannot see yet has not been seen by the tick either."""
        free = yield self.sql["topic.group.free_bit"].bind(topic=topic.id)
        if free.rows[0][0] is not None:
            return int(free.rows[0][0])
        old = yield self.sql["topic.group.cancelled_bits"].bind(topic=topic.id)
        for group_id, bit in old.rows:
            if not (yield from self._bit_in_use(topic.id, bit)):
                yield self.sql["topic.group.drop_bit"].bind(id=group_id)
                return int(bit)
        waits = f", {len(old.rows)} of them by cancelled groups that events still name" if old.rows else ""
        raise TooManyGroups(
            f"topic {topic.topic.name!r} is tracked by bitmap, which has room for {BITS} groups; all are taken{waits}. "
            "Cancel a group, or move the topic to tracking='acks' or tracking='offset', which have no limit"
        )

    def _bit_in_use(self, topic_id: int, bit: int) -> Op[bool]:
        used = yield self.log(topic_id)["topic.group.bit_in_use"].bind(bit=bit)
        return bool(used.rows[0][0])

    # -- looking ----------------------------------------------------------------------------------

    def group(self, topic: str, name: str) -> Op[GroupRow | None]:
        """The live one; if there is none, the last that was cancelled."""
        found = yield self.sql["topic.group.find"].bind(topic=topic, name=name, id=None)
        return self._group_row(found.rows[-1]) if found.rows else None

    def groups(self, topic: str | None = None) -> Op[list[GroupRow]]:
        found = yield self.sql["topic.group.find"].bind(topic=topic, name=None, id=None)
        return [self._group_row(row) for row in found.rows]

    def _group_by_id(self, group_id: int) -> Op[GroupRow]:
        found = yield self.sql["topic.group.find"].bind(topic=None, name=None, id=group_id)
        if not found.rows:
            raise NotFound("group", str(group_id), f"group {group_id} is gone; it was cancelled and cleaned up")
        return self._group_row(found.rows[0])

    def _group_row(self, row: Sequence[Any]) -> GroupRow:
        times = (at and self.from_time(at) for at in (row[8], row[16], row[20], row[21]))
        since, beat, state_at, created = times
        values: list[Any] = [*row[:8], since, *row[9:16], beat, *row[17:20], state_at, created, *row[22:]]
        return GroupRow(*values)

    # -- states -----------------------------------------------------------------------------------

    def apply(self, group: GroupRow, verb: Verb, reason: str, now: datetime | None) -> Op[GroupRow]:
        """What `life.MOVES` says, with all its effects, in one transaction; raises IllegalMove."""
        yield from self._lock_groups(group.topic_id)
        held = yield from self._group_by_id(group.id)
        return (yield from self._apply(held, verb, reason, now))

    def _apply(self, held: GroupRow, verb: Verb, reason: str, now: datetime | None) -> Op[GroupRow]:
        """Needs the topic row's lock, under which the group was read."""
        was, to = held.condition, MOVES[verb][held.condition]
        if to is None:
            wanted = next((state for state, towards in TOWARDS.items() if towards == verb), verb)
            raise IllegalMove(held.topic, held.name, held.state, wanted, reachable(was))
        if to == was:
            return held
        yield self.sql["topic.group.set_state"].bind(
            id=held.id, state=state_of(to), reason=reason, stalled=to == "stalled", now=now
        )
        changes = effects(was, to)
        if "leave" in changes:
            yield self.sql["topic.group.drop_cursors"].bind(id=held.id)
            yield self.sql["topic.group.drop_ranges"].bind(id=held.id)
            yield self.sql["topic.group.end_promise"].bind(topic=held.topic_id, now=now)
        if "fence" in changes:
            yield self.sql["topic.group.fence_ranges"].bind(id=held.id, now=now)
            yield self.sql["topic.group.fence_parked"].bind(id=held.id, now=now)
        if "require again" in changes:
            yield from self._require_again(held, now)
        yield self.sql["topic.group.count"].bind(topic=held.topic_id)
        return (yield from self._group_by_id(held.id))

    def _require_again(self, group: GroupRow, now: datetime | None) -> Op[None]:
        """A backfill that waits for somebody to do it: members, consumers and operators go on with it."""
        found = yield self.sql["topic.group.tracking"].bind(topic=group.topic_id)
        if found.rows[0][0] in ("bitmap", "acks"):
            yield self.log(group.topic_id)["topic.backfill.again"].bind(group=group.id, now=now)

    def set_state(self, group: GroupRow, state: GroupState, reason: str, now: datetime | None) -> Op[GroupRow]:
        """The verb that leads to this state."""
        return (yield from self.apply(group, TOWARDS[state], reason, now))

    def _lock_groups(self, topic_id: int) -> Op[None]:
        yield self.sql["topic.group.lock_topic"].bind(topic=topic_id)


def _bound(options: GroupOptions) -> dict[str, Any]:
    return {
        "max_attempts": options.max_attempts,
        "on_exhausted": options.on_exhausted,
        "interval": options.heartbeat_interval,
        "timeout": options.heartbeat_timeout,
    }


def _words(start: Start) -> str:
    """For people: where it began."""
    if start.kind == "earliest" and start.limit is not None:
        return f"earliest, last {start.limit}"
    at = {"time": start.since, "event": start.event, "tick": start.tick}
    return f"{start.kind} {at[start.kind]}" if start.kind in at else start.kind
