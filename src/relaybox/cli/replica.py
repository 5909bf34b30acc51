"""`relaybox replica`: a table of another database follows a feed until a signal, or once."""

from __future__ import annotations

import asyncio
import os
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from ..facts import Observer
from ..redaction import scrub
from ..replica import Replica
from ..settings import Settings, read_file, table_of
from .connect import Target, target_of, warn_of_argument
from .logs import LogFormat, LogLevel, log_to_stderr
from .output import answer, emit, say
from .run import (
    ListenAddress,
    Timeout,
    leave,
    metrics_of,
    pairs,
    seconds_of,
    serve,
)


def replica(
    context: typer.Context,
    feed: Annotated[str, typer.Argument(metavar="FEED", help="a feed of the database of --url, the source")],
    into: Annotated[
        str | None, typer.Option(help="the database of the table: postgresql://…, mysql://… [RELAYBOX_REPLICA_INTO]")
    ] = None,
    table_name: Annotated[
        str | None, typer.Option("--into-table", metavar="NAME", help="the table [default: as the feed is called]")
    ] = None,
    into_schema: Annotated[str | None, typer.Option(metavar="NAME", help="schema of the table")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="a setting: --set replica.poll=5s")
    ] = None,
    migrate: Annotated[bool, typer.Option("--migrate", help="make the table first, unless it is there")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="stop when the table is where the feed is; exit 3 if it does not get there")
    ] = False,
    timeout: Timeout = None,
    status: Annotated[bool, typer.Option("--status", help="only show how far the table is")] = False,
    listen: ListenAddress = None,
    json: Annotated[bool, typer.Option("--json", help="with --once or --status: print JSON")] = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Keep a table of another database as a feed is. Any number may run for a table; one of them works."""
    if json and not (once or status):
        raise typer.BadParameter("--json goes with --once or --status")
    longest = seconds_of(timeout, once=once)
    log_to_stderr(log_level, log_format, ours=True)
    target = target_of(context)
    warn_of_argument("--into", into, "RELAYBOX_REPLICA_INTO")
    into = into or os.environ.get("RELAYBOX_REPLICA_INTO") or _said(target)
    if not into:
        raise ConfigError(
            "no database given for the table; set RELAYBOX_REPLICA_INTO, or use --into or `into` under "
            "[relaybox.replica] of the --config file"
        )
    settings = Settings.load(target.config, given=pairs(set_, "--set"))
    observers: list[Observer] = []
    metrics, _ = metrics_of(listen, observers)
    made: dict[str, Any] = {"schema": into_schema, "settings": settings, "observers": observers}
    try:
        with target.outbox() as source, Replica(into, table_name or feed, feed=feed, source=source, **made) as kept:
            if migrate:
                kept.migrate()
            if status:
                _show(kept, json=json)
                return
            pages = {"listen": listen, "token": settings.listen.bearer(), "metrics": metrics}
            service = kept.follow()
            health = asyncio.run(serve([service], **pages, once=once, timeout=longest, quiet=once))
            if once:
                at, counts = kept.status(), service.counts
                told = {"applied": counts.done, "failed_attempts": counts.failed, "n": at.n, "behind": at.behind}
                answer(json, told, f"applied {counts.done:,}, at delta {at.n:,}, behind {at.behind}")
                leave(health)
    except ConfigError as error:
        raise ConfigError(scrub(str(error), into)) from None


def _said(target: Target) -> str | None:
    found = None if target.config is None else table_of(read_file(target.config), "replica").get("into")
    if found is not None and not isinstance(found, str):
        raise ConfigError(f"expected into to be text, got {type(found).__name__}")
    return found


def _show(kept: Replica, *, json: bool) -> None:
    at = kept.status()
    if json:
        emit({**asdict(at), "behind": at.behind})
        return
    behind = "nobody knows how far behind" if at.behind is None else f"{at.behind:,} behind"
    say(f"table {at.table} of feed {at.feed}: at delta {at.n:,}, {behind}")
