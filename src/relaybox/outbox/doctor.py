"""`relaybox doctor`: what in this outbox, its schema or its server endangers delivery.

    findings = examine(database, store)        # database: drivers.open_sync(url)

A look changes nothing. Checks that the role may not make are skipped and named, never guessed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..clock import SYSTEM_CLOCK, Clock
from ..drivers.script import Script, aplay, play
from ..drivers.spi import AsyncRunner, Runner
from ..errors import SchemaDrift, SchemaTooNew, StoreError
from ..locking import pretence
from ..op import Op, arun, run
from ..settings import FeedSettings
from ..store.doctor import Circumstances, Finding, Vitals, judge_clock, vitals
from ..store.feeds import open_feed_store
from ..store.inbox import InboxStore, InboxTables, open_inbox_store
from ..store.instances import Instance
from ..store.outbox import OutboxStore
from ..store.topics import open_topic_store
from ..values import Status

if TYPE_CHECKING:
    from ..store.feeds.schedule import FeedLook
    from ..store.feeds.store import FeedStore
    from ..store.topics.store import TopicStore

__all__ = ["Finding", "aexamine", "checkup", "examine"]

UNDELIVERED = timedelta(seconds=60)


def examine(
    database: Runner, store: OutboxStore, *, clock: Clock = SYSTEM_CLOCK, feeds: FeedSettings | None = None
) -> list[Finding]:
    with database.connection() as connection:
        found = run(checkup(store, clock, _announced_pid(connection.raw), feeds), connection)
    return found + play(_locks(store), database)


async def aexamine(
    database: AsyncRunner, store: OutboxStore, *, clock: Clock = SYSTEM_CLOCK, feeds: FeedSettings | None = None
) -> list[Finding]:
    async with database.connection() as connection:
        found = await arun(checkup(store, clock, _announced_pid(connection.raw), feeds), connection)
    return found + await aplay(_locks(store), database, clock)


def _locks(store: OutboxStore) -> Script[list[Finding]]:
    """Two sessions ask for one row."""
    ill = yield from pretence(store, store.probe)
    return [Finding("critical", "locks", ill, "move to a server that locks rows")] if ill else []


def _announced_pid(raw: Any) -> int | None:
    """The backend that the start-up announced; a pooler announces another than the one that answers."""
    if (ask := getattr(raw, "get_server_pid", None)) is not None:  # asyncpg
        return int(ask())
    pid = getattr(getattr(raw, "info", None), "backend_pid", None)  # psycopg
    return pid if isinstance(pid, int) else None


def file_system_of(file: str, read: Callable[[], str] | None = None) -> str | None:
    """The type of the file system a file lies on, from the kernel's mount table; None where there is none."""
    try:
        table = (read or Path(os.sep, "proc", "self", "mounts").read_text)()
    except OSError:
        return None
    found, longest = None, -1
    path = Path(file).resolve()
    for line in table.splitlines():
        _, mount, kind, *_ = line.split(" ", 3)
        where = Path(mount.replace("\\040", " "))
        if path.is_relative_to(where) and len(where.parts) >= longest:
            found, longest = kind, len(where.parts)
    return found


def checkup(
    store: OutboxStore,
    clock: Clock = SYSTEM_CLOCK,
    announced_pid: int | None = None,
    feeds: FeedSettings | None = None,
) -> Op[list[Finding]]:
    """Every check, in reading order. Run it outside a transaction: a refused question must not spoil the next."""
    seen = yield from vitals(store.sql, clock)
    schema = yield from _schema(store)
    inboxes = yield from _inboxes(store.dialect)
    alive: list[Instance] = []
    state: Status | None = None
    if all(finding.level != "critical" for finding in schema):
        alive = yield from store.instances(clock.database_now())
        state = yield from store.status(clock.database_now())
    elif inboxes and not (yield from _is_there(store)):
        schema = [Finding("ok", "schema", f"no outbox {store.tables.event!r} is here, only inboxes")]
    findings = [*_server(store, seen, announced_pid, len(alive)), *judge_clock(seen), *schema, *inboxes]
    if state is not None:
        findings += [*_claims(seen), *_delivery(state, alive)]
        findings += _unread(seen)
    if store.dialect == "postgres":
        findings += yield from _topics(open_topic_store(store.dialect, store.tables), clock)
        limits = FeedSettings() if feeds is None else feeds
        findings += yield from _feeds(open_feed_store(store.dialect, store.tables), clock, limits)
    return findings


def _topics(store: TopicStore, clock: Clock) -> Op[list[Finding]]:
    """Only where there are any."""
    try:
        todo = yield from store.plan()
        if todo:
            return []
        topics = yield from store.topics()
        incarnation = yield from store.incarnation()
        alerts = yield from store.alerts()
        kept = yield from store.maintained(clock.database_now())
    except StoreError as error:
        return [Finding("critical", "topics", f"the tables of topics could not be read: {error}", "see above")]
    if not topics:
        return []
    found = [
        Finding(
            "critical",
            "incarnation",
            f"these topics come from cluster {incarnation.noted}, this is {incarnation.here}: their transaction "
            "numbers mean nothing here, readers would pass over events",
            "stop all consumers and run `relaybox doctor --repair`",
        )
        if incarnation.foreign
        else Finding("ok", "incarnation", "the topics belong to this cluster"),
        Finding("ok", "maintenance", f"{len(topics)} topic(s) are maintained")
        if kept
        else Finding(
            "warning",
            "maintenance",
            f"nobody maintains {len(topics)} topic(s): nothing is cleaned up, dead groups hold their events",
            "start `relaybox maintain`, or a Maintainer in one of your processes",
        ),
    ]
    found += [
        Finding(
            "warning", f"alert {alert.name}", " ".join(filter(None, (alert.topic, alert.group, alert.text))), "look"
        )
        for alert in alerts
    ]
    return found


def _feeds(store: FeedStore, clock: Clock, limits: FeedSettings) -> Op[list[Finding]]:
    """Only where there are any."""
    try:
        if (yield from store.plan()) or not (feeds := (yield from store.look(limits.late, clock.database_now()))):
            return []
        lines = yield from store.drift()
    except StoreError as error:
        return [Finding("critical", "feeds", f"the tables of feeds could not be read: {error}", "see above")]
    found = [Finding("critical", "feeds", line, "compare with a database that was migrated anew") for line in lines]
    for feed in feeds:
        found += [Finding("warning", "feeds", f"feed {feed.name!r} {text}", fix) for text, fix in _ills(feed, limits)]
    kept, mib = sum(feed.kept_deltas for feed in feeds), sum(feed.kept_bytes or 0 for feed in feeds) / 2**20
    well = f"{len(feeds)} feed(s) hear of every change; {kept} delta(s) are kept in chunks, {mib:,.1f} MiB"
    return found or [Finding("ok", "feeds", well)]


def _ills(feed: FeedLook, limits: FeedSettings) -> Iterator[tuple[str, str]]:
    """What is wrong with one, and what to do."""
    plan, mib = feed.schedule, feed.bytes / 2**20
    if feed.deaf:
        yield (
            "may have missed changes: a trigger was dropped or disabled, or a partition came or went",
            "refresh it: that mends the triggers and evaluates the whole query",
        )
    if feed.failing:
        yield f"failed {plan.failures} time(s) in a row, last {plan.failed_at}: {plan.error}", "mend it, or pause it"
    if feed.late:
        yield (
            f"is to be refreshed every {plan.every}, and was not for {feed.age or 'ever'}",
            "start `relaybox maintain`, or look whether a transaction holds the feed",
        )
    if plan.wrong:
        yield (
            f"has {plan.wrong} row(s) that are not as its query says, and no change waits",
            "check how its sources are mapped, then refresh it with full=True",
        )
    if mib > limits.critical_mb:
        yield (
            f"keeps {mib:,.0f} MiB for readers of its deltas, {feed.kept_deltas} of them in chunks",
            "see which group is behind, or lower the retention of its topic",
        )


def _server(store: OutboxStore, seen: Vitals, announced_pid: int | None, processes: int) -> list[Finding]:
    """What the checks of the dialect find."""
    file = seen.facts.get("file")
    around = Circumstances(announced_pid, file_system_of(file) if file else None, processes)
    return list(import_module(f"relaybox.store.outbox.{store.dialect}.doctor").judge(seen, around))


def _is_there(store: OutboxStore) -> Op[bool]:
    try:
        return bool((yield from store.applied()))
    except StoreError:
        return True  # and cannot be read


def _inboxes(dialect: str) -> Op[list[Finding]]:
    """The tables of each."""
    try:
        names = yield from open_inbox_store(dialect, InboxTables()).names()
    except StoreError as error:
        return [Finding("warning", "inboxes", f"not checked: {error}", "check the role's privileges")]
    found: list[Finding] = []
    for name, schema in names:
        store = open_inbox_store(dialect, InboxTables(name, schema))
        look = yield from _schema(store, f"inbox {name}")
        adoption = (yield from store.know()) if all(finding.level == "ok" for finding in look) else None
        if adoption is not None:
            text = f"table {adoption.table!r} was adopted; a duplicate is {adoption.identity}"
            look.append(Finding("ok", f"inbox {name} identity", text))
        found += look
    return found


def _schema(store: OutboxStore | InboxStore, check: str = "schema") -> Op[list[Finding]]:
    try:
        todo = yield from store.plan()
        if todo:
            return [
                Finding(
                    "critical",
                    check,
                    f"{len(todo)} migration(s) are not applied to {store.tables.event!r}, first {todo[0].version} "
                    f"({todo[0].name})",
                    store.advice,
                )
            ]
        lines = yield from store.drift()
    except SchemaTooNew as error:
        return [Finding("critical", check, str(error), "upgrade relaybox")]
    except SchemaDrift as error:
        return [Finding("critical", check, str(error), "compare the tables with the migrations of this release")]
    except StoreError as error:
        return [Finding("critical", check, f"the tables could not be read: {error}", "check the role's privileges")]
    if not lines:
        return [Finding("ok", check, f"{store.tables.event!r} is at version {store.migrations()[-1].version}")]
    return [
        Finding(
            "warning" if line.startswith(("index ", "constraint ")) else "critical",
            f"{check} drift",
            line,
            "restore it",
        )
        for line in lines
    ]


def _claims(seen: Vitals) -> Iterator[Finding]:
    unowned, silent = (int(seen.facts.get(f"claims.{kind}") or 0) for kind in ("unowned", "silent"))
    if unowned:
        yield Finding(
            "warning",
            "claims",
            f"{unowned} event(s) are claimed by a process that is not registered; they wait for the end of their lease",
            "nothing to do unless the number stays",
        )
    if silent:
        yield Finding(
            "warning",
            "claims",
            f"{silent} event(s) are claimed by a process that fell silent and nobody has taken them over",
            "start a delivering process",
        )
    if not unowned and not silent:
        yield Finding("ok", "claims", "every claim belongs to a running process")


def _delivery(state: Status, alive: list[Instance]) -> Iterator[Finding]:
    oldest = state.oldest_due.total_seconds()
    if state.oldest_due > UNDELIVERED and not alive:
        yield Finding(
            "critical",
            "delivery",
            f"{state.due} event(s) are due, the oldest for {oldest:,.0f} s, and no process delivers",
            "start one with `relaybox run`",
        )
    elif state.oldest_due > UNDELIVERED:
        yield Finding(
            "warning",
            "delivery",
            f"{state.due} event(s) are due, the oldest for {oldest:,.0f} s: delivery is behind",
            "add processes or workers, or look for slow listeners",
        )
    else:
        yield Finding("ok", "delivery", f"{len(alive)} process(es) deliver, {state.due} event(s) are due")
    if state.dead:
        yield Finding(
            "warning", "dead letters", f"{state.dead} event(s) are dead", "see `relaybox dead list`, then replay them"
        )


def _unread(seen: Vitals) -> list[Finding]:
    return [
        Finding("warning", name.removeprefix("doctor."), f"not checked: {error}", "give the role the privilege to look")
        for name, error in seen.unread.items()
    ]
