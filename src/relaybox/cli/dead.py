"""`relaybox dead`: look at dead letters and send them again."""

from __future__ import annotations

import base64
import json as jsonlib
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ..errors import ConfigError, Undecodable
from ..event import Event
from ..outbox import Outbox
from ..store.outbox.values import DeadFilter, DeadLetter
from .connect import shown, target_of
from .output import confirm, console, emit, emit_list, fail, first_line, progress, say, table

app = typer.Typer(help="Events that were given up: list, show, replay.", no_args_is_help=True)

PAGE = 500
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Type = Annotated[str | None, typer.Option("--type", help="only this event type")]
Aggregate = Annotated[str | None, typer.Option("--aggregate-type", help="only this aggregate type")]
Key = Annotated[str | None, typer.Option("--key", help="only this key (aggregate id)")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="only this tenant")]


@app.command("list")
def list_(
    context: typer.Context,
    event_type: Type = None,
    aggregate_type: Aggregate = None,
    key: Key = None,
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option(min=1, help="at most so many, oldest first")] = 50,
    everything: Annotated[bool, typer.Option("--all", help="every page, whatever --limit says")] = False,
    json: Json = False,
) -> None:
    """Dead letters, oldest first; without payloads and headers."""
    where = DeadFilter(event_type, aggregate_type, key, tenant)
    with target_of(context).outbox() as box:
        if json:
            emit_list("dead", (summary(letter) for page in _pages(box, where, limit, everything) for letter in page))
            return
        seen = 0
        for page in _pages(box, where, limit, everything):
            seen += len(page)
            console().print(_table(page))
        total = seen if everything else box.dead.count(where)
    if not seen:
        say("no dead letters")
    elif seen < total:
        say(f"{seen} of {total}; --all shows the rest")


def _pages(box: Outbox, where: DeadFilter, limit: int, everything: bool) -> Iterator[list[DeadLetter]]:
    after = 0
    left = limit
    while page := box.dead.list(limit=PAGE if everything else min(left, PAGE), after=after, where=where):
        yield page
        after = page[-1].event.seq or 0
        left -= len(page)
        if not everything and left <= 0:
            return


def _table(letters: list[DeadLetter]) -> Any:
    rows = [
        (d.event.id, d.event.type, d.event.key, d.event.tenant, d.attempts, d.dead_at, first_line(d.error))
        for d in letters
    ]
    return table(None, ("id", "type", "key", "tenant", "attempts", "died", "error"), rows)


def summary(letter: DeadLetter) -> dict[str, Any]:
    event = letter.event
    return {
        "id": event.id,
        "seq": event.seq,
        "type": event.type,
        "aggregate_type": event.aggregate_type,
        "key": event.key,
        "tenant": event.tenant,
        "content_type": event.content_type,
        "payload_size": len(event.body),
        "occurred_at": event.occurred_at,
        "created_at": event.created_at,
        "deliver_at": event.deliver_at,
        "dead_at": letter.dead_at,
        "attempts": letter.attempts,
        "error": letter.error,
    }


@app.command("show")
def show(
    context: typer.Context,
    event_id: Annotated[str, typer.Argument(metavar="ID", help="the event's id")],
    payload: Annotated[
        bool, typer.Option("--payload", help="print headers and payload too; they may be secret")
    ] = False,
    json: Json = False,
) -> None:
    """One dead letter with its whole error."""
    with target_of(context).outbox() as box:
        letter = box.dead.get(event_id)
    if letter is None:
        raise ConfigError(f"there is no dead letter {event_id!r}; see `relaybox dead list`")
    document = {**summary(letter), **(content(letter.event) if payload else {})}
    if json:
        emit(document)
        return
    rows = [(name, jsonlib.dumps(v, indent=2) if isinstance(v, (dict, list)) else v) for name, v in document.items()]
    shown_table = table(None, ("", ""), rows)
    shown_table.show_header = False
    console().print(shown_table)


def content(event: Event) -> dict[str, Any]:
    """Headers and payload as well as they can be read: why an event died may be that they cannot."""
    if event.unreadable is not None:
        return {"unreadable": event.unreadable}
    try:
        headers: Any = dict(event.headers)
    except Undecodable:
        headers = event.headers_text
    try:
        value = event.payload
        if not isinstance(value, bytes):
            return {"headers": headers, "payload": value}
    except Undecodable:
        pass
    try:
        return {"headers": headers, "payload_text": event.body.decode()}
    except UnicodeDecodeError:
        return {"headers": headers, "payload_base64": base64.b64encode(event.body).decode()}


@app.command("replay")
def replay(
    context: typer.Context,
    event_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="ids of dead letters")],
    json: Json = False,
) -> None:
    """Send dead letters again: due now, attempts from zero."""
    with target_of(context).outbox() as box:
        done = {event_id: box.dead.replay(event_id) for event_id in event_ids}
    replayed = [event_id for event_id, found in done.items() if found]
    missing = [event_id for event_id, found in done.items() if not found]
    if json:
        emit({"replayed": replayed, "not_found": missing})
    else:
        for event_id in replayed:
            say(f"replayed {event_id}")
    if missing:
        fail(f"no dead letter {', '.join(missing)}; see `relaybox dead list`")
        raise typer.Exit(1)


@app.command("replay-all")
def replay_all(
    context: typer.Context,
    event_type: Type = None,
    aggregate_type: Aggregate = None,
    key: Key = None,
    tenant: Tenant = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    json: Json = False,
) -> None:
    """Send all dead letters that match again, each at most once."""
    where = DeadFilter(event_type, aggregate_type, key, tenant)
    target = target_of(context)
    with target.outbox() as box:
        total = box.dead.count(where)
        if total and not yes:
            confirm(f"Replay {total} dead letter(s) of {box.store.tables.event} in {shown(target.needed_url)}?")
        count = 0
        if total:
            with progress(total=True) as bar:
                task = bar.add_task("replaying", total=total)
                count = box.dead.replay_all(where, progress=lambda n: bar.update(task, completed=n))
    emit({"replayed": count}) if json else say(f"replayed {count} dead letter(s)")
