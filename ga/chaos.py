"""X-02: a group is killed, found dead, holds nothing, and comes back; the others notice none of it.

Restated (FL-77) for what the design does, and for compressed minutes: dead within timeout + interval; the retention is
shorter than the dead time, so what it missed is partly gone and it must come back to what is kept, no more.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from relaybox.testing.servers import PostgresServer
from relaybox.topic import Topic

from .database import Database
from .processes import Process
from .scale import Scale
from .verdicts import Verdict

MINUTE = 60.0


def run(server: PostgresServer, scale: Scale) -> Verdict:
    rate = scale.rate(1_000)
    minute = scale.seconds(MINUTE)
    verdict = Verdict("X-02", f"kill and resurrect: 3 groups, {rate:,.0f} events/s", blocker=True)
    database = Database(server)
    timeout = timedelta(seconds=5 * minute)
    topic = Topic.pub_sub(
        "orders",
        tracking="bitmap",
        retention=timedelta(seconds=3 * minute),
        heartbeat_timeout=timeout,
        heartbeat_interval=timeout / 10,
    )
    topic_id = database.topic(topic)
    names = ("email", "analytics", "inventory")
    readers = {name: Process("reader", database.url, "orders", "latest", name) for name in names}
    for process in readers.values():
        process.ready()
    keeper = Process("keeper", database.url, minute)
    writer = Process("writer", database.url, "orders", rate, 0, 0, 40 * minute)
    try:
        _story(verdict, database, topic_id, readers, minute, rate)
    finally:
        for process in (writer, keeper, *readers.values()):
            process.stop()
    return verdict


def _story(
    verdict: Verdict, database: Database, topic_id: int, readers: dict[str, Process], minute: float, rate: float
) -> None:
    others = ("email", "analytics")
    time.sleep(5 * minute)  # T0
    readers["inventory"].kill()  # T1
    killed = time.time()
    state = _state(database)
    verdict.check("T1 killed, not yet dead", "active", state, state == "active")
    dead = _until(lambda: _state(database) == "dead", 12 * minute)
    took = time.time() - killed
    # timeout + detection interval, and a third for the heartbeat that came just before the kill
    verdict.check("T2 found dead", f"≤ {7 * minute:.1f} s", f"{took:.1f} s", dead and took <= 7 * minute)
    released = _until(lambda: _waiting_for_dead(database, topic_id) == 0, 3 * minute)
    verdict.check("T2 no event waits for it (zombie)", "0", _waiting_for_dead(database, topic_id), released)
    time.sleep(6 * minute)  # T3: what the others have finished is past its retention
    first_rows, first_size = database.stored(topic_id), database.size()
    time.sleep(5 * minute)
    rows, size = database.stored(topic_id), database.size()
    kept = rate * minute * (3 + 1 + 1) * 1.25  # retention, cleanup interval, detection interval, and some
    verdict.check("T3 cleanup goes on (stall)", f"≤ {kept:,.0f} events stored", f"{rows:,}", rows <= kept)
    growth = size / first_size - 1
    verdict.check(
        "T3 growth while it is dead", "< 10 %", f"{growth:.1%} ({first_rows:,} → {rows:,} rows)", growth < 0.1
    )
    moved = {name: _rate(readers[name], name, killed) for name in others}
    slow = min(moved.values())
    verdict.check("the others go on (cascade)", f"≥ 90 % of {rate:,.0f} /s", f"{slow:,.0f} /s", slow >= 0.9 * rate)

    written = database.one(f"SELECT last_value FROM outbox_event_log_{topic_id}_seq")  # T4
    missed = int(rate * (time.time() - killed))
    back = readers["inventory"] = Process("reader", database.url, "orders", "latest", "inventory")
    started = time.time()
    back.ready()
    caught = _until(lambda: _lag(database) < rate * minute, 10 * minute)
    took = time.time() - started
    verdict.check("T4 back", f"≤ {10 * minute:.0f} s", f"{took:.1f} s", caught and _state(database) == "active")
    time.sleep(5 * minute)  # T5
    got = back.delivered.get("inventory", 0)
    since = int(rate * (time.time() - started))
    bound = kept + since
    text = f"{got:,}; it missed {missed:,}, {since:,} came since"
    verdict.check("T4 gets what is kept, not all it missed", f"≤ {bound:,.0f}", text, 0 < got <= bound)
    fresh = [name for name in readers if _rate(readers[name], name, time.time() - 2 * max(1.0, minute)) < 0.5 * rate]
    verdict.check("T5 all three handle new events", "3", 3 - len(fresh), not fresh)
    stuck = database.one(
        f"SELECT count(*) FROM outbox_event_mark_{topic_id} WHERE completed_at IS NULL AND required <> 0 "
        "AND created_at < clock_timestamp() - %s * interval '1 second'",
        3 * max(1.0, minute),
    )
    verdict.check("T5 no event is stuck", "0", stuck, stuck == 0)
    verdict.notes.append(f"{written:,} events written when it came back")


def _until(condition: Any, patience: float) -> bool:
    end = time.time() + patience
    while time.time() < end:
        if condition():
            return True
        time.sleep(0.1)
    return bool(condition())


def _state(database: Database) -> str:
    return str(database.one("SELECT state FROM outbox_event_group WHERE name = 'inventory'"))


def _waiting_for_dead(database: Database, topic_id: int) -> int:
    return int(
        database.one(
            f"SELECT count(*) FROM outbox_event_mark_{topic_id} m, outbox_event_topic t "
            "WHERE t.id = %s AND m.completed_at IS NULL AND m.required & ~t.required <> 0",
            topic_id,
        )
    )


def _lag(database: Database) -> int:
    from relaybox import Outbox

    with Outbox(database.url) as outbox:
        return outbox.topics.group("orders", "inventory").lag().events


def _rate(process: Process, name: str, since: float) -> float:
    lines = process.since(since)
    if len(lines) < 2:
        return 0.0
    return (lines[-1]["counts"][name] - lines[0]["counts"][name]) / (lines[-1]["at"] - lines[0]["at"])
