"""`relaybox maintain`: keep topics in order until a signal, or once."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from ..facts import Observer
from ..maintenance import ALL_JOBS, Maintainer, Report, survey
from ..settings import Settings, TopicSettings
from ..store.topics import open_topic_store
from ..words import did_you_mean
from .connect import Target, target_of
from .logs import LogFormat, LogLevel, log_to_stderr
from .output import age, console, emit, say, table
from .run import ListenAddress, metrics_of, serve

PRESETS = {
    "default": TopicSettings,
    "low": TopicSettings.for_low_throughput,
    "high": TopicSettings.for_high_throughput,
    "critical": TopicSettings.for_critical_system,
    "incremental": TopicSettings.incremental,
}


def maintain(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="run every job once, then end (for cron)")] = False,
    job: Annotated[list[str] | None, typer.Option(help=f"only this job: {', '.join(ALL_JOBS)}")] = None,
    preset: Annotated[str, typer.Option(help=f"how often and how much: {', '.join(PRESETS)}")] = "default",
    look: Annotated[bool, typer.Option("--survey", help="only show open alerts, orphaned and old groups")] = False,
    listen: ListenAddress = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON; with --once")] = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Keep topics in order: ticks, partitions, cleanup, dead groups, alerts. Any number may run; one of them works."""
    if json and not (once or look):
        raise typer.BadParameter("--json goes with --once or --survey")
    if preset not in PRESETS:
        hint = did_you_mean(preset, PRESETS)
        raise typer.BadParameter(f"expected --preset to be one of {', '.join(PRESETS)}, got {preset!r}{hint}")
    log_to_stderr(log_level, log_format)
    target = target_of(context)
    settings = Settings.load(target.config, base=Settings(topics=PRESETS[preset]()))
    if look:
        _survey(target, settings.topics.group_retention, json=json)
        return
    observers: list[Observer] = []
    metrics, _ = metrics_of(listen, observers)
    with target.outbox() as box:
        maintainer = Maintainer(box, jobs=job or ALL_JOBS, settings=settings, observers=observers)
        if once:
            maintainer.once()
            _show(maintainer.report, json=json)
        else:
            asyncio.run(serve([maintainer], listen=listen, token=settings.listen.bearer(), metrics=metrics))


def _survey(target: Target, group_retention: timedelta, *, json: bool) -> None:
    with closing(target.database()) as database:
        store = open_topic_store(database.dialect, target.tables)
        database.run(store.verify_schema(), tx=False)
        found = database.run(survey(store, group_retention, None), tx=False)
    if json:
        emit(
            {
                "alerts": [alert._asdict() for alert in found.alerts],
                "orphans": [
                    dict(zip(("topic", "group", "state", "silent"), row, strict=True)) for row in found.orphans
                ],
                "old_groups": [group._asdict() for group in found.old_groups],
                "mismatched": found.mismatched,
            }
        )
        return
    rows: list[tuple[object, ...]] = [(a.name, a.topic, a.group, a.text) for a in found.alerts]
    rows += [
        ("orphan", topic, group, f"{state}, silent for {age(since)}") for topic, group, state, since in found.orphans
    ]
    rows += [
        ("old group", group.topic, group.name, f"{group.state}{', something is parked' if group.pending else ''}")
        for group in found.old_groups
    ]
    rows += [
        ("mismatch", topic, "", f"{count} open events wait for nobody alive")
        for topic, count in found.mismatched.items()
    ]
    console().print(table(None, ("what", "topic", "group", ""), rows))


def _show(report: Report, *, json: bool) -> None:
    if json:
        emit(asdict(report))
    elif not report.leading:
        say("another maintainer is at work; nothing was done")
    else:
        done = {name: value for name, value in asdict(report).items() if isinstance(value, int) and value}
        done.pop("leading", None)
        say(", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in done.items()) or "nothing to do")
