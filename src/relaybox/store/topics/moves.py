"""Moving a topic between offset, bitmap and acks, step by step. See sql/move.sql.

    build    marks for what there is, while writers go on without
    switch   one short transaction: writers are told by the version, and write marks
    closing  until the transactions under way at the switch have ended (then barrier, late: those that nearly missed it)
    rest     marks for what was written since the move began and has none (then prune: for what is gone, none)
    settle   what groups have left behind is noted as done
    leave    the way back: writers are told first, then the marks go

Groups keep their places: cursors, ranges and parked events are the same under all three.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from ...errors import ConfigError
from ...op import Op
from ...topic import Semantics, Tracking
from . import TopicRow
from .queue_moves import QueueMoveOps

WINDOW = 5_000  # numbers per step


class MoveOps(QueueMoveOps):
    def begin_move(
        self, name: str, to: Tracking, now: datetime | None, *, ordered: bool = False
    ) -> Op[dict[str, Any] | None]:
        """What is to be done, noted; of a move that was begun already, how far it is. None: nothing to do."""
        topic = yield from self._moving_topic(name)
        if topic.moving is not None:
            if topic.moving["to"] != to:
                raise ConfigError(
                    f"topic {name!r} is on its way to {topic.moving['to']!r}; finish that move or roll it back first"
                )
            return topic.moving
        if topic.topic.tracking == to:
            return None
        was = topic.topic.tracking
        ways = {("rows", "offset"): "make_log", ("offset", "rows"): "make_rows"}
        first = ways.get((was, to), "prepare" if was == "offset" else "leave")
        moving = {"from": was, "to": to, "phase": first, "made": 0, "ordered": ordered}
        yield from self._note(topic, moving, now)
        return moving

    def move_step(self, name: str, now: datetime | None) -> Op[dict[str, Any] | None]:
        """One step. What `moving` is then; None: the move is over. `waits` in it: nothing could be done yet. Needs a
        transaction."""
        topic = yield from self._moving_topic(name)
        if topic.moving is None:
            return None
        moving: dict[str, Any] | None = {**topic.moving, "waits": False}
        step = getattr(self, f"_move_{topic.moving['phase']}")
        moving = yield from step(topic, moving, now)
        yield from self._note(topic, moving, now)
        return moving

    def rename_semantics(self, name: str, semantics: Semantics) -> Op[None]:
        """Of a topic that is tracked by offset: a queue has the same tables, with one group. Needs a transaction."""
        topic = yield from self._moving_topic(name)
        assert topic.topic.tracking == "offset"
        yield self.sql["topic.move.semantics"].bind(topic=topic.id, semantics=semantics)

    def cancel_move(self, name: str, now: datetime | None) -> Op[bool]:
        """Back to where it was. Refused once writers have been told."""
        topic = yield from self._moving_topic(name)
        if topic.moving is None:
            return False
        phase = topic.moving["phase"]
        if phase not in ("leave", "prepare", "build", "switch", "make_log", "cut_rows", "make_rows", "cut_log"):
            raise ConfigError(
                f"topic {name!r} is past the switch to {topic.moving['to']!r}; finish the move, then move it back"
            )
        if phase in ("build", "switch"):
            yield from self._without_marks(topic)
        elif phase in ("cut_rows", "cut_log"):
            yield from self._unmake(topic, phase, now)
        yield from self._note(topic, None, now)
        return True

    # -- away from marks ----------------------------------------------------------------------------

    def _move_leave(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        told = yield self.sql["topic.move.switch"].bind(topic=topic.id, tracking="offset")
        return {**moving, "phase": "left", "xid": told.rows[0][0]}

    def _move_left(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any] | None]:
        if not (yield from self._over(moving)):
            return {**moving, "waits": True}
        yield self.sql["topic.move.patience"].bind()
        if moving["to"] == "offset":
            yield self.log(topic.id)["topic.move.empty"].bind()
            if moving["from"] == "acks":
                yield self.log(topic.id)["topic.move.empty_acks"].bind()
            yield self.sql["topic.move.no_bits"].bind(topic=topic.id)
            yield self.sql["topic.group.count"].bind(topic=topic.id)
            return None
        yield from self._without_marks(topic)
        return {**moving, "phase": "prepare"}

    def _without_marks(self, topic: TopicRow) -> Op[None]:
        yield from self.drop_marks(topic.id)
        yield self.sql["topic.move.no_bits"].bind(topic=topic.id)
        yield self.sql["topic.group.count"].bind(topic=topic.id)

    # -- towards marks ------------------------------------------------------------------------------

    def _move_prepare(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        """Whatever the newest tick has not seen is looked for again after the switch."""
        yield from self.drop_marks(topic.id)
        yield from self.make_marks(topic.id, moving["to"])
        yield from self._give_bits(topic, moving)
        seen = yield self.sql["topic.move.tick"].bind(topic=topic.id)
        floor, late = seen.rows[0]
        after, until = yield from self._extent_of_log(topic)
        begin = {"first": after, "after": after, "until": until, "floor": floor, "late": list(late)}
        return {**moving, "phase": "build", **begin}

    def _give_bits(self, topic: TopicRow, moving: dict[str, Any]) -> Op[None]:
        if moving["to"] != "bitmap":
            return
        without = yield self.sql["topic.move.without_bit"].bind(topic=topic.id)
        for (group,) in without.rows:
            bit = yield from self.take_bit(topic)
            yield self.sql["topic.move.give_bit"].bind(group=group, bit=bit)
        yield self.sql["topic.group.count"].bind(topic=topic.id)

    def _extent_of_log(self, topic: TopicRow) -> Op[tuple[int, int]]:
        extent = yield self.log(topic.id)["topic.move.extent"].bind(shards=_shards(topic))
        return extent.rows[0][0], extent.rows[0][1]

    def _move_build(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        moving = yield from self._mark_window(topic, moving)
        return moving if moving["after"] < moving["until"] else {**moving, "phase": "switch"}

    def _mark_window(self, topic: TopicRow, moving: dict[str, Any]) -> Op[dict[str, Any]]:
        upto = min(moving["after"] + WINDOW, moving["until"])
        made = yield from self._mark(topic, moving, moving["after"], upto)
        return {**moving, "after": upto, "made": moving["made"] + made}

    def _mark(self, topic: TopicRow, moving: dict[str, Any], after: int, upto: int) -> Op[int]:
        query = self.later(topic, "topic.move.mark", log_living="required" if moving["to"] == "bitmap" else "audience")
        made = yield query.bind(topic=topic.id, shards=_shards(topic), after=after, upto=upto)
        return int(made.rows[0][0])

    def _move_switch(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        yield from self._give_bits(topic, moving)
        told = yield self.sql["topic.move.switch"].bind(topic=topic.id, tracking=moving["to"])
        return {**moving, "phase": "closing", "xid": told.rows[0][0]}

    def _move_closing(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        if not (yield from self._over(moving)):
            return {**moving, "waits": True}
        return {**moving, "phase": "barrier"}

    def _move_barrier(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        """A statement that began before the switch may have got its transaction's number after it. It has a lock on the
        log: once nobody has, none is left."""
        yield self.sql["topic.move.patience"].bind()
        yield self.log(topic.id)["topic.move.barrier"].bind()
        return {**moving, "phase": "late"}

    def _move_late(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        late = yield self.log(topic.id)["topic.move.late"].bind(xids=moving["late"], shards=_shards(topic))
        made = 0
        for (seq,) in late.rows:
            made += yield from self._mark(topic, moving, seq - 1, seq)
        _, until = yield from self._extent_of_log(topic)
        return {**moving, "phase": "rest", "after": moving["floor"], "until": until, "made": moving["made"] + made}

    def _move_rest(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        moving = yield from self._mark_window(topic, moving)
        if moving["after"] < moving["until"]:
            return moving
        return {**moving, "phase": "prune", "after": moving["first"]}

    def _move_prune(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        """Events that were cleaned up after their mark was made, by somebody who did not know of marks."""
        upto = min(moving["after"] + WINDOW, moving["until"])
        yield self.log(topic.id)["topic.move.prune"].bind(shards=_shards(topic), after=moving["after"], upto=upto)
        if upto < moving["until"]:
            return {**moving, "after": upto}
        groups = yield self.sql["topic.move.groups"].bind(topic=topic.id)
        _, until = yield from self._extent_of_log(topic)  # not what writers add meanwhile, who may be quicker
        return {**moving, "phase": "settle", "after": 0, "until": until, "groups": [row[0] for row in groups.rows]}

    def _move_settle(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any] | None]:
        if not moving["groups"]:
            return None
        group = yield from self._group_by_id(moving["groups"][0])
        after = None
        if group.state != "cancelled":
            after = yield from self.catch_up(topic, group, moving["after"], now, limit=WINDOW, upto=moving["until"])
        if after is not None:
            return {**moving, "after": after}
        return {**moving, "after": 0, "groups": moving["groups"][1:]}

    # -- common -------------------------------------------------------------------------------------

    def _over(self, moving: dict[str, Any]) -> Op[bool]:
        over = yield self.sql["topic.move.over"].bind(xid=moving["xid"])
        return bool(over.rows[0][0])

    def _moving_topic(self, name: str) -> Op[TopicRow]:
        topic = yield from self.topic(name)
        if topic is None:
            raise ConfigError(f"topic {name!r} is not configured")
        yield self.sql["topic.move.lock"].bind(topic=topic.id)
        locked = yield from self.topic(name)
        assert locked is not None
        return locked

    def _note(self, topic: TopicRow, moving: dict[str, Any] | None, now: datetime | None) -> Op[None]:
        text = None if moving is None else json.dumps(moving)
        yield self.sql["topic.move.note"].bind(topic=topic.id, moving=text, now=now)


def _shards(topic: TopicRow) -> list[int]:
    return list(range(topic.topic.shards))
