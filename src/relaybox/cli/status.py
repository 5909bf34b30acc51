"""`relaybox status`: one look at the outbox, or a view that refreshes itself."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from ..durations import parse_duration
from ..errors import StoreError
from ..outbox import Outbox
from ..store.instances import Instance
from ..store.outbox.values import BlockedKey, Status
from ..topics.info import GroupInfo
from .connect import scrub, target_of
from .output import age, console, emit, plain, table


def status(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", help="refresh until Ctrl-C")] = False,
    interval: Annotated[str, typer.Option(help="pause between two looks with --watch")] = "1s",
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """How many events wait, are claimed, retry or are dead; who delivers; which keys are blocked."""
    if watch and json:
        raise typer.BadParameter("--json prints one document; it does not go with --watch")
    pause = parse_duration(interval, "interval").total_seconds()
    target = target_of(context)
    with target.outbox() as box:
        if watch:
            _watch(box, pause, target.needed_url)
        elif json:
            emit(document(*look(box)))
        else:
            console().print(view(*look(box)))


Look = tuple[Status, list[Instance], list[BlockedKey], list[GroupInfo]]


def look(box: Outbox) -> Look:
    return box.status(), box.instances(), box.blocked_keys(), _groups(box)


def _groups(box: Outbox) -> list[GroupInfo]:
    """None where the database keeps no topics, or not yet."""
    if box.topic_store is None or box.migrate(dry_run=True):
        return []
    return box.topics.groups()


def document(
    state: Status, instances: list[Instance], blocked: list[BlockedKey], groups: list[GroupInfo]
) -> dict[str, Any]:
    return {
        "due": state.due,
        "delayed": state.delayed,
        "claimed": state.claimed,
        "retrying": state.retrying,
        "dead": state.dead,
        "oldest_due_seconds": state.oldest_due,
        "events": state.events,
        "instances": instances,
        "blocked_keys": blocked,
        "groups": [
            {
                "topic": g.topic,
                "group": g.group,
                "state": g.state,
                "behind": g.pending,
                "parked": g.parked,
                "dead": g.dead,
            }
            for g in groups
        ],
    }


def view(state: Status, instances: list[Instance], blocked: list[BlockedKey], groups: list[GroupInfo]) -> Group:
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
            ("events stored", f"{state.events:,}"),
        ],
    )
    counts.show_header = False
    parts: list[Any] = [counts, Text()]
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
    return Group(*parts)


def blocked_view(blocked: list[BlockedKey]) -> Any:
    rows = [(b.key, b.event_id, "parked" if b.parked else "retrying", b.since, b.attempts, b.error) for b in blocked]
    return table("blocked keys", ("key", "event", "state", "since", "attempts", "error"), rows)


def _watch(box: Outbox, pause: float, url: str) -> None:
    """A database that is away for a moment does not end the view."""
    never = threading.Event()
    try:
        with Live(console=console(), auto_refresh=False) as live:
            while True:
                try:
                    shown: Any = view(*look(box))
                except StoreError as error:
                    shown = Text.assemble(("no answer: ", "bold red"), plain(scrub(str(error), url)))
                live.update(shown, refresh=True)
                never.wait(pause)
    except KeyboardInterrupt:
        return
