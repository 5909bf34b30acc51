"""Moving a queue between rows and a log, step by step. See sql/queue_move.sql.

make     the new tables; the log's one group is paused
cut      one short transaction that waits for those that write: from then on all write to the new table
drain    what waits is taken from the old table and put into the new one, each batch in one transaction
close    the old table goes, and the group reads
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from ...op import Op
from ..outbox.postgres import PostgresStore
from . import QUEUE, GroupOptions, GroupRow, Start, TopicRow
from .catalog import CatalogOps
from .checks import CheckOps

WINDOW = 2_000  # events per step


class QueueMoveOps(CatalogOps, CheckOps):
    # -- rows to log --------------------------------------------------------------------------------

    def _move_make_log(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        yield from self.make_log(topic)
        group = yield from self.group(topic.topic.name, QUEUE)
        if group is not None:  # of the rows; that of the log has a place
            yield from self.set_state(group, "cancelled", "the queue is moved to a log", now)
        yield from self._paused_group(topic, moving, now)
        return {**moving, "phase": "cut_rows"}

    def _paused_group(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[GroupRow]:
        group = yield from self.group(topic.topic.name, QUEUE)
        if group is None or group.state == "cancelled":
            logged = topic._replace(topic=replace(topic.topic, tracking="offset"))
            options = GroupOptions(ordered=moving["ordered"])
            group, _ = yield from self.subscribe(logged, QUEUE, Start("earliest"), options, now)
        if group.state == "active":
            group = yield from self.set_state(group, "paused", "the queue is moved", now)
        return group

    def _move_cut_rows(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        yield self.sql["topic.move.patience"].bind()
        yield self.log(topic.id)["topic.queue.lock_rows"].bind()
        yield self.log(topic.id)["topic.queue.close_rows"].bind()
        yield self.log(topic.id)["topic.queue.numbers_to_log"].bind()
        yield self.sql["topic.move.switch"].bind(topic=topic.id, tracking="offset")
        yield self.sql["topic.catalog.named"].bind(topic=topic.id, relation=self.tables.part(f"log_{topic.id}"))
        return {**moving, "phase": "drain_rows"}

    def _move_drain_rows(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        rows = PostgresStore(self.tables.queue(topic.id))
        yield from rows.take_over(None, now)
        yield from rows._expire((), now, ordered=True, orphans=True)  # batches that nobody has
        moved = yield from self._batch_to_log(topic, now)
        if moved:
            return {**moving, "made": moving["made"] + moved}
        waiting, claimed, dead = (yield self.log(topic.id)["topic.queue.left"].bind()).rows[0]
        if waiting or claimed or dead:
            return {**moving, "waits": True}
        return {**moving, "phase": "close_rows"}

    def _batch_to_log(self, topic: TopicRow, now: datetime | None) -> Op[int]:
        group = yield from self.group(topic.topic.name, QUEUE)
        assert group is not None
        moved = 0
        for name in ("topic.queue.to_log", "topic.queue.dead_to_log"):
            batch = yield self.log(topic.id)[name].bind(
                group=group.id, shards=topic.topic.shards, limit=WINDOW, now=now
            )
            moved += batch.rows[0][0]
        return moved

    def _move_close_rows(
        self, topic: TopicRow, moving: dict[str, Any], now: datetime | None
    ) -> Op[dict[str, Any] | None]:
        """A member may have given something back meanwhile: look once more, alone."""
        log = self.log(topic.id)
        yield self.sql["topic.move.patience"].bind()
        yield log["topic.queue.lock_rows"].bind()
        if any((yield log["topic.queue.left"].bind()).rows[0]):
            return {**moving, "phase": "drain_rows"}
        yield from self.drop_queue(topic.id)
        yield from self._tick_now(topic, now)  # what was moved has old numbers, which no news would be made of
        yield from self._read_on(topic, "the queue was moved", now)
        return None

    def _read_on(self, topic: TopicRow, reason: str, now: datetime | None) -> Op[None]:
        group = yield from self.group(topic.topic.name, QUEUE)
        if group is not None and group.state == "paused":
            yield from self.set_state(group, "active", reason, now)

    # -- log to rows --------------------------------------------------------------------------------

    def _move_make_rows(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        yield from PostgresStore(self.tables.queue(topic.id)).migrate()
        yield from self._paused_group(topic, moving, now)
        return {**moving, "phase": "cut_log"}

    def _move_cut_log(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        log = self.log(topic.id)
        yield self.sql["topic.move.patience"].bind()
        yield log["topic.queue.lock_log"].bind()
        yield log["topic.queue.close_log"].bind()
        yield log["topic.queue.numbers_to_rows"].bind()
        yield self.sql["topic.move.switch"].bind(topic=topic.id, tracking="rows")
        yield self.sql["topic.catalog.named"].bind(topic=topic.id, relation=self.tables.queue(topic.id).event)
        after, until = (yield log["topic.move.extent"].bind(shards=list(range(topic.topic.shards)))).rows[0]
        return {**moving, "phase": "drain_log", "after": after, "until": until}

    def _move_drain_log(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[dict[str, Any]]:
        group = yield from self.group(topic.topic.name, QUEUE)
        assert group is not None
        if (yield self.sql["topic.queue.fence"].bind(group=group.id, now=now)).rows[0][0]:
            return {**moving, "waits": True}
        log, upto = self.log(topic.id), min(moving["after"] + WINDOW, moving["until"])
        moved = yield log["topic.queue.to_rows"].bind(
            topic=topic.id,
            group=group.id,
            shards=list(range(topic.topic.shards)),
            after=moving["after"],
            upto=upto,
            now=now,
        )
        parked = yield log["topic.queue.parked_to_rows"].bind(group=group.id, limit=WINDOW)
        moving = {**moving, "after": upto, "made": moving["made"] + moved.rows[0][0] + parked.rows[0][0]}
        ended = upto == moving["until"] and not parked.rows[0][0]
        return {**moving, "phase": "close_log"} if ended else moving

    def _move_close_log(self, topic: TopicRow, moving: dict[str, Any], now: datetime | None) -> Op[None]:
        yield self.sql["topic.move.patience"].bind()
        yield self.log(topic.id)["topic.queue.lock_log"].bind()
        yield from self._drop_log(topic, "the queue was moved to rows", now)

    def _drop_log(self, topic: TopicRow, reason: str, now: datetime | None) -> Op[None]:
        group = yield from self.group(topic.topic.name, QUEUE)
        if group is not None:
            yield from self.set_state(group, "cancelled", reason, now)
        yield self.log(topic.id)["topic.log.drop"].bind()
        yield self.sql["topic.queue.no_ticks"].bind(topic=topic.id)

    def _unmake(self, topic: TopicRow, phase: str, now: datetime | None) -> Op[None]:
        """Back, before anybody was told."""
        if phase == "cut_log":
            yield from self.drop_queue(topic.id)
            yield from self._read_on(topic, "the move was rolled back", now)
        else:
            yield from self._drop_log(topic, "the move was rolled back", now)
