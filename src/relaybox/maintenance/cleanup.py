"""What is old and done with goes: rows in batches, partitions as a whole, ticks that nobody needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from .. import faults
from ..errors import StoreBusy
from ..facts import Cleaned
from ..op import Op, T
from ..outbox.purge import PurgePlan
from ..store.outbox import open_store
from ..store.topics import TopicRow
from ..store.topics.maintenance import AlertCondition, Part
from .context import JobContext
from .report import Report

BACKLOG_LIMIT = 1_000_000
SLOW = 10.0  # seconds of one run
THIN_PAGE = 10_000
DELTAS = 10  # whose rows go in one transaction
TRIES = 5  # times a change of partitions asks for its locks in one run


class Cleanup:
    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._written: dict[int, int] = {}
        self._begun: dict[int, float] = {}  # when each topic had its last turn
        self._cleaned_at: float | None = None
        self._dropped = 0

    # -- rows -------------------------------------------------------------------------------------

    async def clean(self) -> Report:
        """Every topic in turn, the one that waited longest first; what does not fit into the budget waits."""
        context, report = self._context, Report()
        start = context.clock.monotonic()
        deadline = start + context.upkeep.cleanup_budget.total_seconds()
        unfinished: list[TopicRow] = []
        for topic in sorted(await context.topics(), key=lambda topic: self._begun.get(topic.id, 0.0)):
            if context.clock.monotonic() <= deadline:
                self._begun[topic.id] = context.clock.monotonic()
            sweep = self._queue if topic.topic.tracking == "rows" else self._log
            if not await sweep(topic, deadline, report):
                unfinished.append(topic)
        if await context.read(context.feeds.there()):
            for topic in await context.topics():
                if topic.topic.semantics == "pub_sub":
                    await self._chunks(topic, deadline, report)
        report.letters_purged = await self._letters()
        took = context.clock.monotonic() - start
        await self._judge(report, unfinished, took)
        return report

    async def _log(self, topic: TopicRow, deadline: float, report: Report) -> bool:
        context = self._context
        batch = min(context.upkeep.cleanup_batch, topic.topic.cleanup_batch)
        places = dict.fromkeys(range(topic.topic.shards), 0)
        lost = Counter[str]()
        try:
            while places:
                if context.stopping or context.clock.monotonic() > deadline:
                    return False
                faults.hit("purge.before")
                sweep = await context.fenced(context.store.sweep_log(topic, places, batch, context.now))
                faults.hit("purge.after")
                if sweep is None:
                    return False
                report.deleted += sweep.deleted
                lost.update(sweep.lost)
                places = sweep.places
                if places and context.upkeep.cleanup_pause:
                    await context.clock.sleep(context.upkeep.cleanup_pause.total_seconds())
            return True
        finally:
            report.lost += await context.tell_lost(topic, lost, "past their retention were deleted")

    async def _queue(self, topic: TopicRow, deadline: float, report: Report) -> bool:
        """A queue tracked by rows is an outbox; its dead letters stay."""
        context = self._context
        tables = context.store.tables.queue(topic.id)
        plan = PurgePlan(
            open_store("postgres", tables),
            context.clock.database_now(),
            retention=topic.topic.retention,
            dead_retention=None,
            batch_size=min(context.upkeep.cleanup_batch, topic.topic.cleanup_batch),
        )
        while plan.more:
            if context.stopping or context.clock.monotonic() > deadline:
                return False
            report.deleted += await context.fenced(plan.batch())
        return True

    async def _chunks(self, topic: TopicRow, deadline: float, report: Report) -> None:
        """The rows of deltas go after their events. A few at a time: each may have thousands of chunks."""
        context, gone, lost = self._context, DELTAS, Counter[str]()
        while gone == DELTAS and not context.stopping and context.clock.monotonic() <= deadline:
            gone, names = await context.fenced(context.feeds.sweep(topic.id, DELTAS))
            lost.update(names)
        report.lost += await context.tell_lost(topic, lost, "went with their rows, which no job said to have read")

    async def _letters(self) -> int:
        context, total = self._context, 0
        if context.upkeep.dead_retention is None:
            return 0
        while not context.stopping:
            op = context.store.purge_letters(context.upkeep.dead_retention, context.upkeep.cleanup_batch, context.now)
            gone = await context.fenced(op)
            total += gone
            if gone < context.upkeep.cleanup_batch:
                break
        return total

    async def _judge(self, report: Report, unfinished: list[TopicRow], took: float) -> None:
        """Whether the cleanup keeps pace with what is written."""
        context = self._context
        found: list[AlertCondition] = []
        backlog: dict[int, tuple[str, int]] = {}
        for topic in unfinished:
            if topic.topic.tracking != "rows":
                count = await context.read(context.store.backlog(topic, BACKLOG_LIMIT + 1, context.now))
                backlog[topic.id] = topic.topic.name, count
        report.backlog = sum(count for _, count in backlog.values())
        logs = [topic for topic in await context.topics() if topic.topic.tracking != "rows"]
        written = {topic.id: await context.read(context.store.written(topic)) for topic in logs}
        produced = sum(count - self._written[key] for key, count in written.items() if key in self._written)
        if report.backlog and self._cleaned_at is not None and report.deleted < produced:
            text = f"{report.deleted} events deleted while {produced} were written"
            found.append(AlertCondition("cleanup_behind", "", "", text))
        self._written, self._cleaned_at = written, context.clock.monotonic()
        for name, count in backlog.values():
            if count > BACKLOG_LIMIT:
                text = f"more than {BACKLOG_LIMIT:,} events could be deleted and are not"
                found.append(AlertCondition("cleanup_backlog", name, "", text))
        if took > SLOW:
            found.append(AlertCondition("cleanup_slow", "", "", f"a cleanup took {took:.0f} s"))
        await context.alerts.found(("cleanup_behind", "cleanup_backlog", "cleanup_slow"), found)
        dropped, self._dropped = self._dropped, 0
        context.backlog = report.backlog
        context.observers(Cleaned(report.deleted, dropped, took))

    # -- partitions -------------------------------------------------------------------------------

    async def partition(self) -> Report:
        context, report = self._context, Report()
        found: list[AlertCondition] = []
        for topic in await context.topics():
            if topic.topic.tracking == "rows":
                continue
            made = await self._make(topic, found)
            dropped = await self._drop(topic, found, report)
            report.partitions_made += made
            report.partitions_dropped += dropped
            self._dropped += dropped
        await context.alerts.found(("partition_late", "partition_blocked"), found)
        return report

    async def _make(self, topic: TopicRow, found: list[AlertCondition]) -> int:
        context, made = self._context, 0
        patience = context.upkeep.lock_timeout
        for part in await context.read(context.store.missing(topic, context.now)):
            new = await self._patiently(partial(context.store.make_part, topic, part, patience))
            made += bool(new)
            if new is None and part.start - context.clock.now() < part.end - part.start:
                text = f"partition {part.name} could not be made: something holds a lock on the log for long"
                found.append(AlertCondition("partition_late", topic.topic.name, "", text))
        return made

    async def _drop(self, topic: TopicRow, found: list[AlertCondition], report: Report) -> int:
        context, dropped = self._context, 0
        for part in await context.read(context.store.partitions(topic)):
            verdict = await context.read(context.store.verdict(topic, part, context.now))
            if context.stopping or not (verdict.aged or verdict.forced):
                break
            if not verdict.droppable:
                continue
            await self._unmark(topic, part)
            faults.hit("purge.before")
            lost = await context.read(context.store.lost_with(topic, part, verdict))
            drop = partial(context.store.drop_part, topic, part, lost, context.upkeep.lock_timeout, context.now)
            gone = await self._patiently(drop)
            faults.hit("purge.after")
            if gone is None:
                text = f"partition {part.name} could not be dropped: something holds a lock on the log for long"
                found.append(AlertCondition("partition_blocked", topic.topic.name, "", text))
                break
            dropped += gone[0].droppable
            report.lost += await context.tell_lost(topic, gone[1], f"were dropped with partition {part.name}")
        return dropped

    async def _unmark(self, topic: TopicRow, part: Part) -> None:
        context, batch = self._context, self._context.upkeep.cleanup_batch
        if topic.topic.tracking == "offset":
            return
        for shard in range(topic.topic.shards):
            after, seen = 0, batch
            while seen == batch:
                after, seen = await context.fenced(context.store.unmark(topic, part, shard, after, batch))

    async def _patiently(self, change: Callable[[], Op[T | None]]) -> T | None:
        """None: somebody held a lock every time."""
        for number in range(TRIES):
            with suppress(StoreBusy):
                done = await self._context.fenced(change())
                if done is not None:
                    return done
            await self._context.clock.sleep(0.05 * 2**number)
        return None

    # -- ticks ------------------------------------------------------------------------------------

    async def tick(self) -> Report:
        """Not fenced: a tick is always true, whichever process makes it."""
        context, report = self._context, Report()
        for topic in await context.topics():
            if topic.topic.tracking != "rows":
                made = await context.db.run(context.store.tick(topic, context.now), tx=False)
                report.ticks += made is not None
        return report

    async def thin(self) -> Report:
        context, report = self._context, Report()
        for topic in await context.topics():
            after: int | None = 0
            while after is not None and not context.stopping:
                gone, after = await context.fenced(context.store.thin_ticks(topic, after, THIN_PAGE, context.now))
                report.thinned += gone
        return report
