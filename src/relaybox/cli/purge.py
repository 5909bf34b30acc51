"""`relaybox purge`: delete what is finished and old, now."""

from __future__ import annotations

from typing import Annotated

import typer

from ..audit import Audit
from ..durations import format_duration
from ..redaction import masked
from . import options as o
from .connect import target_of
from .output import answer


@o.with_audit
def purge(
    context: typer.Context,
    audit: Audit,
    done: Annotated[
        str, typer.Option(metavar="DURATION", help="finished events older than this; none: leave them")
    ] = "7d",
    dead: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="dead letters that died longer ago; without it none is deleted"),
    ] = None,
    dry_run: o.DryRun = False,
    yes: o.Yes = False,
    json: o.Json = False,
) -> None:
    """Delete finished events that are old, and dead letters only when asked. Nothing waiting is touched."""
    ages = o.kept(done, "--done"), None if dead is None else o.kept(dead, "--dead")
    words = ("finished events", "dead letters")
    what = [
        f"{word} older than {format_duration(age)}" for word, age in zip(words, ages, strict=True) if age is not None
    ]
    if not what:
        raise typer.BadParameter("nothing to purge: give --done or --dead")
    target = target_of(context)
    with target.outbox() as box:
        box.verify()
        if dry_run:
            count = box.purge(done=ages[0], dead=ages[1], dry_run=True)
        else:
            count = o.changed(
                f"Delete {{}} events of {box.store.tables.event} in {masked(target.needed_url)}: {' and '.join(what)}?",
                lambda dry, tell: box.purge(done=ages[0], dead=ages[1], dry_run=dry, progress=tell, **audit),
                yes=yes,
            )
    text = f"{count} event(s) {'would be ' if dry_run else ''}purged"
    answer(json, {"purged": count, "dry_run": dry_run}, text, schema="purge/1")
