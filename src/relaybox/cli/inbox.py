"""`relaybox inbox`: look at an inbox, and see to what needs a person."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

import typer

from ..clock import SYSTEM_CLOCK
from ..durations import parse_duration
from ..errors import ConfigError
from ..inbox.inbox import Inbox
from ..store.inbox.operate import InboxMessage, MessageFilter, State, Thresholds
from . import inbox_tables
from .connect import shown, target_of
from .events import content
from .output import age, confirm, console, emit, emit_list, fail, first_line, say, table

app = typer.Typer(help="Messages of other services: look, replay, purge.", no_args_is_help=True)
app.command("create")(inbox_tables.create)
app.command("adopt")(inbox_tables.adopt)
app.command("configure")(inbox_tables.configure)
app.command("drop")(inbox_tables.drop)
app.command("purge")(inbox_tables.purge)

PAGE = 500
STATES: tuple[State, ...] = ("pending", "dead", "processed")
HEALTH = ("healthy", "degraded", "critical")  # and so the exit code
T = TypeVar("T")

Name = Annotated[str, typer.Option("--inbox", envvar="RELAYBOX_INBOX", help="which inbox")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
Type = Annotated[str | None, typer.Option("--type", help="only this event type")]
Source = Annotated[str | None, typer.Option("--source", help="only from this sender")]
Key = Annotated[str | None, typer.Option("--key", help="only this key (aggregate id)")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="only this tenant")]
Since = Annotated[str | None, typer.Option(help="only received since then: a time, or 2h for two hours ago")]
Until = Annotated[str | None, typer.Option(help="only received before then")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="[ID...]", help="ids of messages")]


@contextmanager
def opened(context: typer.Context, name: str) -> Iterator[Inbox]:
    target = target_of(context)
    target.database(maker="relaybox inbox create").close()  # the same checks, no connection
    with Inbox(target.needed_url, name, schema=target.schema.value, settings=target.settings) as inbox:
        inbox.verify()
        yield inbox


@app.command("status")
def status(context: typer.Context, json: Json = False) -> None:
    """All inboxes of the database."""
    target = target_of(context)
    target.database(maker="relaybox inbox create").close()
    found = Inbox.list(target.needed_url)
    if json:
        emit({"inboxes": [asdict(info) for info in found]})
        return
    rows = [(i.name, i.schema, i.table, i.pending, i.dead, i.processors) for i in found]
    names = ("inbox", "schema", "adopted table", "pending", "dead", "processors")
    console().print(table(None, names, rows)) if found else say("no inboxes")


@app.command("list")
def list_(
    context: typer.Context,
    inbox: Name = "inbox",
    state: Annotated[str, typer.Option(help="pending, dead or processed")] = "pending",
    event_type: Type = None,
    source: Source = None,
    key: Key = None,
    tenant: Tenant = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="at most so many, oldest first")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="every page, whatever --limit says")] = False,
    json: Json = False,
) -> None:
    """Messages, oldest first; without payloads and headers."""
    where, which = _filter(event_type, source, key, tenant, since, until), _state(state)
    with opened(context, inbox) as box:
        pages = _pages(box, which, where, limit, everything)
        if json:
            emit_list("messages", (summary(message) for page in pages for message in page))
            return
        seen = 0
        for page in pages:
            seen += len(page)
            console().print(_table(page))
    if not seen:
        say(f"no {state} messages")
    elif seen == limit and not everything:
        say(f"the first {limit}; --all shows the rest")


def _pages(
    box: Inbox, state: State, where: MessageFilter, limit: int, everything: bool
) -> Iterator[list[InboxMessage]]:
    after, left = 0, limit
    while left > 0 and (page := box.messages(state, where, after=after, limit=PAGE if everything else min(left, PAGE))):
        yield page
        after = page[-1].event.seq or 0
        left -= 0 if everything else len(page)


def _table(messages: list[InboxMessage]) -> Any:
    rows = [
        (m.event.id, m.event.type, m.source, m.event.key, m.state, m.attempts, m.event.created_at, first_line(m.error))
        for m in messages
    ]
    return table(None, ("id", "type", "source", "key", "state", "attempts", "received", "error"), rows)


def summary(message: InboxMessage) -> dict[str, Any]:
    event = message.event
    return {
        "id": event.id,
        "seq": event.seq,
        "type": event.type,
        "source": message.source,
        "aggregate_type": event.aggregate_type,
        "key": event.key,
        "tenant": event.tenant,
        "content_type": event.content_type,
        "payload_size": len(event.body),
        "occurred_at": event.occurred_at,
        "received_at": event.created_at,
        "state": message.state,
        "attempts": message.attempts,
        "error": message.error,
        "position": message.position,
        "due": message.due,
        "dead_at": message.over if message.state == "dead" else None,
        "processed_at": message.over if message.state == "processed" else None,
    }


@app.command("show")
def show(
    context: typer.Context,
    event_id: Annotated[str, typer.Argument(metavar="ID", help="the message's id")],
    inbox: Name = "inbox",
    payload: Annotated[
        bool, typer.Option("--payload", help="print headers and payload too; they may be secret")
    ] = False,
    json: Json = False,
) -> None:
    """One message, where it stands, and its whole error."""
    with opened(context, inbox) as box:
        message = box.message(event_id)
    if message is None:
        raise ConfigError(f"inbox {inbox!r} keeps no message {event_id!r}; see `relaybox inbox list`")
    document = {**summary(message), **(content(message.event) if payload else {})}
    if json:
        emit(document)
        return
    rows = [(name, jsonlib.dumps(v, indent=2) if isinstance(v, (dict, list)) else v) for name, v in document.items()]
    made = table(None, ("", ""), rows)
    made.show_header = False
    console().print(made)


@app.command("health")
def health(
    context: typer.Context,
    inbox: Name = "inbox",
    pending: Annotated[str, typer.Option(help="waiting messages: degraded from, critical from")] = "1000,100000",
    dead: Annotated[str, typer.Option(help="dead letters: degraded from, critical from")] = "1,100",
    oldest: Annotated[str, typer.Option(help="age of the oldest that waits: degraded from, critical from")] = "1m,15m",
    json: Json = False,
) -> None:
    """Exit 0: healthy; 1: degraded; 2: critical, with the reasons."""
    limits = Thresholds(
        _pair(pending, "--pending", int), _pair(dead, "--dead", int), _pair(oldest, "--oldest", parse_duration)
    )
    with opened(context, inbox) as box:
        found = box.health(limits)
    if json:
        emit({**asdict(found), "oldest": found.oldest, "average": found.average})
    else:
        average = "–" if found.average is None else age(found.average)
        rows = [
            ("status", found.status),
            ("pending", found.pending),
            ("dead letters", found.dead),
            ("oldest waits", age(found.oldest)),
            ("per second", f"{found.throughput:,.1f}"),
            ("received to processed", average),
            ("processors", found.processors),
            *(("because", reason) for reason in found.reasons),
        ]
        made = table(None, ("", ""), rows)
        made.show_header = False
        console().print(made)
    raise typer.Exit(HEALTH.index(found.status))


def _pair(text: str, name: str, read: Callable[[str], T]) -> tuple[T, T]:
    try:
        degraded, critical = (read(part.strip()) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"expected {name} to be two values such as 1000,100000, got {text!r}") from None
    return degraded, critical


@app.command("stats")
def stats(context: typer.Context, inbox: Name = "inbox", json: Json = False) -> None:
    """What is kept, by type of event."""
    with opened(context, inbox) as box:
        found = box.stats()
    if json:
        emit({"types": [row._asdict() for row in found]})
        return
    rows = [(r.event_type, r.pending, r.processed, r.dead, r.average and age(r.average)) for r in found]
    console().print(table(None, ("type", "pending", "processed", "dead", "received to processed"), rows))


@app.command("gaps")
def gaps(
    context: typer.Context,
    inbox: Name = "inbox",
    limit: Annotated[int, typer.Option(min=1, help="at most so many")] = 100,
    json: Json = False,
) -> None:
    """Numbers that are missing in an ordered inbox, the longest missed first."""
    with opened(context, inbox) as box:
        found = box.gaps(limit)
    if json:
        emit({"gaps": [asdict(gap) for gap in found]})
    elif not found:
        say("no number is missing")
    else:
        rows = [(g.key, g.first, g.last, age(g.age), "yes" if g.dead else "no") for g in found]
        console().print(table(None, ("key", "first", "last", "missed for", "dead letter among them"), rows))


@app.command("skip")
def skip(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="the key that waits")],
    to: Annotated[int | None, typer.Option(min=0, help="go on with this number; else the lowest held back")] = None,
    inbox: Name = "inbox",
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Let a key go on without the numbers that are missing. They count as too late from then on."""
    with opened(context, inbox) as box:
        if not yes:
            confirm(f"Let {key!r} of inbox {inbox} in {_place(context)} go on?")
        number = box.skip(key, to)
    if json:
        emit({"key": key, "next": number})
    else:
        say(f"nothing of {key!r} is held back" if number is None else f"{key!r} goes on with number {number}")


@app.command("replay")
def replay(
    context: typer.Context,
    event_ids: Ids = None,
    inbox: Name = "inbox",
    everything: Annotated[bool, typer.Option("--all", help="all that the filters find, instead of ids")] = False,
    state: Annotated[str, typer.Option(help="with --all: dead or processed")] = "dead",
    event_type: Type = None,
    source: Source = None,
    key: Key = None,
    tenant: Tenant = None,
    since: Since = None,
    until: Until = None,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Process messages again, dead or processed: due now, attempts from zero."""
    where = _filter(event_type, source, key, tenant, since, until)
    if everything == bool(event_ids) or (event_ids and where != MessageFilter()):
        raise typer.BadParameter("give ids, or --all with filters")
    if _state(state) == "pending":
        raise typer.BadParameter("expected --state to be dead or processed: what is pending will be processed anyway")
    with opened(context, inbox) as box:
        if event_ids:
            _told("replayed", event_ids, box.replay(event_ids), json=json)
            return
        if not yes:
            confirm(f"Replay all {state} messages that match of inbox {inbox} in {_place(context)}?")
        count = box.replay_all(where, processed=state == "processed")
    emit({"replayed": count}) if json else say(f"replayed {count} message(s)")


@app.command("discard")
def discard(
    context: typer.Context,
    event_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="ids of dead letters")],
    inbox: Name = "inbox",
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete dead letters for good. Their ids stay known; an ordered key goes on past them."""
    with opened(context, inbox) as box:
        if not yes:
            confirm(f"Delete {len(event_ids)} dead letter(s) of inbox {inbox} in {_place(context)}?")
        _told("discarded", event_ids, box.discard(event_ids), json=json)


def _told(word: str, wanted: list[str], done: list[str], *, json: bool) -> None:
    missing = [event_id for event_id in wanted if event_id not in set(done)]
    if json:
        emit({word: done, "not_found": missing})
    else:
        for event_id in done:
            say(f"{word} {event_id}")
    if missing:
        fail(f"not found, or still waiting: {', '.join(missing)}; see `relaybox inbox show`")
        raise typer.Exit(1)


@app.command("alerts")
def alerts(context: typer.Context, inbox: Name = "inbox", json: Json = False) -> None:
    """Tell what is new since anybody looked: dead letters, gaps. For cron, where no processor runs."""
    with opened(context, inbox) as box:
        told = box.alerts()
    if json:
        emit({"alerts": [{"event": a.name, "inbox": a.topic, "text": a.text, "over": a.over} for a in told]})
    elif not told:
        say("nothing new")
    else:
        rows = [(alert.name, "over" if alert.over else "new", alert.text) for alert in told]
        console().print(table(None, ("event", "", ""), rows))


def _place(context: typer.Context) -> str:
    return shown(target_of(context).needed_url)


def _state(text: str) -> State:
    for state in STATES:
        if state == text:
            return state
    raise typer.BadParameter(f"expected --state to be {', '.join(STATES)}, got {text!r}")


def _filter(
    event_type: str | None,
    source: str | None,
    key: str | None,
    tenant: str | None,
    since: str | None,
    until: str | None,
) -> MessageFilter:
    return MessageFilter(event_type, source, key, tenant, _time(since, "--since"), _time(until, "--until"))


def _time(text: str | None, name: str) -> datetime | None:
    """A point in time, or how long ago it was."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
        return at if at.tzinfo else at.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return SYSTEM_CLOCK.now() - parse_duration(text, name)
    except (ConfigError, OverflowError):
        raise typer.BadParameter(f"expected {name} to be 2026-01-31T12:00, or 2h, got {text!r}") from None
