"""`relaybox groups`: who reads topics, how far they are, and what operators do about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import typer

from ..durations import parse_duration
from ..errors import ConfigError
from ..outbox import Outbox
from ..store.topics import Parked
from ..topics.admin import PULLED
from ..topics.backfill import Backfill
from ..topics.start import StartFrom
from .connect import target_of
from .output import age, confirm, console, emit, emit_list, fail, first_line, say, table

app = typer.Typer(help="Consumer groups: list, show, lag, pause, resume, seek, replay.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="the topic's name")]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="the group's name")]
Reason = Annotated[str, typer.Option(help="why, for the log and for those who come after you")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
To = Annotated[
    str,
    typer.Option(metavar="PLACE", help="latest, earliest, a time (2026-01-31T12:00Z), or an event's number"),
]


@app.command("list")
def list_(
    context: typer.Context,
    topic: Annotated[str | None, typer.Option(help="only of this topic")] = None,
    json: Json = False,
) -> None:
    """Every group with its state and how far it is behind."""
    with target_of(context).outbox() as box:
        groups = box.topics.groups.list(topic)
    if json:
        emit_list("groups", map(asdict, groups))
    elif not groups:
        say("no groups")
    else:
        columns = ("topic", "group", "state", "members", "behind", "in flight", "parked", "dead", "last seen")
        rows = [
            (g.topic, g.group, g.state, g.members, g.pending, g.in_flight, g.parked, g.dead, age(g.silent))
            for g in groups
        ]
        console().print(table(None, columns, rows))


@app.command("show")
def show(context: typer.Context, topic: Topic, group: Group, json: Json = False) -> None:
    """One group: health, figures and members."""
    with target_of(context).outbox() as box:
        admin = box.topics.groups
        health, metrics, members = admin.health(topic, group), admin.metrics(topic, group), admin.members(topic, group)
    if json:
        emit({**asdict(metrics), **asdict(health), "members": [asdict(member) for member in members]})
        return
    lines = {**asdict(metrics), **asdict(health)}
    shown = table(
        None, ("", ""), [(k.replace("_", " "), age(v) if isinstance(v, timedelta) else v) for k, v in lines.items()]
    )
    shown.show_header = False
    console().print(shown)
    columns = ("member", "last seen", "processed", "failed", "filtered")
    rows = [(m.name, age(m.silent), m.processed, m.failed, m.filtered) for m in members]
    console().print(table(None, columns, rows))


@app.command("lag")
def lag(
    context: typer.Context,
    topic: Topic,
    group: Group,
    most: Annotated[int | None, typer.Option("--max", min=0, help="exit with 1 when more events are waiting")] = None,
    json: Json = False,
) -> None:
    """How far a group is behind."""
    with target_of(context).outbox() as box:
        found = box.topics.groups.lag(topic, group)
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
    topic: Topic,
    group: Group,
    to: Annotated[str, typer.Option("--from", metavar="PLACE", help="as for seek")] = "latest",
    unordered: Annotated[bool, typer.Option("--unordered", help="any member may have any event")] = False,
    max_attempts: Annotated[int, typer.Option(min=1, help="deliveries before an event is dead")] = 10,
    on_exhausted: Annotated[
        Literal["block", "park", "skip"], typer.Option(help="what then happens to its key")
    ] = "skip",
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="one that is there is fine")] = False,
    json: Json = False,
) -> None:
    """Subscribe a group; its place in the topic is fixed now, not when its first consumer comes."""
    options = replace(PULLED, ordered=not unordered, max_attempts=max_attempts, on_exhausted=on_exhausted)
    with target_of(context).outbox() as box:
        made = box.topics.groups.create(topic, group, _place(to), options=options, if_not_exists=if_not_exists)
    emit(asdict(made)) if json else say(f"group {group} of topic {topic} is {made.state}, from {made.start}")


def _change(
    context: typer.Context, topic: str, group: str, json: bool, change: Callable[[Outbox], Any], done: str
) -> None:
    with target_of(context).outbox() as box:
        result = change(box)
    emit(asdict(result)) if json else say(f"group {group} of topic {topic} {done}")


@app.command("pause")
def pause(context: typer.Context, topic: Topic, group: Group, reason: Reason = "", json: Json = False) -> None:
    """Take nothing more; what is written is kept for it, up to max_retention."""
    _change(context, topic, group, json, lambda b: b.topics.groups.pause(topic, group, reason=reason), "is paused")


@app.command("resume")
def resume(context: typer.Context, topic: Topic, group: Group, reason: Reason = "", json: Json = False) -> None:
    """Go on where it stood."""
    _change(context, topic, group, json, lambda b: b.topics.groups.resume(topic, group, reason=reason), "goes on")


@app.command("resurrect")
def resurrect(
    context: typer.Context,
    topic: Topic,
    group: Group,
    backfill: Annotated[bool, typer.Option("--backfill/--no-backfill", help="open events wait for it again")] = True,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Bring a dead group back: it goes on where it stood, with what is still kept."""

    def change(box: Outbox) -> Any:
        return box.topics.groups.resurrect(topic, group, backfill=backfill, reason=reason)

    _change(context, topic, group, json, change, "is active")


@app.command("cancel")
def cancel(
    context: typer.Context, topic: Topic, group: Group, reason: Reason = "", yes: Yes = False, json: Json = False
) -> None:
    """Unsubscribe for good: nothing is kept for it any more."""
    if not yes:
        confirm(f"Cancel group {group} of topic {topic} for good?")
    _change(context, topic, group, json, lambda b: b.topics.groups.cancel(topic, group, reason=reason), "is cancelled")


@app.command("remove")
def remove(
    context: typer.Context,
    topic: Topic,
    group: Group,
    wait: Annotated[str, typer.Option(help="how long its members may finish what they hold")] = "30s",
    reason: Reason = "",
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Let its members finish, cancel it, and delete it with what it parked."""
    timeout = parse_duration(wait)
    if not yes:
        confirm(f"Remove group {group} of topic {topic} with its dead letters?")
    with target_of(context).outbox() as box:
        gone = box.topics.groups.remove(topic, group, timeout=timeout, reason=reason)
    if json:
        emit({"removed": gone})
    else:
        say(f"removed {group}" if gone else f"topic {topic} has no group {group}")


@app.command("seek")
def seek(
    context: typer.Context,
    topic: Topic,
    group: Group,
    to: To,
    reason: Reason = "",
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Move a group: back to see events again, or forward to pass them over."""
    place = _place(to)
    if not yes:
        confirm(f"Move group {group} of topic {topic} to {to}?")
    with target_of(context).outbox() as box:
        box.topics.groups.seek(topic, group, place, reason=reason)
        found = box.topics.groups.lag(topic, group)
    emit(asdict(found)) if json else say(f"group {group} of topic {topic} is {found.events:,} events behind now")


def _place(text: str) -> StartFrom:
    if text == "latest":
        return StartFrom.latest()
    if text == "earliest":
        return StartFrom.earliest_unlimited()
    if text.isdecimal():
        return StartFrom.event(int(text))
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            "expected a place to be latest, earliest, a time such as 2026-01-31T12:00Z or an event's number, "
            f"got {text!r}"
        ) from None
    return StartFrom.timestamp(when if when.tzinfo else when.replace(tzinfo=UTC))


@app.command("backfill")
def backfill(
    context: typer.Context,
    topic: Topic,
    group: Group,
    gently: Annotated[bool, typer.Option("--gently", help="smaller steps, longer pauses")] = False,
    fast: Annotated[bool, typer.Option("--fast", help="larger steps, for quiet hours")] = False,
    everything: Annotated[bool, typer.Option("--unlimited", help="not only the newest million")] = False,
    status: Annotated[bool, typer.Option("--status", help="only say how far it is")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="stop one that runs, wherever that is")] = False,
    json: Json = False,
) -> None:
    """Let open events wait for a group that came later. Goes on where an earlier run ended."""
    if gently and fast:
        raise typer.BadParameter("--gently and --fast exclude each other")
    with target_of(context).outbox() as box:
        if cancel:
            stopped = box.topics.cancel_backfill(topic, group)
            emit({"cancelled": stopped}) if json else say("cancelled" if stopped else "none was under way")
            return
        if status:
            row = box.topics.backfill_progress(topic, group)
            left = f", {age(row.eta)} left" if row.eta is not None else ""
            line = (
                f"{row.state}: {row.processed:,} of {row.total:,} ({row.percent:.0f} %), {row.rate:,.0f} a second{left}"
            )
            emit(asdict(row)) if json else say(line)
            return
        plan = Backfill.conservative() if gently else Backfill.aggressive() if fast else Backfill()
        if everything:
            plan = Backfill(
                batch=plan.batch, max_messages=None, target_latency=plan.target_latency, max_rate=plan.max_rate
            )
        result = box.topics.backfill(topic, group, plan)
    emit(asdict(result)) if json else say(
        f"{result.outcome.replace('_', ' ')}: {result.processed:,} of {result.total:,}"
    )
    if result.outcome == "failed":
        fail(result.cause or "the backfill failed")
        raise typer.Exit(1)


@app.command("parked")
def parked(
    context: typer.Context,
    topic: Topic,
    group: Group,
    state: Annotated[Literal["retry", "held", "dead"] | None, typer.Option(help="only those in this state")] = None,
    after: Annotated[int, typer.Option(min=0, help="only numbers above this one")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="at most so many, by number")] = 50,
    json: Json = False,
) -> None:
    """What failed (retry), waits behind it (held) or was given up (dead); without payloads and headers."""
    with target_of(context).outbox() as box:
        found = box.topics.groups.parked(topic, group, state=state, after=after, limit=limit)
    if json:
        emit_list("parked", map(_summary, found))
    elif not found:
        say("nothing is parked")
    else:
        columns = ("number", "id", "type", "key", "state", "attempts", "due", "error")
        rows = [
            (p.event.seq, p.event.id, p.event.type, p.event.key, p.state, p.attempts, p.due, first_line(p.error))
            for p in found
        ]
        console().print(table(None, columns, rows))


def _summary(one: Parked) -> dict[str, Any]:
    event = one.event
    return {
        "seq": event.seq,
        "id": event.id,
        "type": event.type,
        "key": event.key,
        "state": one.state,
        "attempts": one.attempts,
        "due": one.due,
        "error": one.error,
        "dead_at": one.dead_at,
    }


@app.command("replay")
def replay(
    context: typer.Context,
    topic: Topic,
    group: Group,
    numbers: Annotated[
        list[int] | None, typer.Argument(metavar="[NUMBER...]", help="of dead events; none: all")
    ] = None,
    reason: Reason = "",
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Try dead events of a group again, with fresh attempts and in the order of their keys."""
    if not numbers and not yes:
        confirm(f"Replay all dead events of group {group} of topic {topic}?")
    with target_of(context).outbox() as box:
        count = box.topics.groups.replay(topic, group, numbers or None, reason=reason)
    emit({"replayed": count}) if json else say(f"replayed {count:,}")


@app.command("skip")
def skip(
    context: typer.Context,
    topic: Topic,
    group: Group,
    numbers: Annotated[list[int], typer.Argument(metavar="NUMBER...", help="of parked events")],
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Give parked events up for good; what waits behind them goes on."""
    with target_of(context).outbox() as box:
        count = box.topics.groups.skip(topic, group, numbers, reason=reason)
    emit({"skipped": count}) if json else say(f"skipped {count:,}")
