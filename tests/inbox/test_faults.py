"""What goes wrong around a transaction: slow handlers, lost connections, commits that are refused, plans that scan."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit import Probe, one, rows, until_stored
from relaybox import ALL, AsyncInbox, ConfigError, Event, Inbox
from relaybox.drivers import open_sync
from relaybox.errors import Closed, SchemaMissing
from relaybox.op import run
from relaybox.store.events import Search
from relaybox.types import Order

from .effects import QUICK, effects, rows_or_none, say, text_of, with_effects, writing
from .kit import PATIENCE, aprocessed, arrived, fresh_url, inbox_url, pending_ids, processed, serving
from .test_sessions import psycopg_transaction

SERVERS = ["postgres", "mariadb"]
LAPSED = {
    "postgres": "SELECT count(*) FROM inbox_pending WHERE due < clock_timestamp()",
    "mariadb": "SELECT count(*) FROM inbox_pending WHERE due < utc_timestamp(6)",
}
SHORT = QUICK.replaced({"delivery.instance_ttl": "300ms", "delivery.lease": "600ms"})


@pytest.mark.parametrize("server", SERVERS)
async def test_a_handler_that_outlives_its_lease_keeps_its_message(server: str, tmp_path: Path) -> None:
    url = with_effects(inbox_url(server, tmp_path))
    entered, let_go, ran = threading.Event(), threading.Event(), list[str]()

    def slow(event: Event, handle: Any) -> None:
        ran.append(event.id)
        say(handle, text_of(event))
        entered.set()
        let_go.wait(PATIENCE)

    with Inbox(url) as inbox, serving(inbox, slow, settings=SHORT) as processor:
        inbox.accept(None, arrived(1))
        await asyncio.to_thread(entered.wait, PATIENCE)
        await until_stored(lambda: one(url, LAPSED[server]) == 1)
        with Inbox(url) as other:
            assert (await asyncio.to_thread(lambda: processed(other, writing(False), settings=SHORT))).done == 0
        let_go.set()
        await until_stored(lambda: processor.counts.done == 1)
    assert len(ran) == len(effects(url)) == 1


async def test_a_connection_that_is_lost_at_the_commit_counts(tmp_path: Path) -> None:
    """It may have been the message that killed it; and what the handler wrote is gone."""
    url = with_effects(inbox_url("postgres", tmp_path))
    lost: list[str] = []

    def cut_off(event: Event, connection: Any) -> None:
        say(connection, text_of(event))
        if len(lost) < 2:
            lost.append(event.id)
            rows(url, f"SELECT pg_terminate_backend({connection.info.backend_pid})")

    probe = Probe()
    with Inbox(url) as inbox:
        inbox.accept(None, arrived(1))
        with serving(inbox, cut_off, settings=QUICK, observers=[probe]) as processor:
            await probe.until(lambda: processor.counts.done == 1)
    assert (len(lost), len(effects(url))) == (2, 1)
    assert one(url, "SELECT attempts FROM inbox_done") == 3


async def test_a_database_that_cannot_be_reached_is_no_attempt(tmp_path: Path) -> None:
    url = with_effects(inbox_url("postgres", tmp_path))
    refused: list[int] = []

    @contextmanager
    def unlucky() -> Iterator[Any]:
        with psycopg_transaction(url) as connection:
            if len(refused) < 12:  # more often than attempts
                refused.append(1)
                rows(url, f"SELECT pg_terminate_backend({connection.info.backend_pid})")
            yield connection

    probe = Probe()
    with Inbox(url) as inbox:
        inbox.accept(None, arrived(1))
        with serving(inbox, writing(False), session=unlucky, settings=QUICK, observers=[probe]) as processor:
            await probe.until(lambda: processor.counts.done == 1)
    assert (len(refused), len(effects(url))) == (12, 1)
    assert one(url, "SELECT attempts FROM inbox_done") == 1


@pytest.mark.parametrize("batch", [1, 5])
async def test_a_commit_that_is_refused_undoes_everything_and_counts(batch: int, tmp_path: Path) -> None:
    url = with_effects(inbox_url("postgres", tmp_path))
    rows(url, "CREATE TABLE parent (id text PRIMARY KEY)")
    rows(url, "CREATE TABLE child (id text REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")

    def orphan(event: Event, connection: Any) -> None:
        say(connection, text_of(event))
        say(connection, f"INSERT INTO child VALUES ('{event.id}')")

    with Inbox(url) as inbox:
        inbox.accept(None, arrived(1))
        done = processed(inbox, orphan, settings=QUICK.replaced({"delivery.retry.attempts": 1}), batch=batch)
        assert (done.done, done.dead) == (0, 1)
    assert effects(url) == []
    assert one(url, "SELECT count(*) FROM inbox_done") == 0


async def test_a_message_whose_row_is_gone_is_forgotten(url: str) -> None:
    with Inbox(url) as inbox:
        inbox.accept_all(None, [arrived(n) for n in range(3)])
        rows_or_none(url, "DELETE FROM inbox WHERE seq = 2")
        seen: list[int] = []
        processed(inbox, lambda event, _: seen.append(event.payload["n"]), settings=QUICK)
    assert len(seen) == 2
    assert pending_ids(url) == []
    assert one(url, "SELECT count(*) FROM inbox_pending") == 0


async def test_a_processor_that_cannot_start_leaves_nothing_behind(engine: str, tmp_path: Path) -> None:
    url = fresh_url(engine, tmp_path)
    with Inbox(url) as inbox:
        with pytest.raises(SchemaMissing):
            processed(inbox, writing(False))
        processor = serving(inbox, writing(False))
        with pytest.raises(Closed, match="not running"):
            processor.drain()
        processor.stop()
    async with AsyncInbox(url) as again:
        with pytest.raises(SchemaMissing):
            await aprocessed(again, writing(True))
    await until_stored(lambda: not [t for t in threading.enumerate() if t.name.startswith("relaybox-inbox")])
    with pytest.raises(ConfigError, match="in-memory"):
        Inbox("sqlite://").process(writing(False))


# -- plans ----------------------------------------------------------------------------------------------


async def test_hot_queries_use_their_indexes(tmp_path: Path) -> None:
    """In our sessions, on tables with many processed messages and many held back."""
    url = inbox_url("postgres", tmp_path)
    key = "('x' || substr(md5('k' || n % 50), 1, 16))::bit(64)::bigint & 9223372036854775807"
    rows(
        url,
        "INSERT INTO inbox SELECT n, 'e' || n, 'T', '', NULL, 'k' || n % 50, NULL, NULL, '', NULL, now(), now() "
        "FROM generate_series(1, 20000) n",
    )
    rows(url, "INSERT INTO inbox_done SELECT n, now(), 1, 0 FROM generate_series(1, 15000) n")
    rows(
        url,
        "INSERT INTO inbox_pending (seq, due, key_hash, position, priority, held, attempts) "
        f"SELECT n, 'infinity', {key}, n, n % 10, true, 0 FROM generate_series(15001, 20000) n",
    )
    for table in ("inbox", "inbox_done", "inbox_pending"):
        rows(url, f"VACUUM ANALYZE {table}")
    with Inbox(url) as inbox:
        share = {"worker": 0, "workers": 1, "now": None}
        seqs = list(range(15001, 15051))
        plans: dict[str, tuple[dict[str, Any], str]] = {
            "inbox.claim.pick": ({**share, "limit": 50, "full": []}, "inbox_pending_due"),
            "inbox.claim.ranked": ({**share, "limit": 50, "priority": 3, "full": []}, "inbox_pending_"),
            "inbox.claim.read": ({"seqs": seqs, "token": 1, "room": 65_536}, "inbox_pkey"),
            "inbox.claim": (
                {**share, "limit": 50, "token": 1, "owner": 1, "lease": 30.0, "suspect": 2, "room": 65_536},
                "inbox_pending_due",
            ),
            "inbox.settle.mark": (
                {"seq": 15001, "token": 1, "event_type": "T", "received": None, "now": None},
                "inbox_pending_pkey",
            ),
            "inbox.order.look": ({"seqs": seqs}, "inbox_pending_pkey"),
            "inbox.order.next": ({"key_hash": 1, "key": "k1"}, "inbox_state_pkey"),
            "inbox.order.sleepers": ({"hashes": [1], "positions": [2]}, "inbox_pending_pos"),
            "inbox.order.heads": ({"now": None}, "inbox_pending_pos"),
            "inbox.order.gaps": ({"now": None, "start": 1, "limit": 9}, "Index Only Scan using inbox_pending_pos"),
            "inbox.order.lowest": ({"key_hash": 1, "next": 1}, "inbox_pending_pos"),
            "inbox.events.ids": ({"event_ids": ["message-15001"], "sender": None}, "inbox_identity"),
            "inbox.events.open": (
                {**inbox.store.search(Search(ALL, seqs=seqs, upto=seqs[-1])), "limit": 50, "room": 1_000},
                "inbox_pending_pkey",
            ),
            "inbox.status.pace": ({"now": None}, "inbox_done_at"),
            "inbox.purge.done": ({"ttl": 60.0, "limit": 9, "now": None}, "inbox_done_at"),
        }
        database = open_sync(url)
        with database.connection() as connection:
            for name, (values, index) in plans.items():
                text, params = inbox.store.sql[name].bind(**values).positional("format")
                plan = "\n".join(row[0] for row in connection.raw.execute("EXPLAIN " + text, params))
                assert index in plan, plan
                assert "Seq Scan on inbox " not in plan, plan
                assert "Seq Scan on inbox_pending" not in plan, plan
            gaps = run(inbox.store.gaps(Order(), 1000, None), connection)
        database.close()
    assert len(gaps) == 1000
