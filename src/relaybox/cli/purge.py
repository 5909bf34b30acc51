"""`relaybox purge`: delete what is finished and old, now."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from ..durations import format_duration, parse_duration
from .connect import shown, target_of
from .output import confirm, emit, progress, say


def purge(
    context: typer.Context,
    older_than: Annotated[
        str, typer.Option(help="finished events older than this (7d, 12h, PT5M); none: leave them")
    ] = "7d",
    dead_older_than: Annotated[
        str | None, typer.Option(help="dead letters that died longer ago; without it none is deleted")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Delete finished events that are old, and dead letters only when asked. Nothing waiting is touched."""
    finished, dead = _retention(older_than, "--older-than"), _retention(dead_older_than, "--dead-older-than")
    what = [
        f"{kind} older than {format_duration(limit)}"
        for kind, limit in (("finished events", finished), ("dead letters", dead))
        if limit is not None
    ]
    if not what:
        raise typer.BadParameter("nothing to purge: give --older-than or --dead-older-than")
    target = target_of(context)
    with target.outbox() as box:
        box.verify()
        if not yes:
            confirm(f"Delete {' and '.join(what)} from {box.store.tables.event} in {shown(target.needed_url)}?")
        with progress(total=False) as bar:
            task = bar.add_task("purging", total=None)
            count = box.purge(
                older_than=finished, dead_older_than=dead, progress=lambda n: bar.update(task, completed=n)
            )
    emit({"purged": count}) if json else say(f"purged {count} event(s)")


def _retention(text: str | None, name: str) -> timedelta | None:
    return None if text is None or text.lower() == "none" else parse_duration(text, name)
