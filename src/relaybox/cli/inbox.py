"""`relaybox inbox`: make inboxes and agree on what all processes do, look at them, delete what is old.

Their messages are `relaybox events`, `dead` and `keys`, with `--of inbox/NAME`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import typer

from ..audit import Audit
from ..durations import Duration, parse_duration
from ..errors import AlreadyExists, ConfigError
from ..inbox.inbox import Inbox
from ..inbox.purge import retention_of
from ..redaction import masked
from ..retry import Retry
from ..store.inbox.adopted.adoption import Columns
from ..store.inbox.adopted.make import InboxInfo
from ..store.inbox.order import Order, Priority
from ..values import Limits
from . import options as o
from .connect import target_of
from .output import about, age, answer, confirm, console, emit, moving, say, table
from .run import leave

app = typer.Typer(help="Inboxes: make, configure, look at and purge them.", no_args_is_help=True)
T = TypeVar("T")

InboxName = Annotated[str, typer.Option("--inbox", envvar="RELAYBOX_INBOX", help="which inbox")]
Attempts = Annotated[int | None, typer.Option(min=1, help="attempts before a message becomes a dead letter")]
AGES: dict[str, Any] = {
    "done": Annotated[
        str | None, typer.Option(metavar="DURATION", help="keep processed messages so long; none: for ever")
    ],
    "dead": Annotated[
        str | None, typer.Option(metavar="DURATION", help="keep dead letters so long after death; none: for ever")
    ],
    "seen": Annotated[str | None, typer.Option(metavar="DURATION", help="know ids so long; none: for ever")],
}
AGREED: dict[str, Any] = {
    "attempts": Attempts,
    "ordered": Annotated[
        bool | None, typer.Option("--ordered/--unordered", help="messages of a key in the order of their numbers")
    ],
    "priorities": Annotated[
        bool | None, typer.Option("--priorities/--no-priorities", help="urgent messages first; not with --ordered")
    ],
    **AGES,
}


def _ages(given: Mapping[str, Any]) -> dict[str, Duration | None]:
    """The ages that were given."""
    found = {name: given[name] for name in AGES if given[name] is not None}
    return {n: o.kept(text, f"--{n}") for n, text in found.items()}


with_ages = o.with_options("ages", AGES, _ages)
with_agreed = o.with_options("agreed", AGREED, dict)


@contextmanager
def opened(context: typer.Context, name: str) -> Iterator[Inbox]:
    with target_of(context).inbox(name) as box:
        box.verify()
        yield box


# -- tables and what is agreed on ---------------------------------------------------------------------


@app.command("create")
@with_agreed
@o.with_audit
def create(
    context: typer.Context,
    agreed: dict[str, Any],
    audit: Audit,
    inbox: InboxName = "inbox",
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="bring one that is there up to date")] = False,
) -> None:
    """Make the tables of an inbox, and agree on what all processes do."""
    with target_of(context).inbox(inbox, may_create=True) as box:
        if not box.migrate() and not if_not_exists:
            raise AlreadyExists(
                "inbox", inbox, f"there is an inbox {inbox!r} already; --if-not-exists takes it as it is"
            )
        _configure(box, agreed, audit)
    say(f"inbox {inbox} is there")


@app.command("configure")
@with_agreed
@o.with_audit
def configure(
    context: typer.Context, agreed: dict[str, Any], audit: Audit, inbox: InboxName = "inbox", json: o.Json = False
) -> None:
    """Change what all processes agree on, from their next start on. What is not given stays."""
    with target_of(context).inbox(inbox) as box:
        info = _configure(box, agreed, audit)
    if info is None:
        raise typer.BadParameter("expected something to change; what is not given stays as it is")
    text = f"inbox {inbox} is configured, for every process from its next start on"
    answer(json, asdict(info), text, schema="inbox.configure/1")


def _configure(box: Inbox, agreed: Mapping[str, Any], audit: Audit) -> InboxInfo | None:
    """None: there is nothing to change."""
    changes: dict[str, Any] = {}
    if agreed["attempts"] is not None:
        retry = box.info().retry or box.settings.delivery.retry
        changes["retry"] = replace(retry, attempts=agreed["attempts"], delay=None)
    if agreed["ordered"] is not None:
        changes["order"] = Order() if agreed["ordered"] else None
    if agreed["priorities"] is not None:
        changes["priority"] = Priority() if agreed["priorities"] else None
    if ages := _ages(agreed):
        changes["retention"] = replace(box.info().retention or retention_of(box.settings.inbox), **ages)
    return box.configure(**changes, **audit) if changes else None


@app.command("adopt")
@o.with_audit
def adopt(
    context: typer.Context,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="the table that is there, as it is written")],
    audit: Audit,
    inbox: InboxName = "inbox",
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=COLUMN", help="which column is its id, payload, …; nothing behind =: it has none"),
    ] = None,
    table_schema: Annotated[str | None, typer.Option(help="schema of the table, if not the inbox's")] = None,
    attempts: Attempts = None,
    json: o.Json = False,
) -> None:
    """Use a table that is there as an inbox, without changing it."""
    with target_of(context).inbox(inbox) as box:
        adoption = box.adopt(table, _columns(column or []), table_schema=table_schema, **audit)
        if attempts is not None:
            box.configure(retry=Retry(attempts=attempts), **audit)
        waiting = box.status().pending
    if json:
        emit({"inbox": inbox, **asdict(adoption), "waiting": waiting}, schema="inbox.adopt/1")
        return
    say(f"table {table} is inbox {inbox} now; {waiting} rows wait; a duplicate is {adoption.identity}")
    for hint in adoption.hints:
        say(f"hint: {hint}")


def _columns(given: list[str]) -> Columns:
    """From NAME=COLUMN."""
    known = [entry.name for entry in fields(Columns)]
    found: dict[str, Any] = {}  # one that is needed and None is refused by Columns
    for one in given:
        name, equals, column = one.partition("=")
        if name not in known or not equals:
            raise ConfigError(f"expected --column NAME=COLUMN with a name of {', '.join(known)}, got {one!r}")
        found[name] = column or None
    return Columns(**found)


@app.command("drop")
@o.with_audit
def drop(
    context: typer.Context,
    audit: Audit,
    inbox: InboxName = "inbox",
    cascade: Annotated[bool, typer.Option("--cascade", help="its messages too; an adopted table always stays")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="no error if there is none")] = False,
    force: Annotated[bool, typer.Option("--force", help="even if processors run or messages wait")] = False,
    yes: o.Yes = False,
) -> None:
    """Remove what relaybox made for an inbox."""
    with target_of(context).inbox(inbox) as box:
        if not yes:
            confirm(f"drop inbox {inbox}{' with its messages' if cascade else ''}?")
        dropped = box.drop(cascade=cascade, if_exists=if_exists, force=force, **audit)
    if dropped is None:
        say(f"there is no inbox {inbox}")
        return
    lost = f"; {dropped.pending} messages waited, {dropped.dead} were dead letters"
    say(f"inbox {inbox} is gone{lost}" + (f"; table {dropped.kept} is still there" if dropped.kept else ""))


@app.command("purge")
@with_ages
@o.with_audit
def purge(
    context: typer.Context,
    ages: dict[str, Any],
    audit: Audit,
    inbox: InboxName = "inbox",
    dry_run: o.DryRun = False,
    yes: o.Yes = False,
    json: o.Json = False,
) -> None:
    """Delete what is older than it shall be kept: as given, as agreed on, or as the settings say. Nothing that waits is
    touched."""
    url = masked(target_of(context).needed_url)
    with opened(context, inbox) as box:
        count = box.purge(**ages, dry_run=True)
        if not dry_run:
            if not yes:
                confirm(f"Delete {count} messages and what ids are too old from inbox {inbox} in {url}?")
            with moving("purge", count) as tell:
                count = box.purge(**ages, progress=tell, **audit)
    text = f"{count} message(s) {'would be ' if dry_run else ''}purged"
    answer(json, {"purged": count, "dry_run": dry_run}, text, schema="inbox.purge/1")


# -- looking ------------------------------------------------------------------------------------------


@app.command("list")
def list_(context: typer.Context, json: o.Json = False) -> None:
    """All inboxes of the database."""
    target = target_of(context)
    target.database(maker="relaybox inbox create").close()
    found = Inbox.list(target.needed_url)
    if json:
        emit({"inboxes": found}, schema="inbox.list/1")
        return
    rows = [(i.name, i.schema, i.table, about(i.pending), about(i.dead), i.processors) for i in found]
    names = ("inbox", "schema", "adopted table", "pending", "dead", "processors")
    console().print(table(None, names, rows)) if found else say("no inboxes")


@app.command("show")
def show(
    context: typer.Context,
    inbox: InboxName = "inbox",
    waiting: Annotated[
        str, typer.Option(metavar="N,N", help="messages that wait: degraded from, critical from")
    ] = "1000,100000",
    dead: Annotated[str, typer.Option(metavar="N,N", help="dead letters: degraded from, critical from")] = "1,100",
    oldest: Annotated[
        str, typer.Option(metavar="DURATION,DURATION", help="age of the oldest: degraded from, critical from")
    ] = "1m,15m",
    check: o.Check = False,
    json: o.Json = False,
) -> None:
    """One inbox: how it stands, whether somebody should look, and what all processes agree on."""
    limits = Limits(
        waiting=_pair(waiting, "--waiting", int),
        dead=_pair(dead, "--dead", int),
        oldest=_pair(oldest, "--oldest", parse_duration),
    )
    with opened(context, inbox) as box:
        info, status, health = box.info(), box.status(), box.health(limits)
    if json:
        emit({**asdict(info), **asdict(status), "health": health}, schema="inbox.show/1")
    else:
        rows = [
            ("health", health.level),
            *(("because", reason) for reason in health.reasons),
            ("pending", about(status.pending)),
            ("dead letters", about(status.dead)),
            ("oldest waits", age(status.oldest)),
            ("per second", f"{status.throughput:,.1f}"),
            ("received to processed", status.average and age(status.average)),
            ("processors", status.processors),
            ("table", info.table),
            *((name, _agreed(getattr(info, name))) for name in ("order", "priority", "retention", "retry")),
        ]
        console().print(table(None, ("", ""), rows))
    if check:
        leave(health)


def _pair(text: str, name: str, read: Callable[[str], T]) -> tuple[T, T]:
    try:
        degraded, critical = (read(part.strip()) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"expected {name} to be two values such as 1000,100000, got {text!r}") from None
    return degraded, critical


def _agreed(rule: Any) -> str | None:
    """What is agreed on, in words: `attempts 5, base 0.2 s, …`."""
    if rule is None:
        return None
    values = {field.name: getattr(rule, field.name) for field in fields(rule)}
    words = {n: "none" if v is None else age(v) if isinstance(v, timedelta) else v for n, v in values.items()}
    return ", ".join(f"{name} {word}" for name, word in words.items())


@app.command("stats")
def stats(context: typer.Context, inbox: InboxName = "inbox", json: o.Json = False) -> None:
    """What is kept, by type of event."""
    with opened(context, inbox) as box:
        found = box.stats()
    if json:
        emit({"types": [row._asdict() for row in found]}, schema="inbox.stats/1")
        return
    rows = [(r.event_type, r.pending, r.processed, r.dead, r.average and age(r.average)) for r in found]
    console().print(table(None, ("type", "pending", "processed", "dead", "received to processed"), rows))


@app.command("alerts")
def alerts(context: typer.Context, inbox: InboxName = "inbox", json: o.Json = False) -> None:
    """Tell what is new since anybody looked: dead letters, gaps. For cron, where no processor runs."""
    with opened(context, inbox) as box:
        told = box.alerts()
    if json:
        found = [{"event": a.name, "inbox": a.topic, "text": a.text, "over": a.over} for a in told]
        emit({"alerts": found}, schema="inbox.alerts/1")
    elif not told:
        say("nothing new")
    else:
        rows = [(alert.name, "over" if alert.over else "new", alert.text) for alert in told]
        console().print(table(None, ("event", "", ""), rows))
