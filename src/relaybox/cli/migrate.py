"""`relaybox migrate`: make or upgrade the tables, or show what that would do."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated, cast

import typer

from ..drivers.rehearsal import Rehearsal
from ..op import run
from ..outbox import Outbox
from ..outbox.route import migrate as migrate_tables
from ..outbox.source import with_fair
from ..settings import Fair
from .connect import Target, missing_file, target_of
from .options import Json
from .output import emit, say


def migrate(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the SQL, apply nothing")] = False,
    fair: Annotated[
        str | None, typer.Option(help="tenant: also the indexes that fair claims need [RELAYBOX_DELIVERY_FAIR]")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="check the tables, apply nothing")] = False,
    json: Json = False,
) -> None:
    """Create or upgrade the tables. Safe to repeat, and from many processes at once."""
    target = target_of(context)
    if dry_run and verify:
        raise typer.BadParameter("--dry-run and --verify exclude each other")
    wish = cast("Fair | None", fair)
    if dry_run:
        _plan(target, wish, json)
    elif verify:
        with target.outbox() as box:
            box.verify()
            version = box.store.migrations()[-1].version
        emit({"version": version, "verified": True}) if json else say(f"the tables are at version {version}")
    else:
        with target.outbox(may_create=True) as box:
            done = [{"version": m.version, "name": m.name} for m in box.migrate(fair=wish)]
        if json:
            emit({"applied": done})
        else:
            for entry in done:
                say(f"applied {entry['version']:03} {entry['name']}")
            if not done:
                say("nothing to do: the tables are up to date")


def _plan(target: Target, fair: Fair | None, json: bool) -> None:
    with target.outbox(may_create=True) as box:
        if missing_file(target.needed_url) is not None:  # looking must not make the file
            todo, texts = box.store.migrations(), _rehearse(box, fair, Rehearsal(None))
        else:
            todo = box.migrate(dry_run=True, fair=fair)
            texts = []
            if todo:
                with closing(target.database()) as database, database.connection() as connection:
                    texts = _rehearse(box, fair, Rehearsal(connection))
    if json:
        emit({"plan": [{"version": m.version, "name": m.name} for m in todo], "sql": texts})
    elif todo:
        sys.stdout.write("".join(f"{text};\n\n" for text in texts))
    else:
        say("nothing to do: the tables are up to date")


def _rehearse(box: Outbox, fair: Fair | None, rehearsal: Rehearsal) -> list[str]:
    wanted = with_fair(box.settings, fair, ordered=False).delivery.fair == "tenant"
    run(migrate_tables(box.store, box.topic_store, wanted), rehearsal)
    return rehearsal.texts
