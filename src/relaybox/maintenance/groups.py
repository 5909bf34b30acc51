"""Groups that died, stand still, or are long gone."""

from __future__ import annotations

import logging
from datetime import timedelta

from ..facts import Detected
from ..store.topics import TopicRow
from .report import Report
from .work import Work

log = logging.getLogger("relaybox")
RELEASE = 10_000  # open events per transaction
WINDOWS = 10  # such transactions per group and run, to look for acks that are missing


class Groups:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._looked: dict[int, int] = {}  # by group: open events up to this one were looked at

    async def detect(self) -> Report:
        """Find the dead, and take everybody who is not alive off the open events: those of earlier runs too, so that
        whatever broke off is finished by the next."""
        work, report = self._work, Report()
        start = work.clock.monotonic()
        died = []
        for topic_id in await work.read(work.store.to_check(work.now)):
            for check in await work.fenced(work.store.check_groups(topic_id, work.now)):
                if check.died:
                    died.append(f"{check.topic}/{check.group}")
                    name = "group_stalled" if check.stalled else "group_dead"
                    await work.alerts.happened(name, check.topic, check.group, check.reason)
        report.groups_died = len(died)
        for topic in await work.topics():
            report.released += await self._release(topic)
            report.put_forward += await self._put_forward(topic, report)
            await self._catch_up(topic)
        report.members_reaped = await self._members()
        if died or report.released:
            took = work.clock.monotonic() - start
            log.warning("dead groups: %s; %d open events released, %.2f s", ", ".join(died), report.released, took)
        work.observers(Detected(report.groups_died, report.released))
        return report

    async def _release(self, topic: TopicRow) -> int:
        work, total = self._work, 0
        while topic.topic.tracking in ("bitmap", "acks") and not work.stopping:
            changed = await work.fenced(work.store.release(topic, work.now, limit=RELEASE))
            total += changed
            if not changed:
                break
        return total

    async def _catch_up(self, topic: TopicRow) -> None:
        """What a group has left behind without an ack (its member did not know yet that the topic has marks) would stay
        open for good."""
        work = self._work
        if topic.topic.tracking not in ("bitmap", "acks") or topic.moving is not None:
            return
        for group in await work.read(work.store.groups(topic.topic.name)):
            after: int | None = self._looked.pop(group.id, 0)
            for _ in range(WINDOWS if group.state in ("active", "paused") else 0):
                after = await work.fenced(work.store.catch_up(topic, group, after or 0, work.now))
                if after is None or work.stopping:
                    break
            if after:
                self._looked[group.id] = after

    async def _put_forward(self, topic: TopicRow, report: Report) -> int:
        work = self._work
        if topic.topic.tracking == "rows":
            return 0
        zombies = await work.fenced(work.store.put_forward(topic, work.now))
        for group_id, name in {zombie.group_id: zombie.group for zombie in zombies}.items():
            while await work.fenced(work.store.forgive(topic, group_id, RELEASE, work.now)):
                pass
            shards = [zombie for zombie in zombies if zombie.group_id == group_id]
            still, count = topic.topic.zombie_ttl, len(shards)
            text = f"did not move for {still}: {count} shard(s) put past what is beyond the retention"
            await work.alerts.happened("group_put_forward", topic.topic.name, name, text)
            lost = sum(zombie.lost for zombie in shards)
            if lost:
                report.lost += await work.tell_lost(topic, {name: lost}, "were passed over: it did not move")
        return len(zombies)

    async def _members(self) -> int:
        work = self._work
        for member in await work.fenced(work.store.unhealthy_members(work.upkeep.unhealthy_after, work.now)):
            text = f"{member.name} gave no sign for {member.silent.total_seconds():.0f} s"
            await work.alerts.happened("consumer_unhealthy", member.topic, member.group, text)
        if not work.upkeep.reap_members:
            return 0
        reaped = await work.fenced(work.store.reap_members(work.upkeep.reap_after, work.now))
        for member in reaped:
            text = f"{member.name} gave no sign for {member.silent}; what it had taken is free"
            await work.alerts.happened("consumer_reaped", member.topic, member.group, text)
        return len(reaped)

    async def forget(self) -> Report:
        """Dead and cancelled groups after their time, one transaction each."""
        work, report = self._work, Report()
        kept: timedelta = work.upkeep.group_retention
        for topic in await work.topics():
            for group in await work.read(work.store.old_groups(topic, kept, work.now)):
                if not group.pending:
                    report.groups_forgotten += await work.fenced(
                        work.store.forget_group(topic, group.id, kept, work.now)
                    )
        return report
