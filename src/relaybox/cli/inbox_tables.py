"""`relaybox inbox create`, `configure`, `adopt`, `drop` and `purge`: the tables of an inbox, and what is agreed on."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Annotated, Any

import typer

from ..durations import Duration, parse_duration
from ..errors import AlreadyExists, ConfigError
from ..inbox.inbox import Inbox
from ..inbox.purge import retention_of
from ..retry import Retry
from ..store.inbox.adopted.adoption import Columns
from ..store.inbox.adopted.make import InboxInfo
from ..store.inbox.order import Order, Priority
from .connect import Target, shown, target_of
from .output import confirm, emit, say

Name = Annotated[str, typer.Option("--inbox", envvar="RELAYBOX_INBOX", help="which inbox")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
Attempts = Annotated[int | None, typer.Option(min=1, help="attempts before a message becomes a dead letter")]
Ordered = Annotated[
    bool | None, typer.Option("--ordered/--unordered", help="messages of a key in the order of their numbers")
]
Priorities = Annotated[
    bool | None, typer.Option("--priorities/--no-priorities", help="urgent messages first; not with --ordered")
]
Done = Annotated[str | None, typer.Option(help="keep processed messages so long; none: for ever")]
Dead = Annotated[str | None, typer.Option(help="keep dead letters so long after death; none: for ever")]
Seen = Annotated[str | None, typer.Option(help="know ids so long; none: for ever")]


def create(
    context: typer.Context,
    inbox: Name = "inbox",
    attempts: Attempts = None,
    ordered: Ordered = None,
    priorities: Priorities = None,
    done: Done = None,
    dead: Dead = None,
    seen: Seen = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="bring one that is there up to date")] = False,
) -> None:
    """Make the tables of an inbox, and agree on what all processes do."""
    target = target_of(context)
    with _inbox(target, inbox, may_create=True) as box:
        if not box.migrate() and not if_not_exists:
            raise AlreadyExists(
                "inbox", inbox, f"there is an inbox {inbox!r} already; --if-not-exists takes it as it is"
            )
        _configure(box, target, attempts, ordered, priorities, done, dead, seen)
    say(f"inbox {inbox} is there")


def configure(
    context: typer.Context,
    inbox: Name = "inbox",
    attempts: Attempts = None,
    ordered: Ordered = None,
    priorities: Priorities = None,
    done: Done = None,
    dead: Dead = None,
    seen: Seen = None,
    json: Json = False,
) -> None:
    """Change what all processes agree on, from their next start on. What is not given stays."""
    target = target_of(context)
    with _inbox(target, inbox) as box:
        info = _configure(box, target, attempts, ordered, priorities, done, dead, seen)
    if info is None:
        raise typer.BadParameter("expected something to change; what is not given stays as it is")
    emit(asdict(info)) if json else say(f"inbox {inbox} is configured, for every process from its next start on")


def _configure(
    box: Inbox,
    target: Target,
    attempts: int | None,
    ordered: bool | None,
    priorities: bool | None,
    done: str | None,
    dead: str | None,
    seen: str | None,
) -> InboxInfo | None:
    """None: there is nothing to change."""
    changes: dict[str, Any] = {}
    if attempts is not None:
        changes["retry"] = replace(box.info().retry or target.settings.delivery.retry, attempts=attempts, delay=None)
    if ordered is not None:
        changes["order"] = Order() if ordered else None
    if priorities is not None:
        changes["priority"] = Priority() if priorities else None
    if ages := _ages(done, dead, seen):
        changes["retention"] = replace(box.info().retention or retention_of(target.settings.inbox), **ages)
    return box.configure(**changes) if changes else None


def _ages(done: str | None, dead: str | None, seen: str | None) -> dict[str, Duration | None]:
    """Those that are given."""
    given = {"done": done, "dead": dead, "seen": seen}
    return {
        name: None if text.lower() == "none" else parse_duration(text, f"--{name}")
        for name, text in given.items()
        if text is not None
    }


def adopt(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="the table that is there, as it is written")],
    inbox: Name = "inbox",
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COLUMN", help="which column is its id, payload, …; nothing behind =: it has none"),
    ] = None,
    table_schema: Annotated[str | None, typer.Option(help="schema of the table, if not the inbox's")] = None,
    attempts: Attempts = None,
    json: Json = False,
) -> None:
    """Use a table that is there as an inbox, without changing it."""
    with _inbox(target_of(context), inbox) as box:
        adoption = box.adopt(table, columns(column or []), table_schema=table_schema)
        if attempts is not None:
            box.configure(retry=Retry(attempts=attempts))
        waiting = box.status().pending
    if json:
        emit({"inbox": inbox, **asdict(adoption), "waiting": waiting})
        return
    say(f"table {table} is inbox {inbox} now; {waiting} rows wait")
    for hint in adoption.hints:
        say(f"hint: {hint}")


def drop(
    context: typer.Context,
    inbox: Name = "inbox",
    cascade: Annotated[bool, typer.Option("--cascade", help="its messages too; an adopted table always stays")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="no error if there is none")] = False,
    force: Annotated[bool, typer.Option("--force", help="even if processors run or messages wait")] = False,
    yes: Yes = False,
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


def purge(
    context: typer.Context,
    inbox: Name = "inbox",
    done: Annotated[str | None, typer.Option(help="processed messages older than this; none: keep")] = None,
    dead: Annotated[str | None, typer.Option(help="dead letters that died longer ago; none: keep")] = None,
    seen: Annotated[str | None, typer.Option(help="forget ids that are older; none: never")] = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete what is older than it shall be kept: as given, as agreed on, or as the settings say. Nothing that waits is
    touched."""
    target = target_of(context)
    ages = _ages(done, dead, seen)
    with _inbox(target, inbox) as box:
        if not yes:
            confirm(f"Delete what is old from inbox {inbox} in {shown(target.needed_url)}?")
        gone = box.purge(**ages)
    emit({"purged": gone}) if json else say(f"purged {gone} message(s)")


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
