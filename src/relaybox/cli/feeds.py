"""`relaybox feeds`: which feeds there are, what waits in them, and what operators do about it."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from ..audit import Audit
from ..event import MAX_PAYLOAD
from ..feed import Feed, FeedMode, FeedSource
from ..feeds.info import FeedInfo, FeedStatus
from ..store.feeds import Refreshed
from . import options as o
from .connect import target_of
from .feed_file import load_feeds, read
from .output import answer, confirm, console, emit, emit_list, fail, say, table

app = typer.Typer(
    help="Results of queries kept as tables: list, show, create, refresh, snapshot, verify, rows, pause, resume, drop.",
    no_args_is_help=True,
)

_BESIDE_FROM = {"name", "reference", "reason", "actor", "json"}  # for what definitions in a file do not say
FeedName = Annotated[str, typer.Argument(metavar="FEED", help="the feed's name")]
DeltaNumber = Annotated[int, typer.Argument(metavar="N", min=1, help="of a delta, as its header feed-n says")]


@app.command("list")
def list_(context: typer.Context, json: o.Json = False) -> None:
    """Every feed with its mode, its table and its last refresh."""
    with target_of(context).outbox() as box:
        found = box.feeds.list()
    if json:
        emit_list("feeds", map(asdict, found))
    elif not found:
        say("no feeds; `relaybox feeds create` makes one")
    else:
        console().print(view(found))


def view(found: list[FeedInfo]) -> Any:
    rows = [(f.name, "paused" if f.paused else "active", f.mode, f.table, f.deltas, f.refreshed_at) for f in found]
    return table(None, ("feed", "state", "mode", "table", "deltas", "refreshed"), rows)


@app.command("show")
def show(context: typer.Context, name: FeedName, json: o.Json = False) -> None:
    """One feed: how it is defined, what waits for its next refresh, and what is kept for readers."""
    with target_of(context).outbox() as box:
        found = document(box.feeds.status(name))
    if json:
        emit(found)
        return
    found |= found.pop("schedule")
    lines = [(k.replace("_", " "), ", ".join(v) if isinstance(v, (list, tuple)) else v) for k, v in found.items()]
    console().print(table(None, ("", ""), lines))


def document(status: FeedStatus) -> dict[str, Any]:
    found = asdict(status) | {"schedule": status.schedule._asdict()}
    return {**found.pop("feed"), **found}


def _sources(given: list[str], resolve: list[str], by_row: list[str]) -> dict[str, FeedSource]:
    found = {name: FeedSource(columns.split(",")) for name, columns in map(_pair, given)}
    changes = [(name, {"resolve": query}) for name, query in map(_pair, resolve)] + [
        (n, {"by_row": True}) for n in by_row
    ]
    for name, change in changes:
        if name not in found:
            raise typer.BadParameter(f"no --source {name}=COLUMN was given")
        found[name] = replace(found[name], **change)
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals or not value:
        raise typer.BadParameter(f"expected TABLE=… such as orders=customer, got {text!r}")
    return name, value


@app.command("create")
@o.with_audit
def create(
    context: typer.Context,
    audit: Audit,
    name: Annotated[str | None, typer.Argument(metavar="FEED", help="the feed's name")] = None,
    reference: Annotated[
        str | None,
        typer.Option("--from", metavar="MODULE:OBJECT|FILE.toml", help="all that is defined there, or FEED of it"),
    ] = None,
    query: Annotated[str | None, typer.Option(metavar="SQL", help="a SELECT")] = None,
    query_file: Annotated[Path | None, typer.Option(help="a file with it")] = None,
    key: Annotated[list[str] | None, typer.Option(metavar="COLUMN", help="identifies a row; may be repeated")] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE=COLUMN,…", help="a table it reads, and what maps a change there; may be repeated"),
    ] = None,
    resolve: Annotated[
        list[str] | None, typer.Option(metavar="TABLE=SQL", help="finds the scope of what was touched there")
    ] = None,
    by_row: Annotated[
        list[str] | None, typer.Option(metavar="TABLE", help="a subscription of logical replication fills that source")
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="what changes are mapped to, if not the key")
    ] = None,
    mode: Annotated[FeedMode, typer.Option(help="look at what changed, or evaluate all")] = "auto",
    kept_as: Annotated[
        str | None, typer.Option(metavar="TABLE", help="what the table is called; else feed_NAME")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="where deltas go; else one of the feed's name")] = None,
    inline_rows: Annotated[int, typer.Option(help="larger deltas are stored in chunks")] = 10_000,
    inline_bytes: Annotated[int, typer.Option(help="likewise of more bytes; an event takes 1 MiB")] = MAX_PAYLOAD,
    chunk_rows: Annotated[int, typer.Option(help="rows in a chunk at most")] = 1_000,
    auto_share: Annotated[
        float, typer.Option(help="mode auto evaluates all if more of the rows may have changed")
    ] = 0.3,
    skip_empty: Annotated[bool, typer.Option("--skip-empty/--keep-empty", help="no delta if nothing changed")] = True,
    every: Annotated[
        str | None, typer.Option(metavar="DURATION", help="how often a maintainer refreshes it; else who asks does")
    ] = None,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="of such a refresh")] = "10m",
    json: o.Json = False,
) -> None:
    """Make a feed, or define it anew; the same definition changes nothing."""
    if reference is not None:
        sources = {one: context.get_parameter_source(one) for one in context.params.keys() - _BESIDE_FROM}
        if given := sorted(one for one, source in sources.items() if source and source.name == "COMMANDLINE"):
            raise typer.BadParameter(f"the definition is in --from: say {', '.join(given)} there")
        feeds = load_feeds(reference, name)
    else:
        if name is None or (query is None) == (query_file is None) or not key:
            raise typer.BadParameter("a feed needs FEED, --key, and --query or --query-file; or --from")
        feeds = [
            Feed(
                name,
                query or read(query_file),  # type: ignore[arg-type]
                key=key,
                sources=_sources(source or [], resolve or [], by_row or []),
                scope=scope or None,
                mode=mode,
                table=kept_as,
                topic=topic,
                inline_rows=inline_rows,
                inline_bytes=inline_bytes,
                chunk_rows=chunk_rows,
                auto_share=auto_share,
                skip_empty=skip_empty,
                every=every,
                timeout=timeout,
            )
        ]
    with target_of(context).outbox() as box:
        made = [box.feeds.create(feed, **audit) for feed in feeds]
    if json:
        emit_list("feeds", map(asdict, made))
        return
    for info in made:
        say(f"feed {info.name}: {info.mode}, kept as {info.table}, deltas go to topic {info.topic}")


def _told(name: str, done: Refreshed, json: bool) -> None:
    if json:
        emit(done._asdict())
        return
    why = f" ({', '.join(done.reasons)})" if done.reasons else ""
    what = "nothing changed" if done.delta is None else f"delta {done.delta}"
    say(f"feed {name}: {what}, {done.inserted:,} inserted, {done.deleted:,} deleted, {done.how}{why}")


@app.command("refresh")
def refresh(
    context: typer.Context,
    name: FeedName,
    full: Annotated[bool, typer.Option("--full", help="evaluate the whole query")] = False,
    json: o.Json = False,
) -> None:
    """Bring the table up to date, and write one delta of what that changed."""
    with target_of(context).outbox() as box:
        _told(name, box.feeds.refresh(None, name, full=full), json)


@app.command("snapshot")
@o.with_audit
def snapshot(context: typer.Context, name: FeedName, audit: Audit, json: o.Json = False) -> None:
    """Refresh, and write the whole table as one event, for readers that are new or have a gap."""
    with target_of(context).outbox() as box:
        _told(name, box.feeds.snapshot(None, name, **audit), json)


@app.command("verify")
def verify(context: typer.Context, name: FeedName, json: o.Json = False) -> None:
    """Evaluate the query and count the rows that differ; exit 1 if that is not because changes wait. In mode full they
    may always."""
    with target_of(context).outbox() as box:
        found, info = box.feeds.verify(name), box.feeds.get(name)
    if json:
        emit(found._asdict())
    else:
        heard = "" if found.captured else "; changes go unseen: it is paused, or its triggers are not as they were left"
        say(f"feed {name}: {found.rows:,} rows differ, {found.waiting:,} changes wait{heard}")
    noted = info is None or info.mode != "full"  # of a full one nobody notes what changed since its refresh
    if not found.captured or (found.rows and not found.waiting and noted):
        fail(f"feed {name} is not what its query says; `relaybox feeds refresh {name} --full` mends it")
        raise typer.Exit(1)


@app.command("rows")
def rows(context: typer.Context, name: FeedName, number: DeltaNumber) -> None:
    """Print the rows of a delta that is kept in chunks: a line of JSON each, deleted ones first."""
    with target_of(context).outbox() as box:
        for op, row in box.feeds.rows_of(name, number):
            sys.stdout.write(f'{{"op": "{op}", "row": {_exact(row)}}}\n')


def _exact(value: Any) -> str:
    """JSON that keeps every digit, ASCII only."""
    match value:
        case dict():
            return "{" + ", ".join(f"{jsonlib.dumps(name)}: {_exact(one)}" for name, one in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_exact, value)) + "]"
        case Decimal():
            return str(value)
    return jsonlib.dumps(value)


def _turn(verb: str, about: str, done: str) -> None:
    @app.command(verb, help=about)
    @o.with_audit
    def command(context: typer.Context, name: FeedName, audit: Audit, json: o.Json = False) -> None:
        with target_of(context).outbox() as box:
            changed = getattr(box.feeds, verb)(name, **audit)
            info = box.feeds.get(name)
        assert info is not None
        answer(json, asdict(info), f"feed {name} is {done}" + ("" if changed else " already"))


_turn("pause", "Drop its triggers: writers pay nothing, and the table stays as it is.", "paused")
_turn("resume", "Make its triggers again; the next refresh evaluates all.", "active")


@app.command("drop")
@o.with_audit
def drop(context: typer.Context, name: FeedName, audit: Audit, yes: o.Yes = False, json: o.Json = False) -> None:
    """Delete a feed with its table, and the topic that was made for it. Refused while a group reads that."""
    with target_of(context).outbox() as box:
        if not yes:
            confirm(f"Delete feed {name} with its table?")
        gone = box.feeds.drop(name, **audit)
    answer(json, {"dropped": gone}, f"dropped {name}" if gone else f"there is no feed {name}")


FeedGroup = Annotated[str, typer.Option("--group", metavar="GROUP", help="a group of the feed's topic")]


@app.command("hand-off")
@o.with_audit
def hand_off(
    context: typer.Context,
    name: FeedName,
    group: FeedGroup,
    audit: Audit,
    off: Annotated[bool, typer.Option("--off", help="rows wait for this group's jobs no more")] = False,
    json: o.Json = False,
) -> None:
    """Keep the rows of claim checks until `consumed`: the group leaves reading them to other jobs."""
    with target_of(context).outbox() as box:
        changed = box.feeds.hand_off(name, group=group, on=not off, **audit)
    what = f"the rows of feed {name} {'do not wait' if off else 'wait'} for the word of group {group}"
    answer(json, {"changed": changed}, what + ("" if changed else " already"))


@app.command("consumed")
def consumed(
    context: typer.Context, name: FeedName, number: DeltaNumber, group: FeedGroup, json: o.Json = False
) -> None:
    """Say that the rows of a delta were read for a group that hands them off. Safe to repeat."""
    with target_of(context).outbox() as box:
        changed = box.feeds.rows_consumed(name, number, group=group)
    answer(json, {"changed": changed}, f"delta {number} of feed {name} {'waits' if changed else 'waited'} no more")
