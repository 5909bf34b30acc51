"""`relaybox maintain`: keep topics in order until a signal, or once."""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import closing
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer

from ..facts import Observer
from ..maintenance import JOBS, Maintainer, Report, survey
from ..service import serving, signalled
from ..settings import Settings, TopicSettings
from ..store.names import Tables
from ..store.topics import open_topic_store
from ..values import Health
from .connect import DEFAULT_TABLE, Target, target_of
from .output import age, console, emit, say, table
from .run import log_to_stderr

log = logging.getLogger("relaybox")
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
    job: Annotated[list[str] | None, typer.Option(help=f"only this job: {', '.join(JOBS)}")] = None,
    preset: Annotated[str, typer.Option(help=f"how often and how much: {', '.join(PRESETS)}")] = "default",
    look: Annotated[bool, typer.Option("--survey", help="only show open alerts, orphaned and old groups")] = False,
    listen: Annotated[str | None, typer.Option(help="serve /live and /ready on HOST:PORT")] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON; with --once")] = False,
    log_level: Annotated[str, typer.Option(envvar="RELAYBOX_LOG_LEVEL", help="debug, info, warning or error")] = "info",
) -> None:
    """Keep topics in order: ticks, partitions, cleanup, dead groups, alerts. Any number may run; one of them works."""
    if json and not (once or look):
        raise typer.BadParameter("--json goes with --once or --survey")
    if preset not in PRESETS:
        raise typer.BadParameter(f"expected --preset to be one of {', '.join(PRESETS)}, got {preset!r}")
    log_to_stderr(log_level)
    target = target_of(context)
    settings = Settings.load(target.config, base=Settings(topics=PRESETS[preset]()))
    if look:
        _survey(target, settings.topics.group_retention, json=json)
        return
    asyncio.run(_maintain(target, settings, job or list(JOBS), listen, once=once, json=json))


async def _maintain(
    target: Target, settings: Settings, jobs: list[str], listen: str | None, *, once: bool, json: bool
) -> None:
    observers: list[Observer] = []
    metrics = metrics_page(observers) if listen else None
    maintainer = Maintainer(
        target.needed_url,
        table=target.table.value or DEFAULT_TABLE,
        schema=target.schema.value,
        settings=settings,
        jobs=jobs,
        observers=observers,
    )
    if once:
        try:
            _show(await maintainer.run_once(), json=json)
        finally:
            await maintainer.close()
        return
    stop = asyncio.Event()

    def health() -> Health:
        problems = tuple(maintainer.problems())
        return Health("critical" if problems else "ok", problems, live="not running" not in problems)

    with serving(listen, health, metrics), signalled(asyncio.get_running_loop(), stop.set):
        async with maintainer:
            say(f"relaybox maintains the topics of {maintainer.store.tables.event}: {', '.join(jobs)}")
            sys.stdout.flush()
            await stop.wait()
            say("relaybox stops: finishing what is under way")
            sys.stdout.flush()


def _survey(target: Target, group_retention: timedelta, *, json: bool) -> None:
    with closing(target.database()) as database:
        store = open_topic_store(database.dialect, Tables(target.table.value or DEFAULT_TABLE, target.schema.value))
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


def metrics_page(observers: list[Observer]) -> Any:
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST

        from ..observe.prometheus import PrometheusObserver
    except ImportError:
        log.warning("/metrics is not served: pip install 'relaybox[prometheus]'")
        return None
    registry = CollectorRegistry()
    observers.append(PrometheusObserver(registry=registry))
    return lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry))


def _show(report: Report, *, json: bool) -> None:
    if json:
        emit(asdict(report))
    elif not report.leading:
        say("another maintainer is at work; nothing was done")
    else:
        done = {name: value for name, value in asdict(report).items() if isinstance(value, int) and value}
        done.pop("leading", None)
        say(", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in done.items()) or "nothing to do")
