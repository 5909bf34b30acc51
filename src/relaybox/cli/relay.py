"""`relaybox relay`: move events from the outbox to a broker until a signal, once, or only in thought."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ..brokers import sink_from_url
from ..clock import SYSTEM_CLOCK
from ..contracts import Contracts
from ..durations import format_duration, parse_duration
from ..errors import ConfigError, NotFound, StoreError
from ..facts import Delivered, Died, Fact, Observer, Retried
from ..outbox import Outbox
from ..relay import Preview, Relay
from ..relay.config import RelayConfig, load
from ..relay.topic_relay import TopicRelay, status_of
from ..service import serving, signalled
from ..store.outbox.values import Status
from ..topics.start import StartFrom
from .connect import DEFAULT_TABLE, Target, scrub, target_of
from .output import console, emit, progress, say, table
from .run import load_object, log_to_stderr

log = logging.getLogger("relaybox")
LEFT_OVER = 3  # exit code of --once: not everything that is due went out
SAY_EVERY = 60.0  # seconds between two lines about the backlog where nobody watches


def relay(
    context: typer.Context,
    sink: Annotated[str | None, typer.Option(help="where to: kafka://…, amqp://…, nats://… [RELAYBOX_SINK]")] = None,
    sink_option: Annotated[
        list[str] | None, typer.Option(help="an option of the sink, NAME=VALUE [RELAYBOX_SINK_NAME]")
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="destination, or a template: '{aggregate_type}-events' [RELAYBOX_RELAY_TO]")
    ] = None,
    contracts: Annotated[
        str | None, typer.Option(help="MODULE:OBJECT or FILE.toml with the event contracts [RELAYBOX_RELAY_CONTRACTS]")
    ] = None,
    format: Annotated[str | None, typer.Option(help="plain, cloudevents or cloudevents-structured")] = None,
    source: Annotated[str | None, typer.Option(help="source attribute of CloudEvents")] = None,
    ordered: Annotated[bool | None, typer.Option("--ordered/--unordered", help="keep the order of each key")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="a setting, NAME=VALUE: --set order.strategy=advisory")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="read this topic's log instead of the outbox")] = None,
    group: Annotated[str | None, typer.Option(help="with --topic: the group this relay is a member of")] = None,
    begin: Annotated[
        str | None, typer.Option("--from", help="with --topic: where a new group begins, latest or earliest")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="serve /live, /ready, /metrics on HOST:PORT")] = None,
    migrate: Annotated[bool, typer.Option("--migrate", help="create or upgrade the outbox tables first")] = False,
    once: Annotated[
        bool,
        typer.Option("--once", help="stop when nothing is left to send now; exit 3 if something waits for a retry"),
    ] = False,
    timeout: Annotated[str | None, typer.Option(help="with --once: give up after this long")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be sent; claim and send nothing")] = False,
    limit: Annotated[int, typer.Option(help="with --dry-run: look at this many events", min=1)] = 20,
    json: Annotated[bool, typer.Option("--json", help="with --once or --dry-run: print JSON")] = False,
    log_level: Annotated[str, typer.Option(envvar="RELAYBOX_LOG_LEVEL", help="debug, info, warning or error")] = "info",
) -> None:
    """Send the events of the outbox to a broker. Any number of relays may run at once; each key keeps its order."""
    if once and dry_run:
        raise typer.BadParameter("--once sends, --dry-run does not: give one of them")
    if json and not (once or dry_run):
        raise typer.BadParameter("--json goes with --once or --dry-run")
    if timeout is not None and not once:
        raise typer.BadParameter("--timeout goes with --once")
    reads = _reads(topic, group, begin)
    if dry_run and reads:
        raise typer.BadParameter("--dry-run looks at the outbox; `relaybox groups lag` shows what waits for a group")
    longest = parse_duration(timeout, "--timeout").total_seconds() if timeout else None
    log_to_stderr(log_level)
    if logging.getLogger().level < logging.INFO:  # clients of brokers log whole requests at debug, payloads and keys
        logging.getLogger().setLevel(logging.INFO)
        log.setLevel(logging.DEBUG)
    target = target_of(context)
    target.database(may_create=migrate and not dry_run).close()  # checks, no connection: nobody wants a new empty file
    given = {
        "sink": sink,
        "sink_options": pairs(sink_option, "--sink-option"),
        "to": to,
        "contracts": contracts,
        "format": format,
        "source": source,
        "ordered": ordered,
        "listen": listen,
        "settings": pairs(set_, "--set"),
    }
    config = load(given, environment=os.environ, file=target.config)
    try:
        asyncio.run(_Command(target, config, reads, migrate=migrate).run(once, dry_run, longest, limit, json=json))
    except ConfigError as error:
        raise ConfigError(scrub(str(error), config.sink)) from None


class _Command:
    def __init__(self, target: Target, config: RelayConfig, reads: dict[str, Any], *, migrate: bool) -> None:
        self._target = target
        self._config = config
        self._counts: dict[type[Fact], int] = {Delivered: 0, Retried: 0, Died: 0}
        observers: list[Observer] = [self._count]
        self._metrics = None
        if config.listen is not None:
            self._metrics = _metrics(target, observers, reads)
        self._warn_about_ttl()
        self._reads = reads
        kind: Any = TopicRelay if reads else Relay
        self.relay: Relay = kind(
            target.needed_url,
            sink_from_url(config.sink, config.sink_options),
            to=config.to,
            contracts=_contracts(config.contracts),
            ordered=config.ordered,
            format=config.format,
            source=config.source,
            table=target.table.value or DEFAULT_TABLE,
            schema=target.schema.value,
            settings=config.settings,
            observers=observers,
            migrate=migrate,
            **reads,
        )

    def _count(self, fact: Fact) -> None:
        kind = type(fact)
        if kind in self._counts:
            self._counts[kind] += getattr(fact, "count", 1)

    def _warn_about_ttl(self) -> None:
        """A consumer that forgets sooner than we keep events would take a replay for news."""
        ttl, kept = self._config.idempotency_ttl, self._config.settings.relay.retention
        if ttl is not None and (kept is None or parse_duration(ttl, "idempotency_ttl") < kept):
            shown = "for ever" if kept is None else format_duration(kept)
            log.warning(
                "consumers remember an event for %s, and events are kept %s: a later replay repeats", ttl, shown
            )

    async def run(self, once: bool, dry_run: bool, timeout: float | None, limit: int, *, json: bool) -> None:
        if dry_run:
            try:
                _show(await self.relay.preview(limit), json=json)
            finally:
                await self.relay.close()
            return
        stop = asyncio.Event()
        with (
            serving(self._config.listen, self.relay.health, self._metrics),
            signalled(asyncio.get_running_loop(), stop.set),
        ):
            async with self.relay:
                if once:
                    await self._once(stop, timeout, json=json)
                else:
                    await self._until(stop)

    async def _until(self, stop: asyncio.Event) -> None:
        relay, config = self.relay, self._config
        order = f"by key, {'shards' if self._reads else config.settings.order.strategy}" if config.ordered else "none"
        read = "topic {topic} as group {group}".format_map(self._reads) if self._reads else relay.store.tables.event
        say(f"relaybox relays {read} ({relay.store.dialect}) to {relay.sink.name}, order: {order}")
        sys.stdout.flush()
        watcher = asyncio.create_task(self._watch())
        await stop.wait()
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
        say("relaybox stops: finishing what is under way")
        sys.stdout.flush()

    async def _watch(self) -> None:
        """The backlog: a line that refreshes itself in a terminal, otherwise one in the log now and then."""
        shown = console(stderr=True)
        with progress(total=False) as bar:
            task = bar.add_task("", total=None)
            while True:
                try:
                    status = await self.relay.status()
                    text = f"due {status.due:,}, retrying {status.retrying:,}, dead {status.dead:,}"
                except StoreError as error:
                    text = f"no answer from the database: {type(error).__name__}"
                if self.relay.circuit is not None and self.relay.circuit.is_open:
                    text += f"; {self.relay.sink.name} is away"
                bar.update(task, description=text + "; sent", completed=self._counts[Delivered])
                if not shown.is_terminal:
                    log.info("%s; sent %d", text, self._counts[Delivered])
                await SYSTEM_CLOCK.sleep(1.0 if shown.is_terminal else SAY_EVERY)

    async def _once(self, stop: asyncio.Event, timeout: float | None, *, json: bool) -> None:
        drained = asyncio.create_task(self.relay.drained())
        stopped = asyncio.create_task(stop.wait())
        with progress(total=False) as bar:
            task = bar.add_task("sending", total=None)
            ticking = asyncio.create_task(self._tick(bar, task))
            await asyncio.wait({drained, stopped}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            ticking.cancel()
        stopped.cancel()
        ended = drained.done()
        drained.cancel()
        status = drained.result() if ended else await self.relay.status()
        failing = await self.relay.failing()
        sent, dead, retried = self._counts[Delivered], self._counts[Died], self._counts[Retried]
        left = status.due + status.delayed + status.claimed
        if json:
            emit({"sent": sent, "died": dead, "failed_attempts": retried, "left": left, "waiting_for_retry": failing})
        else:
            waiting = f", {failing:,} of them wait for a retry" if failing else ""
            say(f"sent {sent:,}, died {dead:,}, left {left:,}{waiting}")
        if dead or not ended:
            raise typer.Exit(1)
        if failing or status.due or status.claimed:
            raise typer.Exit(LEFT_OVER)

    async def _tick(self, bar: Any, task: Any) -> None:
        while True:
            bar.update(task, completed=self._counts[Delivered])
            await SYSTEM_CLOCK.sleep(0.2)


def _reads(topic: str | None, group: str | None, begin: str | None) -> dict[str, Any]:
    """What a relay of a topic needs to know; empty for the outbox."""
    if topic is None:
        if group is not None or begin is not None:
            raise typer.BadParameter("--group and --from go with --topic")
        return {}
    if group is None:
        raise typer.BadParameter("--topic needs --group, the name of the group this relay is a member of")
    starts = {None: StartFrom.latest(), "latest": StartFrom.latest(), "earliest": StartFrom.earliest_unlimited()}
    if begin not in starts:
        raise typer.BadParameter(f"expected --from to be latest or earliest, got {begin!r}")
    return {"topic": topic, "group": group, "start": starts[begin]}


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
        console().print(
            table(None, ("event", "type", "key", "to", "bytes", "problem"), [tuple(r.values()) for r in rows])
        )
        say(f"{len(rows)} event(s) looked at, {sum(1 for p in previews if p.problem)} would become dead letters")
    if any(p.problem for p in previews):
        raise typer.Exit(1)


def _contracts(reference: str | None) -> Contracts | None:
    if reference is None:
        return None
    if reference.endswith(".toml"):
        return Contracts.from_toml(Path(reference))
    found = load_object(reference)
    if not isinstance(found, Contracts):
        raise ConfigError(f"expected {reference} to be Contracts, got {type(found).__name__}")
    return found


class _GroupBacklog:
    """What waits for the group that a relay of a topic is a member of, as its status says it."""

    def __init__(self, box: Outbox, topic: str, group: str) -> None:
        self._box, self._names = box, (topic, group)

    def status(self) -> Status:
        try:
            return status_of(self._box.topics.groups.lag(*self._names))
        except NotFound as error:  # the relay has not subscribed it yet
            raise StoreError(str(error)) from error


def _metrics(target: Target, observers: list[Observer], reads: dict[str, Any]) -> Any:
    """The Prometheus page, when the client is there: facts of this process, and the backlog at each scrape."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.exposition import CONTENT_TYPE_LATEST

        from ..observe.prometheus import BacklogCollector, PrometheusObserver
    except ImportError:
        log.warning("/metrics is not served: pip install 'relaybox[prometheus]'")
        return None
    registry = CollectorRegistry()
    observers.append(PrometheusObserver(registry=registry))
    box = Outbox(
        target.needed_url,
        table=target.table.value or DEFAULT_TABLE,
        schema=target.schema.value,
        settings=target.settings,
    )
    registry.register(BacklogCollector(_GroupBacklog(box, reads["topic"], reads["group"]) if reads else box))
    return lambda: (200, CONTENT_TYPE_LATEST, generate_latest(registry))


def pairs(given: list[str] | None, name: str) -> dict[str, str]:
    pairs = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"expected {name} NAME=VALUE, got {key!r}")
        pairs[key] = value
    return pairs
