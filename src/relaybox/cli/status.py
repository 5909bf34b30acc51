"""`relaybox status`: one look at the outbox and what is beside it, or a view that refreshes itself."""

from __future__ import annotations

import threading
from contextlib import nullcontext, suppress
from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from ..clock import SYSTEM_CLOCK
from ..durations import parse_duration
from ..errors import StoreError
from ..feeds.info import FeedInfo
from ..inbox.inbox import Inbox
from ..outbox import Outbox
from ..redaction import scrub
from ..store.inbox.adopted.make import InboxInfo
from ..store.instances import Instance
from ..topics.info import GroupInfo
from ..values import BlockedKey, Health, Status
from .connect import target_of
from .events import blocked_view
from .feeds import view as feeds_view
from .options import Check, Json
from .output import about, age, console, emit, plain, table
from .run import leave


def status(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", help="refresh until Ctrl-C")] = False,
    interval: Annotated[str, typer.Option(metavar="DURATION", help="pause between two looks with --watch")] = "1s",
    check: Check = False,
    json: Json = False,
) -> None:
    """How many events wait, retry or are dead; who delivers them where to; blocked keys, groups, feeds, inboxes."""
    if watch and json:
        raise typer.BadParameter("--json prints one document; it does not go with --watch")
    pause = parse_duration(interval, "interval").total_seconds()
    target = target_of(context)
    with target.outbox() as box:
        if watch:
            _watch(box, pause, target.needed_url)
            return
        found = look(box, target.needed_url)
    if json:
        emit(document(found), schema="status/1")
    else:
        console().print(view(found))
    if check:
        leave(found.health)


FEED = ("name", "topic", "paused", "mode", "deltas", "refreshed_at", "how", "inserted", "deleted")
INBOX = ("name", "schema", "pending", "dead", "processors")


class Look(NamedTuple):
    state: Status
    health: Health
    instances: list[Instance]
    blocked: list[BlockedKey]
    groups: list[GroupInfo]
    feeds: list[FeedInfo]
    inboxes: list[InboxInfo] | None  # None: this role may not look at one of them


def look(box: Outbox, url: str) -> Look:
    groups: list[GroupInfo] = []
    feeds: list[FeedInfo] = []
    if box.topic_store is not None and not box.migrate(dry_run=True):  # the database keeps them, and has their tables
        groups, feeds = box.topics.groups(), box.feeds.list()
    return Look(box.status(), box.health(), box.instances(), box.keys.list(), groups, feeds, _inboxes(url))


def _inboxes(url: str) -> list[InboxInfo] | None:
    try:
        return Inbox.list(url)
    except StoreError:
        return None


def document(found: Look) -> dict[str, Any]:
    shown = ("topic", "group", "state", "pending", "parked", "dead")
    return {
        **asdict(found.state),
        "health": found.health,
        "instances": found.instances,
        "blocked_keys": found.blocked,
        "groups": [{name: getattr(group, name) for name in shown} for group in found.groups],
        "feeds": [{name: getattr(feed, name) for name in FEED} for feed in found.feeds],
        "inboxes": found.inboxes and [{name: getattr(each, name) for name in INBOX} for each in found.inboxes],
    }


def view(found: Look) -> Group:
    state, health, instances, blocked, groups, feeds, inboxes = found
    counts = table(
        None,
        ("", ""),
        [
            ("due", f"{state.due:,}"),
            ("delayed", f"{state.delayed:,}"),
            ("claimed", f"{state.claimed:,}"),
            ("retrying", f"{state.retrying:,}"),
            ("dead", Text(f"{state.dead:,}", style="bold red" if state.dead else "")),
            ("oldest due", age(state.oldest_due)),
            ("events stored", about(state.events)),
        ],
    )
    parts: list[Any] = [counts, Text()]
    if health.reasons:
        parts += [Text(f"{health.level}: {'; '.join(health.reasons)}", style="yellow"), Text()]
    if instances:
        rows = [(i.name, i.role, i.started_at, i.expires_at, i.note or "") for i in instances]
        parts.append(table("delivering", ("instance", "role", "started", "alive until", ""), rows))
    else:
        parts.append(Text("no process delivers", style="yellow"))
    if blocked:
        parts += [Text(), blocked_view(blocked)]
    if groups:
        seen = [(g.topic, g.group, g.state, g.pending, g.parked, g.dead) for g in groups if g.state != "cancelled"]
        parts += [Text(), table("groups of topics", ("topic", "group", "state", "behind", "parked", "dead"), seen)]
    if feeds:
        parts += [Text(), Text("feeds"), feeds_view(feeds)]
    if inboxes:
        held = [(each.name, about(each.pending), about(each.dead), each.processors) for each in inboxes]
        parts += [Text(), table("inboxes", ("inbox", "pending", "dead", "processors"), held)]
    elif inboxes is None:
        parts += [Text(), Text("inboxes: this role may not look at them", style="yellow")]
    return Group(*parts)


def _watch(box: Outbox, pause: float, url: str) -> None:
    """A database that is away for a moment does not end the view."""
    never = threading.Event()
    out = console()
    shows = Live(console=out, auto_refresh=False) if out.is_terminal else nullcontext()
    with suppress(KeyboardInterrupt), shows as live:
        while True:
            try:
                shown: Any = view(look(box, url))
            except StoreError as error:
                shown = Text.assemble(("no answer: ", "bold red"), plain(scrub(str(error), url)))
            if live is None:  # one view after the other, each with its time
                out.print(plain(SYSTEM_CLOCK.now()), shown, "")
                out.file.flush()
            else:
                live.update(shown, refresh=True)
            never.wait(pause)
