"""Groups that died, stand still, or are long gone."""

from __future__ import annotations

import logging
from datetime import timedelta

from ..facts import Detected
from ..store.topics import TopicRow
from .context import JobContext
from .report import Report

log = logging.getLogger("relaybox")
RELEASE = 10_000  # open events per transaction
WINDOWS = 10  # such transactions per group and run, to look for acks that are missing


class Groups:
    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._looked: dict[int, int] = {}  # by group: open events up to this one were looked at

    async def detect(self) -> Report:
        """Find the dead, and take everybody who is not alive off the open events: those of earlier runs too, so that
        whatever broke off is finished by the next."""
        context, report = self._context, Report()
        start = context.clock.monotonic()
        died = []
        for topic_id in await context.read(context.store.to_check(context.now)):
            for check in await context.fenced(context.store.check_groups(topic_id, context.now)):
                if check.died:
                    died.append(f"{check.topic}/{check.group}")
                    name = "group_stalled" if check.stalled else "group_dead"
                    await context.alerts.happened(name, check.topic, check.group, check.reason)
        report.groups_died = len(died)
        for topic in await context.topics():
            report.released += await self._release(topic)
            report.put_forward += await self._put_forward(topic, report)
            await self._catch_up(topic)
        report.members_reaped = await self._members()
        if died or report.released:
            took = context.clock.monotonic() - start
            log.warning("dead groups: %s; %d open events released, %.2f s", ", ".join(died), report.released, took)
        context.observers(Detected(report.groups_died, report.released))
        return report

    async def _release(self, topic: TopicRow) -> int:
        context, total = self._context, 0
        while topic.topic.tracking in ("bitmap", "acks") and not context.stopping:
            changed = await context.fenced(context.store.release(topic, context.now, limit=RELEASE))
            total += changed
            if not changed:
                break
        return total

    async def _catch_up(self, topic: TopicRow) -> None:
        """What a group has left behind without an ack (its member did not know yet that the topic has marks) would stay
        open for good."""
        context = self._context
        if topic.topic.tracking not in ("bitmap", "acks") or topic.moving is not None:
            return
        for group in await context.read(context.store.groups(topic.topic.name)):
            after: int | None = self._looked.pop(group.id, 0)
            for _ in range(WINDOWS if group.state in ("active", "paused") else 0):
                after = await context.fenced(context.store.catch_up(topic, group, after or 0, context.now))
                if after is None or context.stopping:
                    break
            if after:
                self._looked[group.id] = after

    async def _put_forward(self, topic: TopicRow, report: Report) -> int:
        context = self._context
        if topic.topic.tracking == "rows":
            return 0
        zombies = await context.fenced(context.store.put_forward(topic, context.now))
        for group_id, name in {zombie.group_id: zombie.group for zombie in zombies}.items():
            while await context.fenced(context.store.forgive(topic, group_id, RELEASE, context.now)):
                pass
            shards = [zombie for zombie in zombies if zombie.group_id == group_id]
            still, count = topic.topic.zombie_ttl, len(shards)
            text = f"did not move for {still}: {count} shard(s) put past what is beyond the retention"
            await context.alerts.happened("group_put_forward", topic.topic.name, name, text)
            lost = sum(zombie.lost for zombie in shards)
            if lost:
                report.lost += await context.tell_lost(topic, {name: lost}, "were passed over: it did not move")
        return len(zombies)

    async def _members(self) -> int:
        context = self._context
        for member in await context.fenced(
            context.store.unhealthy_members(context.upkeep.unhealthy_after, context.now)
        ):
            text = f"{member.name} gave no sign for {member.silent.total_seconds():.0f} s"
            await context.alerts.happened("consumer_unhealthy", member.topic, member.group, text)
        if not context.upkeep.reap_members:
            return 0
        reaped = await context.fenced(context.store.reap_members(context.upkeep.reap_after, context.now))
        for member in reaped:
            text = f"{member.name} gave no sign for {member.silent}; what it had taken is free"
            await context.alerts.happened("consumer_reaped", member.topic, member.group, text)
        return len(reaped)

    async def forget(self) -> Report:
        """Dead and cancelled groups after their time, one transaction each."""
        context, report = self._context, Report()
        kept: timedelta = context.upkeep.group_retention
        for topic in await context.topics():
            for group in await context.read(context.store.old_groups(topic, kept, context.now)):
                if not group.pending:
                    report.groups_forgotten += await context.fenced(
                        context.store.forget_group(topic, group.id, kept, context.now)
                    )
        return report
