"""`relaybox groups`: who reads topics, how far they are, and what operators do about it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer

from ..audit import Audit
from ..errors import ConfigError
from ..retry import Retry
from ..topics.backfill import Pace
from ..topics.group import Group
from ..topics.start import StartFrom
from . import options as o
from .connect import target_of
from .output import age, confirm, console, emit, emit_list, fail, moving, say, table

app = typer.Typer(
    help="Groups of topics: list, show, create, lag, pause, resume, seek, cancel, backfill.", no_args_is_help=True
)

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="the group's name")]
SeekTo = Annotated[
    str,
    typer.Option(metavar="PLACE", help="latest, earliest, a time (2026-01-31T12:00Z), or an event's number"),
]


@app.command("list")
def list_(
    context: typer.Context,
    topic: Annotated[str | None, typer.Option(help="only of this topic")] = None,
    json: o.Json = False,
) -> None:
    """Every group with its state and how far it is behind."""
    with target_of(context).outbox() as box:
        groups = box.topics.groups(topic)
    if json:
        emit_list("groups", map(asdict, groups))
    elif not groups:
        say("no groups")
    else:
        columns = ("topic", "group", "state", "members", "behind", "in flight", "parked", "dead", "last seen")
        rows = [
            (g.topic, g.group, g.state, len(g.members), g.pending, g.in_flight, g.parked, g.dead, age(g.silent))
            for g in groups
        ]
        console().print(table(None, columns, rows))


@app.command("show")
def show(context: typer.Context, topic: o.TopicName, group: GroupName, json: o.Json = False) -> None:
    """One group: its state, its figures and its members."""
    with target_of(context).outbox() as box:
        info = box.topics.group(topic, group).info()
    if json:
        emit(asdict(info))
        return
    lines = asdict(info) | {"members": len(info.members), "backfill": info.backfill and info.backfill.what}
    lines |= {name: round(value, 1) for name, value in lines.items() if isinstance(value, float)}
    shown = [(k.replace("_", " "), age(v) if isinstance(v, timedelta) else v) for k, v in lines.items()]
    console().print(table(None, ("", ""), shown))
    columns = ("member", "last seen", "processed", "failed", "ignored")
    rows = [(m.name, age(m.silent), m.processed, m.failed, m.ignored) for m in info.members]
    console().print(table(None, columns, rows))


@app.command("lag")
def lag(
    context: typer.Context,
    topic: o.TopicName,
    group: GroupName,
    most: Annotated[int | None, typer.Option("--max", min=0, help="exit with 1 when more events are waiting")] = None,
    json: o.Json = False,
) -> None:
    """How far a group is behind."""
    with target_of(context).outbox() as box:
        found = box.topics.group(topic, group).lag()
    if json:
        emit(asdict(found))
    else:
        about = "" if found.exact else "about "
        oldest = f", the oldest {age(found.oldest)} old" if found.oldest is not None else ""
        rest = f"{found.taken:,} in flight, {found.parked:,} parked, {found.dead:,} dead"
        say(f"{about}{found.events:,} events behind{oldest}; {rest}")
    if most is not None and found.events > most:
        fail(f"{found.events:,} events wait, more than {most:,}")
        raise typer.Exit(1)


@app.command("create")
def create(
    context: typer.Context,
    topic: o.TopicName,
    group: GroupName,
    start: Annotated[str, typer.Option("--from", metavar="PLACE", help="as for seek")] = "latest",
    ordered: Annotated[
        bool | None, typer.Option("--ordered/--unordered", help="in the order of keys, or any event to any member")
    ] = None,
    attempts: Annotated[int | None, typer.Option(min=1, help="deliveries before an event is dead")] = None,
    on_exhausted: Annotated[
        Literal["block", "park", "skip"] | None, typer.Option(help="what then happens to its key")
    ] = None,
    silence: Annotated[
        str | None, typer.Option(metavar="DURATION", help="silent for so long it is dead: 5m, 24h")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="one that is there is fine")] = False,
    json: o.Json = False,
) -> None:
    """Subscribe a group; its place in the topic is fixed now, not when its first member comes."""
    with target_of(context).outbox() as box:
        made = box.topics.group(
            topic,
            group,
            start=_place(start),
            ordered=ordered,
            on_exhausted=on_exhausted,
            retry=None if attempts is None else Retry(attempts=attempts),
            silence=silence,
        ).create(if_not_exists=if_not_exists)
    emit(asdict(made)) if json else say(f"group {group} of topic {topic} is {made.state}, from {made.start}")


def _changed(group: Group, json: bool) -> None:
    info = group.info()
    emit(asdict(info)) if json else say(f"group {info.group} of topic {info.topic} is {info.state}")


def _turn(verb: Literal["pause", "resume"], about: str) -> None:
    @app.command(verb, help=about)
    @o.with_audit
    def command(
        context: typer.Context, topic: o.TopicName, group: GroupName, audit: Audit, json: o.Json = False
    ) -> None:
        with target_of(context).outbox() as box:
            found = box.topics.group(topic, group)
            getattr(found, verb)(**audit)
            _changed(found, json)


_turn("pause", "Take nothing more; what is written is kept for it, up to max_retention.")
_turn("resume", "Go on where it stood: a group that is paused, dead, or has stalled.")


@app.command("cancel")
@o.with_audit
def cancel(
    context: typer.Context,
    topic: o.TopicName,
    group: GroupName,
    audit: Audit,
    wait: Annotated[
        str, typer.Option(metavar="DURATION", help="how long members may finish what they hold: 30s")
    ] = "0",
    yes: o.Yes = False,
    json: o.Json = False,
) -> None:
    """Unsubscribe for good: nothing is kept for it any more."""
    if not yes:
        confirm(f"Cancel group {group} of topic {topic} for good?")
    with target_of(context).outbox() as box:
        found = box.topics.group(topic, group)
        found.cancel(wait=wait, **audit)
        _changed(found, json)


@app.command("seek")
@o.with_audit
def seek(
    context: typer.Context,
    topic: o.TopicName,
    group: GroupName,
    to: SeekTo,
    audit: Audit,
    yes: o.Yes = False,
    json: o.Json = False,
) -> None:
    """Move a group: back to see events again, or forward to pass them over."""
    place = _place(to)
    if not yes:
        confirm(f"Move group {group} of topic {topic} to {to}?")
    with target_of(context).outbox() as box:
        found = box.topics.group(topic, group)
        found.seek(place, **audit)
        lag = found.lag()
    emit(asdict(lag)) if json else say(f"group {group} of topic {topic} is {lag.events:,} events behind now")


def _place(text: str) -> StartFrom:
    if text == "latest":
        return StartFrom.latest()
    if text == "earliest":
        return StartFrom.earliest()
    if text.isdecimal():
        return StartFrom.event(int(text))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            "expected a place to be latest, earliest, a time such as 2026-01-31T12:00Z or an event's number, "
            f"got {text!r}"
        ) from None
    return StartFrom.time(when if when.tzinfo else when.replace(tzinfo=UTC))


@app.command("backfill")
def backfill(
    context: typer.Context,
    topic: o.TopicName,
    group: GroupName,
    pace: Annotated[Pace, typer.Option(help="how fast; each slows down when others must wait")] = "gentle",
    cancel: Annotated[bool, typer.Option("--cancel", help="stop one that runs, wherever that is")] = False,
    json: o.Json = False,
) -> None:
    """Let open events wait for a group that came later. Goes on where an earlier run ended."""
    with target_of(context).outbox() as box:
        found = box.topics.group(topic, group)
        if cancel:
            stopped = found.cancel_backfill()
            emit({"cancelled": stopped}) if json else say("cancelled" if stopped else "none was under way")
            return
        with moving("backfill") as tell:
            done = found.backfill(pace=pace, progress=tell)
    emit(asdict(done)) if json else say(f"{done.what}: {done.done:,} of {done.total:,}")
