"""`relaybox run MODULE:OBJECT…`: services work until a signal, then finish what is under way. Also how every other
command runs a service."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Annotated, Any

import typer

from ..clock import SYSTEM_CLOCK
from ..durations import parse_duration
from ..errors import ConfigError, StoreError
from ..facts import Observer
from ..relay import Relay
from ..service import AsyncService, Service, do, made, serving, signalled, started
from ..tasks import cancelled
from ..values import Health, Level
from .connect import target_of
from .logs import LogFormat, LogLevel, in_json, json_line, log_to_stderr
from .named import load_object
from .output import console, progress

log = logging.getLogger("relaybox")
WAITS = 3  # exit code: something waits, or is degraded
DIED = 4  # exit code: something died, or is critical
SAY_EVERY = 60.0  # seconds between two lines about the work where nobody watches

ListenAddress = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="serve /live, /ready and /metrics here")]
Timeout = Annotated[
    str | None, typer.Option(metavar="DURATION", help="with --once: stop after this long, and exit with 3")
]


def run(
    context: typer.Context,
    references: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:OBJECT",
            help="services, such as outbox.deliver(listeners), or functions without arguments that make one",
        ),
    ],
    listen: ListenAddress = None,
    once: Annotated[
        bool, typer.Option("--once", help="do what is due now, and stop; exit 3 if something waits, 4 if it died")
    ] = False,
    timeout: Timeout = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Work until Ctrl-C or SIGTERM, finish what runs, sign off. A second signal exits at once.

    What was made without settings has those of the environment and of --config; `relaybox config` shows them.
    """
    log_to_stderr(log_level, log_format)
    target = target_of(context)
    token = target.settings.listen.bearer()  # wrong ones are told before anything is imported
    if target.config is not None:
        os.environ["RELAYBOX_CONFIG"] = str(target.config.resolve())  # for all that is made without settings
    found = [(reference, load_object(reference)) for reference in references]

    async def main() -> Health:
        services = [await make(reference, each) for reference, each in found]
        return await serve(services, listen=listen, token=token, once=once, timeout=seconds_of(timeout, once=once))

    health = asyncio.run(main())
    if once:
        leave(health)


def seconds_of(timeout: str | None, *, once: bool) -> float | None:
    if timeout is None:
        return None
    if not once:
        raise typer.BadParameter("--timeout goes with --once")
    return parse_duration(timeout, "--timeout").total_seconds()


# -- what to run ------------------------------------------------------------------------------------


async def make(reference: str, found: Any) -> Service | AsyncService:
    found = await made(found, reference)
    if not isinstance(found, (Service, AsyncService)):
        hint = "; name what its deliver() returns" if hasattr(found, "deliver") else ""
        raise ConfigError(
            f"expected {reference} to be a service, such as outbox.deliver(listeners), got {type(found).__name__}{hint}"
        )
    return found


# -- running ----------------------------------------------------------------------------------------


async def serve(
    services: Sequence[Service | AsyncService],
    *,
    listen: str | None = None,
    token: str | None = None,
    once: bool = False,
    timeout: float | None = None,
    metrics: Any = None,
    quiet: bool = False,
) -> Health:
    """Until a signal, or with `once` until nothing is due. How they did before they stopped: with `once`, something
    that died makes it critical, and something that is still due degraded. `quiet`: the caller says what was done."""
    line = (lambda text: None) if quiet else _line
    stop, ended = asyncio.Event(), True
    with (
        serving(listen, lambda: _worst(services), metrics, token=token),
        signalled(asyncio.get_running_loop(), stop.set),
    ):
        async with started(services, lambda service: line(f"relaybox runs {service.name}")):
            watching = asyncio.create_task(_watch(services, once=once))
            try:
                if once:
                    ended = await _drained(services, stop, timeout)
                else:
                    await stop.wait()
                    line("relaybox stops: finishing what is under way")
                health = _worst(services)
            finally:
                await cancelled(watching)
    for service in services:
        done = service.counts
        line(f"{service.name}: {done.done:,} done, {done.failed:,} failed attempts, {done.dead:,} dead")
    line("relaybox stopped")
    if once and any(service.counts.dead for service in services):
        return Health("critical", (*health.reasons, "something died"))
    if once and not (ended and health.level == "ok"):
        return Health("degraded", health.reasons if ended else (*health.reasons, "something is still due"))
    return health


def leave(health: Health) -> None:
    """Exit as the health says: nothing to say, something waits, something died."""
    if health.level != "ok":
        raise typer.Exit(DIED if health.level == "critical" else WAITS)


async def _drained(services: Sequence[Service | AsyncService], stop: asyncio.Event, timeout: float | None) -> bool:
    """False: the time was over, or a signal came."""

    async def drain() -> None:
        await asyncio.gather(*(do(service, "drain") for service in services))

    stopped, draining = asyncio.create_task(stop.wait()), asyncio.create_task(drain())
    try:
        await asyncio.wait([draining, stopped], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if draining.done():
            draining.result()
            return True
        return False
    finally:
        await cancelled(draining, stopped)


async def _watch(services: Sequence[Service | AsyncService], *, once: bool) -> None:
    """A line that refreshes itself in a terminal, otherwise one in the log now and then."""
    bar = progress(total=False) if console(stderr=True).is_terminal and not in_json() else None
    with bar or nullcontext():
        task = bar.add_task("", total=None) if bar else None
        while bar or not once:
            text = "; ".join([*[await _waiting(each) for each in services], *_worst(services).reasons])
            done = sum(service.counts.done for service in services)
            if bar and task is not None:
                bar.update(task, description=f"{text}; done", completed=done)
            else:
                log.info("%s; done %d", text, done)
            await SYSTEM_CLOCK.sleep(1.0 if bar else SAY_EVERY)


async def _waiting(service: Service | AsyncService) -> str:
    if not isinstance(service, Relay):
        counts = service.counts
        return f"{service.name}: failed attempts {counts.failed:,}, dead {counts.dead:,}"
    try:
        status = await asyncio.to_thread(service.status)
    except StoreError as error:
        return f"no answer from the database: {type(error).__name__}"
    return f"due {status.due:,}, retrying {status.retrying:,}, dead {status.dead:,}"


def _worst(services: Sequence[Service | AsyncService]) -> Health:
    found = [(service.name, service.health()) for service in services]
    named = len(services) > 1
    reasons = tuple(f"{name}: {reason}" if named else reason for name, health in found for reason in health.reasons)
    levels: tuple[Level, ...] = ("ok", "degraded", "critical")
    worst = max((health.level for _, health in found), key=levels.index, default=levels[0])
    return Health(worst, reasons, all(health.live for _, health in found))


def metrics_of(listen: str | None, observers: list[Observer]) -> tuple[Any, Callable[..., None]]:
    """The Prometheus page of one process, and how a service adds what waits for it. The page is None without
    `listen`, and without the client."""
    if listen is None:
        return None, lambda service: None
    try:
        from prometheus_client import CollectorRegistry

        from ..observe.health import metrics_page
        from ..observe.prometheus import BacklogCollector, PrometheusObserver
    except ImportError:  # of which `serving` tells
        return None, lambda service: None
    registry = CollectorRegistry()
    observers.append(PrometheusObserver(registry=registry))
    return metrics_page(registry), lambda service: registry.register(BacklogCollector(service))


def pairs(given: list[str] | None, name: str) -> dict[str, str]:
    """Options of the form NAME=VALUE."""
    found = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"expected {name} NAME=VALUE, got {key!r}")
        found[key] = value
    return found


def _line(text: str) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.write(json_line(text) if in_json() else text + "\n")
        sys.stdout.flush()
