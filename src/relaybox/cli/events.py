"""`relaybox events`, `relaybox dead`, `relaybox keys`: look at what an outbox, a group or an inbox keeps, and change
what becomes of it. `--of` says of which."""

from __future__ import annotations

import base64
import json as jsonlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Protocol, get_args

import typer

from ..audit import Audit
from ..errors import ConfigError, NotFound, SchemaMissing, Undecodable
from ..event import Event
from ..operate import DeadLetters, Events, Keys
from ..redaction import masked
from ..store.events import Kind
from ..values import DeadLetter, StoredEvent, Where
from . import options as o
from .connect import target_of
from .output import answer, console, emit, emit_list, fail, first_line, say, table

PAGE = 500
Of = Annotated[str, typer.Option("--of", help="outbox, group/TOPIC/GROUP or inbox/NAME")]
StateOption = Annotated[str | None, typer.Option("--state", help="only open, dead or done events")]
Letter = DeadLetter | StoredEvent


class Operated(Protocol):
    events: Events
    dead: DeadLetters
    keys: Keys


@contextmanager
def opened(context: typer.Context, of: str) -> Iterator[Operated]:
    """What `--of` names."""
    target = target_of(context)
    match of.split("/"):
        case ["outbox"]:
            with target.outbox() as outbox:
                try:
                    yield outbox
                except SchemaMissing as error:
                    raise SchemaMissing(f"{error}; or say of what it is, by --of inbox/NAME") from error
        case ["group", *topic, group] if topic:
            with target.outbox() as outbox:
                yield outbox.topics.group("/".join(topic), group)
        case ["inbox", name] if name:
            with target.inbox(name) as inbox:
                inbox.verify()
                yield inbox
        case _:
            raise ConfigError(f"expected --of to be outbox, group/TOPIC/GROUP or inbox/NAME, got {of!r}")


def nouns(noun: Literal["events", "dead"]) -> typer.Typer:
    """The same commands for events in any state and for dead letters."""
    of_all = noun == "events"
    word = "event" if of_all else "dead letter"
    app = typer.Typer(
        help=f"{'Events in any state' if of_all else 'Events that were given up'}: list, show, count, replay, discard.",
        no_args_is_help=True,
    )

    @app.command("list")
    @o.with_options("state", {"state": StateOption} if of_all else {}, lambda given: given.get("state"))
    @o.with_where
    def list_(
        context: typer.Context,
        where: Where,
        state: str | None,
        of: Of = "outbox",
        limit: Annotated[int, typer.Option(min=1, help="at most so many, oldest first")] = 50,
        everything: Annotated[bool, typer.Option("--all", help="every page, whatever --limit says")] = False,
        json: o.Json = False,
    ) -> None:
        """The oldest first; without payloads and headers."""
        if state not in (None, *get_args(Kind)):
            raise typer.BadParameter(f"expected --state to be open, dead or done, got {state!r}")
        with opened(context, of) as box:
            pages = _pages(getattr(box, noun), where, {"state": state} if state else {}, limit, everything)
            if json:
                emit_list(noun, (summary(one) for page in pages for one in page), schema=f"{noun}.list/1")
                return
            seen = 0
            for page in pages:
                seen += len(page)
                console().print(_table(page))
            total = seen if everything or state else getattr(box, noun).count(where)
        if not seen:
            say(f"no {word}s")
        elif seen < total:
            say(f"{seen} of {total}; --all shows the rest")

    @app.command("count")
    @o.with_where
    def count(context: typer.Context, where: Where, of: Of = "outbox", json: o.Json = False) -> None:
        """How many there are."""
        with opened(context, of) as box:
            found = getattr(box, noun).count(where)
        emit({"count": found}, schema=f"{noun}.count/1") if json else say(str(found))

    @app.command("show")
    def show(
        context: typer.Context,
        id: Annotated[str, typer.Argument(metavar="ID", help="the event's id")],
        of: Of = "outbox",
        sender: o.Sender = None,
        payload: Annotated[
            bool, typer.Option("--payload", help="print headers and payload too; they may be secret")
        ] = False,
        json: o.Json = False,
    ) -> None:
        """One of them, with its whole error."""
        with opened(context, of) as box:
            found = getattr(box, noun).get(id, sender=sender)
            if found is None:
                raise NotFound(word, id, f"there is no {word} {id!r}; see `{_list(noun, of)}`")
            document = summary(found)
            if payload:
                document["event"] |= content(found.event)
            elif named := named_headers(found.event, target_of(context).settings.admin.shown()):
                document["event"]["headers"] = named
        if json:
            emit(document, schema=f"{noun}.show/1")
            return
        flat = {**document.pop("event"), **document}
        rows = [(name, jsonlib.dumps(v, indent=2) if isinstance(v, (dict, list)) else v) for name, v in flat.items()]
        console().print(table(None, ("", ""), rows))

    def change(verb: Literal["replay", "discard"], about: str) -> None:
        def command(
            context: typer.Context,
            where: Where,
            audit: Audit,
            ids: o.Ids = None,
            of: Of = "outbox",
            everything: o.All = False,
            dry_run: o.DryRun = False,
            yes: o.Yes = False,
            json: o.Json = False,
        ) -> None:
            chosen = o.which(ids, where, everything)
            with opened(context, of) as box:
                act = getattr(getattr(box, noun), verb)
                if dry_run:
                    count = act(chosen, dry_run=True)
                elif ids:
                    count = act(chosen, **audit)
                else:
                    url = masked(target_of(context).needed_url)
                    count = o.changed(
                        f"{verb.capitalize()} {{}} {word}(s) of {of} in {url}?",
                        lambda dry, tell: act(chosen, dry_run=dry, progress=tell, **audit),
                        yes=yes,
                    )
            done = f"{verb}ed" if not dry_run else f"would be {verb}ed"
            told = {f"{verb}ed": count, "dry_run": dry_run}
            answer(json, told, f"{count} {word}(s) {done}", schema=f"{noun}.{verb}/1")
            if ids and count < len(set(ids)):
                fail(f"{len(set(ids)) - count} of {len(set(ids))} ids are no {word}s that can be {verb}ed; "
                     f"see `{_list(noun, of)}`")  # fmt: skip
                raise typer.Exit(1)

        command.__doc__ = about
        app.command(verb)(o.with_where(o.with_audit(command)))

    change("replay", "Handle these again: due now, attempts from zero." + (" Finished ones too." if of_all else ""))
    change("discard", "Give these up for good." + (" Open ones too." if of_all else ""))
    return app


def _list(noun: str, of: str) -> str:
    return f"relaybox {noun} list" + ("" if of == "outbox" else f" --of {of}")


def _pages(found: Any, where: Where, options: dict[str, str], limit: int, everything: bool) -> Iterator[list[Letter]]:
    after, left = 0, limit
    while page := found.list(where, after=after, limit=PAGE if everything else min(left, PAGE), **options):
        yield page
        after = page[-1].event.seq or 0
        left -= len(page)
        if not everything and left <= 0:
            return


def _table(found: list[Letter]) -> Any:
    names = ["id", "type", "key", "tenant", "attempts", "error"]
    own = ["dead_at"] if isinstance(found[0], DeadLetter) else ["state", "due"]
    rows = []
    for one in found:
        event = one.event
        more = [getattr(one, name) for name in own]
        rows.append([event.id, event.type, event.key, event.tenant, one.attempts, *more, first_line(one.error)])
    return table(None, [*names[:-1], *own, names[-1]], rows)


def summary(found: Letter) -> dict[str, Any]:
    """The fields of a DeadLetter or a StoredEvent; of its event all but headers and payload."""
    event = found.event
    fields = {name: getattr(found, name) for name in found.__dataclass_fields__ if name != "event"}
    return {
        "event": {
            "id": event.id,
            "seq": event.seq,
            "type": event.type,
            "aggregate_type": event.aggregate_type,
            "key": event.key,
            "tenant": event.tenant,
            "sender": event.sender,
            "content_type": event.content_type,
            "payload_size": len(event.body or b""),  # none: the row cannot be read
            "occurred_at": event.occurred_at,
            "created_at": event.created_at,
            "deliver_at": event.deliver_at,
        },
        **fields,
    }


def named_headers(event: Event, wanted: Collection[str]) -> dict[str, str]:
    """Those that may be shown, as the settings say."""
    if not wanted or event.unreadable is not None:
        return {}
    try:
        return {name: value for name, value in event.headers.items() if name.lower() in wanted}
    except Undecodable:
        return {}


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


# -- keys ---------------------------------------------------------------------------------------------

keys = typer.Typer(help="Keys of ordered events that do not go on: list, release.", no_args_is_help=True)


@keys.command("list")
def list_keys(
    context: typer.Context,
    of: Of = "outbox",
    limit: Annotated[int, typer.Option(min=1, help="at most so many, longest blocked first")] = 100,
    json: o.Json = False,
) -> None:
    """Which keys wait, since when and why."""
    with opened(context, of) as box:
        found = box.keys.list(limit)
    if json:
        emit({"keys": found}, schema="keys.list/1")
    elif found:
        console().print(blocked_view(found))
    else:
        say("no key is blocked")


def blocked_view(found: list[Any]) -> Any:
    rows = [(b.key, b.cause, b.event_id or _gap(b), b.since, b.attempts, first_line(b.error)) for b in found]
    return table("blocked keys", ("key", "cause", "waits for", "since", "attempts", "error"), rows)


def _gap(blocked: Any) -> str | None:
    return None if blocked.first is None else f"numbers {blocked.first} to {blocked.last}"


@keys.command("release")
@o.with_audit
def release(
    context: typer.Context,
    key: Annotated[str, typer.Argument(metavar="KEY", help="the key, as `keys list` shows it")],
    audit: Audit,
    of: Of = "outbox",
    to: Annotated[int | None, typer.Option(help="in an inbox: the number to go on with")] = None,
    json: o.Json = False,
) -> None:
    """Let a key go on without the event it waits for, which stays a dead letter or is tried on by itself."""
    with opened(context, of) as box:
        if not box.keys.release(key, to=to, **audit):
            raise ConfigError(f"no key {key!r} is blocked; see `relaybox keys list`")
    emit({"released": key}, schema="keys.release/1") if json else say(f"released {key!r}")
