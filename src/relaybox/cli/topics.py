"""`relaybox topics`: which topics there are, how they are kept, and moving them to another tracking."""

from __future__ import annotations

import json as jsonlib
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, Literal, cast

import typer

from ..audit import Audit
from ..durations import parse_duration
from ..errors import AlreadyExists, ConfigError, NotFound
from ..topic import Semantics, Topic, TopicOptions, Tracking
from ..topics.info import TopicInfo
from ..topics.topics import Completed
from ..words import did_you_mean
from . import options as o
from .connect import target_of
from .output import age, answer, confirm, console, emit, emit_list, progress, say, table

app = typer.Typer(help="Queue and pub/sub topics: list, show, configure, advise, move, drop.", no_args_is_help=True)

Preset = Literal["high_throughput", "low_rate", "critical", "audit", "standard", "ephemeral"]


@app.command("list")
def list_(context: typer.Context, json: o.Json = False) -> None:
    """Every topic with its semantics, tracking, groups and retention."""
    with target_of(context).outbox() as box:
        rows = box.topics.list()
    if json:
        emit_list("topics", map(document, rows))
    elif not rows:
        say("no topics; `relaybox topics configure NAME` makes one")
    else:
        lines = [
            (r.topic.name, r.topic.semantics, r.topic.tracking, r.active, r.groups, age(r.topic.retention))
            for r in rows
        ]
        console().print(table(None, ("topic", "semantics", "tracking", "active", "groups", "retention"), lines))


def document(info: TopicInfo) -> dict[str, Any]:
    return {**asdict(info.topic), **{name: value for name, value in asdict(info).items() if name != "topic"}}


@app.command("show")
def show(context: typer.Context, name: o.TopicName, json: o.Json = False) -> None:
    """One topic with every option, and its groups."""
    with target_of(context).outbox() as box:
        row = box.topics.get(name)
        if row is None:
            hint = did_you_mean(name, [each.topic.name for each in box.topics.list()], "; see `relaybox topics list`")
            raise NotFound("topic", name, f"there is no topic {name!r}{hint}")
        groups = box.topics.groups(name)
    if json:
        emit({**document(row), "groups": [asdict(group) for group in groups]})
        return
    shown = {key: value for key, value in document(row).items() if value is not None}
    lines = [(key.replace("_", " "), age(v) if isinstance(v, timedelta) else _text(v)) for key, v in shown.items()]
    console().print(table(None, ("", ""), lines))
    for group in groups:
        say(f"group {group.group}: {group.state}, {len(group.members)} members, {group.pending:,} events behind")


def _text(value: object) -> object:
    return jsonlib.dumps(value) if isinstance(value, (dict, list)) else value


DURATIONS: dict[str, Any] = {
    "retention": Annotated[
        str | None, typer.Option(metavar="DURATION", help="kept this long, and until every live group has it: 24h, 7d")
    ],
    "zero_retention": Annotated[
        str | None, typer.Option(metavar="DURATION", help="kept this long if there was no group")
    ],
    "max_retention": Annotated[
        str | None, typer.Option(metavar="DURATION", help="the cap: no group holds events for longer")
    ],
    "heartbeat_interval": Annotated[str | None, typer.Option(metavar="DURATION", help="of new groups")],
    "heartbeat_timeout": Annotated[
        str | None, typer.Option(metavar="DURATION", help="silence after which a group is dead")
    ],
    "zombie_ttl": Annotated[
        str | None, typer.Option(metavar="DURATION", help="a place that has not moved for so long is given up")
    ],
}
OPTIONS: dict[str, Any] = {
    **DURATIONS,
    "block_writes": Annotated[
        bool | None, typer.Option("--block-writes/--allow-writes", help="refuse events while no group is active")
    ],
    "partitions": Annotated[Literal["none", "day", "month"] | None, typer.Option(help="drop old events by table")],
    "shards": Annotated[int | None, typer.Option(help="parts of the key space; fixed when the topic is made")],
    "spread": Annotated[int | None, typer.Option(help="tables that the shards of a hot log are in; fixed too")],
    "fetch_batch": Annotated[int | None, typer.Option(help="events per fetch")],
    "cleanup_batch": Annotated[int | None, typer.Option(help="rows per cleanup step")],
}


def _given(options: dict[str, Any]) -> dict[str, Any]:
    told = {key: value for key, value in options.items() if value is not None}
    return {key: parse_duration(v, f"--{key.replace('_', '-')}") if key in DURATIONS else v for key, v in told.items()}


@app.command("create", help="Make a topic that is not there yet.")
@app.command("configure")
@o.with_audit
@o.with_options("given", OPTIONS, _given)
def configure(
    context: typer.Context,
    name: o.TopicName,
    given: dict[str, Any],
    audit: Audit,
    semantics: Annotated[Semantics | None, typer.Option(help="to one consumer, or to every group")] = None,
    tracking: Annotated[Tracking | None, typer.Option(help="how completion is tracked; see `advise`")] = None,
    preset: Annotated[Preset | None, typer.Option(help="options that go together; others given here win")] = None,
    json: o.Json = False,
) -> None:
    """Make a topic, or change options of one. The tracking of one that exists: see `move`; the rest stays."""
    with target_of(context).outbox() as box:
        row = box.topics.get(name)
        if row is not None and context.info_name == "create":
            raise AlreadyExists("topic", name, f"there is a topic {name!r} already; `topics configure` changes it")
        topic = _changed(row.topic, semantics, tracking) if row else _new(name, semantics, tracking)
        if preset is not None:
            topic = getattr(topic, preset)()
        row = box.topics.configure(topic.with_options(**cast(TopicOptions, given)), **audit)
    text = f"topic {name}: {row.topic.semantics}, tracked by {row.topic.tracking}, version {row.version}"
    answer(json, document(row), text)


def _new(name: str, semantics: Semantics | None, tracking: Tracking | None) -> Topic:
    semantics = semantics or "queue"
    return Topic(name=name, semantics=semantics, tracking=tracking or ("rows" if semantics == "queue" else "offset"))


def _changed(topic: Topic, semantics: Semantics | None, tracking: Tracking | None) -> Topic:
    for option, wanted, there, now in (
        ("semantics", semantics, topic.semantics, f"a {topic.semantics} topic"),
        ("tracking", tracking, topic.tracking, f"tracked by {topic.tracking}"),
    ):
        if wanted not in (None, there):
            raise ConfigError(
                f"topic {topic.name!r} is {now}; `relaybox topics move {topic.name} --{option} {wanted}` moves it"
            )
    return topic


@app.command("completion")
def completion(
    context: typer.Context,
    name: o.TopicName,
    numbers: Annotated[list[int], typer.Argument(metavar="NUMBER", help="of events in this topic")],
    json: o.Json = False,
) -> None:
    """Which groups have these events, and which are still to have them."""
    known: dict[int, dict[str, Completed] | None] = {}
    with target_of(context).outbox() as box:
        for number in numbers:
            try:
                known[number] = box.topics.completion(name, number)
            except NotFound as error:
                if error.kind != "event":
                    raise
                known[number] = None
    if json:
        emit_list("events", [{"number": number, "groups": groups} for number, groups in known.items()])
        return
    for number, groups in known.items():
        if groups is None:
            say(f"{number}: not kept (any more)")
            continue
        done = ", ".join(group for group, state in groups.items() if state == "done") or "no group"
        waiting = ", ".join(group for group, state in groups.items() if state == "waiting")
        say(f"{number}: {done} done" + (f"; {waiting} still to have it" if waiting else ""))


@app.command("advise")
def advise(
    context: typer.Context,
    name: o.TopicName,
    audit: Annotated[bool, typer.Option("--audit", help="completion must be known of each event")] = False,
    json: o.Json = False,
) -> None:
    """Which tracking fits, from what was measured."""
    with target_of(context).outbox() as box:
        advice = box.topics.advise(name, audit=audit)
    emit(asdict(advice)) if json else say(str(advice))


@app.command("move")
@o.with_audit
def move(
    context: typer.Context,
    name: o.TopicName,
    audit: Audit,
    tracking: Annotated[Tracking | None, typer.Option(help="offset, bitmap, acks or rows")] = None,
    semantics: Annotated[Semantics | None, typer.Option(help="queue or pub_sub")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what it would do")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="give up a move that has not switched yet")] = False,
    yes: o.Yes = False,
    json: o.Json = False,
) -> None:
    """Change the tracking of a topic, or a queue to pub/sub, while it is in use. Goes on if it was interrupted."""
    with target_of(context).outbox() as box:
        if cancel:
            undone = box.topics.cancel_move(name, **audit)
            emit({"cancelled": undone}) if json else say("cancelled" if undone else "there was no move under way")
            return
        plan = box.topics.move(name, tracking=tracking, semantics=semantics, dry_run=True)
        if dry_run:
            emit(asdict(plan)) if json else say("\n".join(plan.steps))
            return
        if not yes:
            confirm(f"Move topic {name}? {' '.join(plan.steps)}")
        with progress(total=False) as bar:
            task = bar.add_task("moving", total=None)
            box.topics.move(
                name,
                tracking=tracking,
                semantics=semantics,
                progress=lambda state: bar.update(task, completed=state.get("made", 0)),
                **audit,
            )
        row = box.topics.get(name)
    assert row is not None
    emit(document(row)) if json else say(f"topic {name}: {row.topic.semantics}, tracked by {row.topic.tracking}")


@app.command("drop")
@o.with_audit
def drop(context: typer.Context, name: o.TopicName, audit: Audit, yes: o.Yes = False, json: o.Json = False) -> None:
    """Delete a topic with its events. Refused while a group reads it that is not cancelled."""
    with target_of(context).outbox() as box:
        if not yes:
            confirm(f"Delete topic {name} and all its events?")
        gone = box.topics.drop(name, **audit)
    answer(json, {"dropped": gone}, f"dropped {name}" if gone else f"there is no topic {name}")
