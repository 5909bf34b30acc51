"""`relaybox ingest`: move messages from a broker into an inbox until a signal, or once."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack, suppress
from typing import Annotated

import typer

from ..brokers import source_from_url
from ..clock import SYSTEM_CLOCK
from ..durations import parse_duration
from ..errors import ConfigError
from ..facts import Observer
from ..inbox import AsyncInbox
from ..ingest import Ingest
from ..ingest.config import IngestConfig, load
from ..service import serving, signalled
from ..values import Health
from .connect import Target, scrub, target_of
from .maintain import metrics_page
from .output import console, emit, progress, say
from .relay import SAY_EVERY, pairs
from .run import log_to_stderr

log = logging.getLogger("relaybox")


def ingest(
    context: typer.Context,
    source: Annotated[
        str | None, typer.Option("--from", help="where from: kafka://…, amqp://…, nats://… [RELAYBOX_SOURCE]")
    ] = None,
    source_option: Annotated[
        list[str] | None, typer.Option(help="an option of the source, NAME=VALUE [RELAYBOX_SOURCE_NAME]")
    ] = None,
    inbox: Annotated[str | None, typer.Option(help="which inbox [RELAYBOX_INBOX, default inbox]")] = None,
    sender: Annotated[
        str | None, typer.Option(help="who sends: kept beside every message [RELAYBOX_INGEST_SENDER]")
    ] = None,
    type: Annotated[str | None, typer.Option(help="type of messages that name none; default: the channel")] = None,
    type_header: Annotated[str | None, typer.Option(help="header that names the type, of other systems")] = None,
    id_header: Annotated[str | None, typer.Option(help="header that has the id, of other systems")] = None,
    key_header: Annotated[str | None, typer.Option(help="header that has the key, of other systems")] = None,
    content_type: Annotated[str | None, typer.Option(help="content type of messages that do not say it")] = None,
    batch: Annotated[int | None, typer.Option(help="most messages in one transaction [default 500]", min=1)] = None,
    wait: Annotated[str | None, typer.Option(help="how long a broker may have nothing new [default 1s]")] = None,
    listen: Annotated[str | None, typer.Option(help="serve /live, /ready, /metrics on HOST:PORT")] = None,
    migrate: Annotated[bool, typer.Option("--migrate", help="create or upgrade the inbox's tables first")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="stop when the broker has had nothing new for the time of --wait")
    ] = False,
    timeout: Annotated[str | None, typer.Option(help="with --once: give up after this long")] = None,
    json: Annotated[bool, typer.Option("--json", help="with --once: print JSON")] = False,
    log_level: Annotated[str, typer.Option(envvar="RELAYBOX_LOG_LEVEL", help="debug, info, warning or error")] = "info",
) -> None:
    """Store a broker's messages in an inbox, each once, and acknowledge what is stored."""
    if json and not once:
        raise typer.BadParameter("--json goes with --once")
    if timeout is not None and not once:
        raise typer.BadParameter("--timeout goes with --once")
    longest = parse_duration(timeout, "--timeout").total_seconds() if timeout else None
    log_to_stderr(log_level)
    if logging.getLogger().level < logging.INFO:  # clients of brokers log whole requests at debug, payloads and keys
        logging.getLogger().setLevel(logging.INFO)
        log.setLevel(logging.DEBUG)
    target = target_of(context)
    target.database(
        may_create=migrate, maker="relaybox inbox create"
    ).close()  # checks, no connection: nobody wants a new empty file
    given = {
        "url": source,
        "options": pairs(source_option, "--source-option"),
        "inbox": inbox,
        "sender": sender,
        "type": type,
        "type_header": type_header,
        "id_header": id_header,
        "key_header": key_header,
        "content_type": content_type,
        "listen": listen,
        "settings": {
            path: value for path, value in (("ingest.batch", batch), ("ingest.wait", wait)) if value is not None
        },
    }
    config = load(given, environment=os.environ, file=target.config)
    try:
        asyncio.run(_run(target, config, migrate=migrate, once=once, timeout=longest, json=json))
    except ConfigError as error:
        raise ConfigError(scrub(str(error), config.url)) from None


async def _run(
    target: Target, config: IngestConfig, *, migrate: bool, once: bool, timeout: float | None, json: bool
) -> None:
    stop = asyncio.Event()
    observers: list[Observer] = []
    metrics = metrics_page(observers) if config.listen else None
    async with AsyncExitStack() as ending:
        ending.enter_context(signalled(asyncio.get_running_loop(), stop.set))
        inbox = await ending.enter_async_context(
            AsyncInbox(target.needed_url, config.inbox, schema=target.schema.value, settings=config.settings)
        )
        if migrate:
            await inbox.migrate()
        if not config.settings.inbox.enabled:
            log.warning("inbox.enabled is off: nothing is read, messages wait at the broker")
            if not once:
                await stop.wait()
            return
        ingest = Ingest(
            source_from_url(config.url, config.options),
            inbox,
            sender=config.sender,
            reading=config.reading,
            settings=config.settings,
            observers=observers,
        )

        def health() -> Health:
            live, reasons = ingest.health()
            return Health("critical" if reasons else "ok", tuple(reasons), live)

        with serving(config.listen, health, metrics):
            async with ingest:
                if once:
                    ended = await _once(ingest, stop, timeout)
                else:
                    say(f"relaybox ingests {ingest.source!r} into {config.inbox} ({inbox.store.dialect})")
                    await _until(ingest, stop)
    if once:
        accepted, duplicates, malformed = ingest.totals
        if json:
            emit({"accepted": accepted, "duplicates": duplicates, "malformed": malformed})
        else:
            say(f"accepted {accepted:,}, duplicates {duplicates:,}, malformed {malformed:,}")
        if not ended:
            raise typer.Exit(1)


async def _once(ingest: Ingest, stop: asyncio.Event, timeout: float | None) -> bool:
    tasks = asyncio.create_task(ingest.drained()), asyncio.create_task(stop.wait())
    await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    return tasks[0].done() and not tasks[0].cancelled()


async def _until(ingest: Ingest, stop: asyncio.Event) -> None:
    sys.stdout.flush()
    watcher = asyncio.create_task(_watch(ingest))
    await stop.wait()
    watcher.cancel()
    with suppress(asyncio.CancelledError):
        await watcher
    say("relaybox stops: finishing what is under way")
    sys.stdout.flush()


async def _watch(ingest: Ingest) -> None:
    """A line that refreshes itself in a terminal, otherwise one in the log now and then."""
    shown = console(stderr=True)
    with progress(total=False) as bar:
        task = bar.add_task("", total=None)
        while True:
            accepted, duplicates, malformed = ingest.totals
            text = "; ".join([f"duplicates {duplicates:,}, malformed {malformed:,}", *ingest.health()[1]])
            bar.update(task, description=f"{text}; accepted", completed=accepted)
            if not shown.is_terminal:
                log.info("%s; accepted %d", text, accepted)
            await SYSTEM_CLOCK.sleep(1.0 if shown.is_terminal else SAY_EVERY)
