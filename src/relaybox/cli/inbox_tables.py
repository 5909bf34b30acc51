"""`relaybox inbox create`, `adopt`, `configure` and `drop`: making, changing and removing an inbox."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from ..inbox import Columns, Inbox
from .connect import Target, target_of
from .output import confirm, emit, say

Name = Annotated[str, typer.Option("--inbox", envvar="RELAYBOX_INBOX", help="which inbox")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Attempts = Annotated[int | None, typer.Option(min=1, help="attempts before a message becomes a dead letter")]


def create(
    context: typer.Context,
    inbox: Name = "inbox",
    max_attempts: Attempts = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="bring one that is there up to date")] = False,
) -> None:
    """Make the tables of an inbox."""
    target = target_of(context)
    with _inbox(target, inbox, may_create=True) as box:
        if if_not_exists:
            box.migrate()
            if max_attempts is not None:
                box.configure(max_attempts=max_attempts)
        else:
            box.create(max_attempts=max_attempts)
    say(f"inbox {inbox} is there")


def adopt(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="the table that is there, as it is written")],
    inbox: Name = "inbox",
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COLUMN", help="which column is its id, payload, …; nothing behind =: it has none"),
    ] = None,
    table_schema: Annotated[str | None, typer.Option(help="schema of the table, if not the inbox's")] = None,
    max_attempts: Attempts = None,
    json: Json = False,
) -> None:
    """Use a table that is there as an inbox, without changing it."""
    with _inbox(target_of(context), inbox) as box:
        adoption = box.adopt(table, columns(column or []), table_schema=table_schema, max_attempts=max_attempts)
        waiting = box.status().pending
    if json:
        emit({"inbox": inbox, **asdict(adoption), "waiting": waiting})
        return
    say(f"table {table} is inbox {inbox} now; {waiting} rows wait")
    for hint in adoption.hints:
        say(f"hint: {hint}")


def configure(
    context: typer.Context,
    max_attempts: Annotated[int, typer.Option(min=1, help="attempts before a message becomes a dead letter")],
    inbox: Name = "inbox",
) -> None:
    """Change what create or adopt agreed on, for all processors from their next start on."""
    with _inbox(target_of(context), inbox) as box:
        box.configure(max_attempts=max_attempts)
    say(f"inbox {inbox}: {max_attempts} attempts, for every processor from its next start on")


def drop(
    context: typer.Context,
    inbox: Name = "inbox",
    cascade: Annotated[bool, typer.Option("--cascade", help="its messages too; an adopted table always stays")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="no error if there is none")] = False,
    force: Annotated[bool, typer.Option("--force", help="even if processors run or messages wait")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Remove what relaybox made for an inbox."""
    with _inbox(target_of(context), inbox) as box:
        if not yes:
            confirm(f"drop inbox {inbox}{' with its messages' if cascade else ''}?")
        dropped = box.drop(cascade=cascade, if_exists=if_exists, force=force)
    if dropped is None:
        say(f"there is no inbox {inbox}")
        return
    lost = f"; {dropped.pending} messages waited, {dropped.dead} were dead letters"
    say(f"inbox {inbox} is gone{lost}" + (f"; table {dropped.kept} is still there" if dropped.kept else ""))


def columns(given: list[str]) -> Columns:
    """From NAME=COLUMN."""
    known = [entry.name for entry in fields(Columns)]
    found: dict[str, Any] = {}  # one that is needed and None is refused by Columns
    for one in given:
        name, equals, column = one.partition("=")
        if name not in known or not equals:
            raise ConfigError(f"expected --column NAME=COLUMN with a name of {', '.join(known)}, got {one!r}")
        found[name] = column or None
    return Columns(**found)


def _inbox(target: Target, name: str, *, may_create: bool = False) -> Inbox:
    target.database(may_create=may_create, maker="relaybox inbox create").close()  # the same checks, no connection
    return Inbox(target.needed_url, name, schema=target.schema.value, settings=target.settings)
