"""`relaybox relay`: move events from the outbox to a broker until a signal, once, or only in thought."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Annotated, Any

import typer

from ..brokers import sink_from_url
from ..durations import format_duration, parse_duration
from ..errors import ConfigError, NotFound
from ..facts import Observer
from ..outbox import Outbox
from ..redaction import scrub
from ..relay import Preview, Relay
from ..relay.config import RelayConfig, load
from ..topics.group import Group
from ..topics.start import StartFrom
from .connect import target_of, warn_of_argument
from .contracts import load_contracts
from .logs import LogFormat, LogLevel, log_to_stderr
from .options import with_options
from .output import console, emit, first_line, say, table
from .run import (
    DIED,
    WAITS,
    ListenAddress,
    Timeout,
    metrics_of,
    pairs,
    seconds_of,
    serve,
)

log = logging.getLogger("relaybox")


OPTIONS: dict[str, Any] = {
    "to": Annotated[
        str | None, typer.Option(help="destination, or a template: '{aggregate_type}-events' [RELAYBOX_RELAY_TO]")
    ],
    "contracts": Annotated[
        str | None, typer.Option(help="MODULE:OBJECT or FILE.toml with the event contracts [RELAYBOX_RELAY_CONTRACTS]")
    ],
    "format": Annotated[str | None, typer.Option(help="plain, cloudevents or cloudevents-structured")],
    "ce_source": Annotated[
        str | None, typer.Option(help="attribute `source` of CloudEvents [RELAYBOX_RELAY_CE_SOURCE]")
    ],
    "ordered": Annotated[bool | None, typer.Option("--ordered/--unordered", help="keep the order of each key")],
    "fair": Annotated[
        str | None, typer.Option(help="tenant: no tenant waits for another's; with --unordered [RELAYBOX_RELAY_FAIR]")
    ],
    "decrypt": Annotated[
        bool | None,
        typer.Option("--decrypt/--encrypted", help="send what a vault has encrypted as it was before; needs a keyring"),
    ],
    "rows": Annotated[
        bool | None,
        typer.Option("--rows/--deltas", help="with --feed: a message for each row [RELAYBOX_RELAY_ROWS]"),
    ],
    "tombstones": Annotated[
        bool | None,
        typer.Option(
            "--tombstones/--no-tombstones", help="with --rows: what ends a key; as the sink can, unless given"
        ),
    ],
    "listen": ListenAddress,
}


@with_options("options", OPTIONS, dict)
def relay(
    context: typer.Context,
    options: dict[str, Any],
    sink: Annotated[str | None, typer.Option(help="where to: kafka://…, amqp://…, nats://… [RELAYBOX_SINK]")] = None,
    sink_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="an option of the sink [RELAYBOX_SINK_NAME]")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="a setting: --set order.strategy=advisory")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="read this topic's log instead of the outbox")] = None,
    feed: Annotated[str | None, typer.Option(help="read the deltas of this feed instead of the outbox")] = None,
    group: Annotated[
        str | None, typer.Option(help="with --topic or --feed: the group this relay is a member of")
    ] = None,
    begin: Annotated[
        str | None, typer.Option("--from", help="with --topic or --feed: where a new group begins, latest or earliest")
    ] = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="with --feed: first write all its rows, for consumers that are new")
    ] = False,
    migrate: Annotated[bool, typer.Option("--migrate", help="create or upgrade the outbox tables first")] = False,
    once: Annotated[
        bool,
        typer.Option("--once", help="stop when nothing is left to send now; exit 3 if something waits, 4 if it died"),
    ] = False,
    timeout: Timeout = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be sent; claim and send nothing")] = False,
    limit: Annotated[int, typer.Option(help="with --dry-run: look at this many events", min=1)] = 20,
    json: Annotated[bool, typer.Option("--json", help="with --once or --dry-run: print JSON")] = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Send the events of the outbox to a broker. Any number of relays may run at once; each key keeps its order."""
    if once and dry_run:
        raise typer.BadParameter("--once sends, --dry-run does not: give one of them")
    if json and not (once or dry_run):
        raise typer.BadParameter("--json goes with --once or --dry-run")
    reads = _reads(topic, feed, group, begin)
    if snapshot and feed is None:
        raise typer.BadParameter("--snapshot goes with --feed")
    if dry_run and reads:
        raise typer.BadParameter("--dry-run looks at the outbox; `relaybox groups lag` shows what waits for a group")
    longest = seconds_of(timeout, once=once)
    log_to_stderr(log_level, log_format, ours=True)
    target = target_of(context)
    warn_of_argument("--sink", sink, "RELAYBOX_SINK")
    given = {
        "url": sink,
        "options": pairs(sink_option, "--sink-option"),
        **options,
        "settings": pairs(set_, "--set"),
    }
    with target.outbox(may_create=migrate and not dry_run) as box:
        config = load(given, environment=os.environ, file=target.config)
        _warn_about_ttl(config)
        observers: list[Observer] = []
        metrics, measure = metrics_of(config.listen, observers)
        try:
            if feed is not None:
                reads["topic"] = _topic_of(box, feed)
            source = box.topics.group(**reads) if reads else box
            relay = Relay(
                source,
                sink_from_url(config.url, config.options),
                to=config.to,
                contracts=None if config.contracts is None else load_contracts(config.contracts),
                ordered=config.ordered,
                fair=config.fair,
                format=config.format,
                ce_source=config.ce_source,
                decrypt=config.decrypt,
                feed=feed,
                rows=config.rows,
                tombstones=config.tombstones,
                settings=config.settings,
                observers=observers,
            )
            if dry_run:
                _show(relay.preview(limit), json=json)
                return
            if migrate:
                box.migrate()
            if feed is not None and snapshot:
                _write_snapshot(box, reads, feed)
            measure(relay)
            pages = {"listen": config.listen, "token": config.settings.listen.bearer(), "metrics": metrics}
            asyncio.run(serve([relay], **pages, once=once, timeout=longest, quiet=once))
        except ConfigError as error:
            raise ConfigError(scrub(str(error), config.url)) from None
        if once:
            _tell(relay, source, json=json)


def _warn_about_ttl(config: RelayConfig) -> None:
    """A consumer that forgets sooner than we keep events would take a replay for news."""
    ttl, kept = config.idempotency_ttl, config.settings.relay.retention
    if ttl is not None and (kept is None or parse_duration(ttl, "idempotency_ttl") < kept):
        shown = "for ever" if kept is None else format_duration(kept)
        log.warning("consumers remember an event for %s, and events are kept %s: a later replay repeats", ttl, shown)


def _tell(relay: Relay, source: Outbox | Group, *, json: bool) -> None:
    """What --once has done, and what it left."""
    status, failing, counts = relay.status(), relay.failing(), relay.counts
    left = status.due + status.delayed + status.claimed
    why = next((each.error for each in source.events.list(state="open") if each.error), None) if failing else None
    if json:
        told = {"sent": counts.done, "died": counts.dead, "failed_attempts": counts.failed}
        emit({**told, "left": left, "waiting_for_retry": failing, "why": why})
    else:
        waiting = f", {failing:,} of them wait for a retry{f': {first_line(why)}' if why else ''}" if failing else ""
        say(f"sent {counts.done:,}, died {counts.dead:,}, left {left:,}{waiting}")
    if counts.dead:
        raise typer.Exit(DIED)
    if failing or status.due or status.claimed:
        raise typer.Exit(WAITS)


def _topic_of(box: Outbox, feed: str) -> str:
    found = box.feeds.get(feed)
    if found is None:
        raise NotFound("feed", feed, f"there is no feed {feed!r}; feeds.list() names those there are")
    return found.topic


def _write_snapshot(box: Outbox, reads: dict[str, Any], feed: str) -> None:
    """The group is there first: it gets the snapshot wherever it begins."""
    box.topics.group(**reads).create(if_not_exists=True)
    done = box.feeds.snapshot(None, feed, reason="relaybox relay --snapshot")
    log.info("snapshot %s of feed %s has %s rows", done.delta, feed, f"{done.inserted:,}")


def _reads(topic: str | None, feed: str | None, group: str | None, begin: str | None) -> dict[str, Any]:
    """What a relay of a topic needs to know; empty for the outbox."""
    if topic is None and feed is None:
        if group is not None or begin is not None:
            raise typer.BadParameter("--group and --from go with --topic or --feed")
        return {}
    if topic is not None and feed is not None:
        raise typer.BadParameter("a feed has its topic: give --topic or --feed")
    if group is None:
        raise typer.BadParameter("--topic and --feed need --group, the name of the group this relay is a member of")
    starts = {None: StartFrom.latest(), "latest": StartFrom.latest(), "earliest": StartFrom.earliest()}
    if begin not in starts:
        raise typer.BadParameter(f"expected --from to be latest or earliest, got {begin!r}")
    return {"topic": topic, "name": group, "start": starts[begin]}


def _show(previews: list[Preview], *, json: bool) -> None:
    rows = [
        {
            "event": p.event.id,
            "type": p.event.type,
            "key": p.event.key,
            "to": p.message.destination if p.message else None,
            "bytes": len(p.message.body) if p.message else None,
            "problem": p.problem,
        }
        for p in previews
    ]
    if json:
        emit({"messages": rows})
    else:
        names = ("event", "type", "key", "to", "bytes", "problem")
        console().print(table(None, names, [tuple(row.values()) for row in rows]))
        say(f"{len(rows)} event(s) looked at, {sum(1 for p in previews if p.problem)} would become dead letters")
    if any(p.problem for p in previews):
        raise typer.Exit(DIED)
