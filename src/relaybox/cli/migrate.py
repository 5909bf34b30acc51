"""`relaybox migrate`: make or upgrade the tables, or show what that would do."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated, Any

import typer

from ..drivers.spi import Connection
from ..op import Copy, Result, Statement, run
from ..outbox import Outbox
from ..outbox.route import migrate as migrate_tables
from .connect import Target, missing_file, target_of
from .options import Json
from .output import emit, say


def migrate(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the SQL, apply nothing")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="check the tables, apply nothing")] = False,
    json: Json = False,
) -> None:
    """Create or upgrade the tables. Safe to repeat, and from many processes at once."""
    target = target_of(context)
    if dry_run and verify:
        raise typer.BadParameter("--dry-run and --verify exclude each other")
    if dry_run:
        _plan(target, json)
    elif verify:
        with target.outbox() as box:
            box.verify()
            version = box.store.migrations()[-1].version
        emit({"version": version, "verified": True}) if json else say(f"the tables are at version {version}")
    else:
        with target.outbox(may_create=True) as box:
            done = [{"version": m.version, "name": m.name} for m in box.migrate()]
        if json:
            emit({"applied": done})
        else:
            for entry in done:
                say(f"applied {entry['version']:03} {entry['name']}")
            if not done:
                say("nothing to do: the tables are up to date")


def _plan(target: Target, json: bool) -> None:
    with target.outbox(may_create=True) as box:
        if missing_file(target.needed_url) is not None:  # looking must not make the file
            todo, texts = box.store.migrations(), _rehearse(box, Rehearsal(None))
        else:
            todo = box.migrate(dry_run=True)
            texts = []
            if todo:
                with closing(target.database()) as database, database.connection() as connection:
                    texts = _rehearse(box, Rehearsal(connection))
    if json:
        emit({"plan": [{"version": m.version, "name": m.name} for m in todo], "sql": texts})
    elif todo:
        sys.stdout.write("".join(f"{text};\n\n" for text in texts))
    else:
        say("nothing to do: the tables are up to date")


class Rehearsal:
    """Lets migrate() look at the database and writes down what it would change, so the plan cannot be wrong.

    Without a connection it plays an empty database.
    """

    def __init__(self, connection: Connection | None) -> None:
        self._connection = connection
        self.texts: list[str] = []

    def execute(self, statement: Statement | Copy) -> Result:
        assert isinstance(statement, Statement)
        query = statement.query
        if query.name in ("schema.lock", "schema.unlock"):
            return Result([(1,)], 1)
        if query.answer == "count":
            self.texts.append(_with_values(statement))
            return Result((), 0)
        return Result([(False,)], 1) if self._connection is None else self._connection.execute(statement)


def _rehearse(box: Outbox, rehearsal: Rehearsal) -> list[str]:
    run(migrate_tables(box.store, box.topic_store), rehearsal)
    return rehearsal.texts


def _with_values(statement: Statement) -> str:
    """The values of `schema.record` are numbers, file names and checksums of ours."""
    text, names = statement.query.compiled("named")
    for name in sorted(names, key=len, reverse=True):
        text = text.replace(f":{name}", _literal(statement.params[name]))
    return text


def _literal(value: Any) -> str:
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
