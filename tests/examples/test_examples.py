"""Each example runs and does what its README says."""

from __future__ import annotations

import asyncio
import os
import runpy
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from relaybox import Event, Outbox
from relaybox.errors import StoreError
from relaybox.testing import Probe
from relaybox.testing.servers import require

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(*command: str | Path, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def postgres_url(driver: str = "") -> str:
    url = require("postgres-wheel", durable=False).create_database()
    return url.replace("postgresql://", f"postgresql{driver}://", 1)


@pytest.mark.parametrize("example", sorted(p for p in EXAMPLES.iterdir() if p.is_dir()), ids=lambda p: p.name)
def test_every_example_has_a_short_readme(example: Path) -> None:
    lines = (example / "README.md").read_text(encoding="utf-8").splitlines()
    assert 5 <= len(lines) <= 16


def test_plain_sqlite3(tmp_path: Path) -> None:
    said = run(EXAMPLES / "plain_sqlite3" / "shop.py", tmp_path, folder=tmp_path).splitlines()
    assert said == [
        "no order 2 and no event: we are out of coffee",
        "mail for order-1: tea (attempt 2)",
        "dead letter: RefundWanted, Reject: the till is closed",
        "refund for order-1",
    ]
    with sqlite3.connect(tmp_path / "shop.db") as db:
        assert db.execute("SELECT * FROM orders").fetchall() == [(1, "tea")]
        assert db.execute("SELECT event_type, status FROM outbox_event_status ORDER BY seq").fetchall() == [
            ("OrderPlaced", 1),
            ("RefundWanted", 1),
        ]
    db.close()


def test_plain_sqlite3_needs_only_the_standard_library(tmp_path: Path) -> None:
    script = EXAMPLES / "plain_sqlite3" / "shop.py"
    code = f"import runpy, sys; runpy.run_path({str(script)!r}, run_name='__main__'); print(*sys.modules)"
    said = run("-c", code, folder=tmp_path)
    assert {"sqlalchemy", "psycopg", "asyncpg", "typer", "pytest"}.isdisjoint(said.splitlines()[-1].split())


@pytest.mark.parametrize("shop", ["sqlite", "postgresql"])
async def test_two_databases(shop: str, tmp_path: Path) -> None:
    main = runpy.run_path(str(EXAMPLES / "two_databases" / "service.py"))["main"]
    shop_url = postgres_url() if shop == "postgresql" else f"sqlite:///{tmp_path}/shop.db"
    invoices = await main(shop_url, f"sqlite:///{tmp_path}/billing.db", orders=5)
    assert sorted(invoices) == [f"invoice for order-{number}" for number in range(1, 6)]


def test_relay(tmp_path: Path) -> None:
    """Its role may relay, and reads no audit; preparing twice changes nothing."""
    url, role = postgres_url(), f"relay_{uuid4().hex[:8]}"
    prepared = {"RELAYBOX_URL": url, "RELAY_ROLE": role, "RELAY_PASSWORD": "it's secret"}
    for _ in range(2):
        run(EXAMPLES / "relay" / "prepare.py", folder=tmp_path, environment=prepared)
    with Outbox(url) as box, box.transaction() as tx:
        box.write(tx, Event("OrderPlaced", {"id": 7}, aggregate_type="order"))
    environment = {
        "RELAYBOX_URL": url.replace("relaybox@", f"{role}@"),
        "RELAYBOX_SINK": f"jsonl:{tmp_path}/out",
        "RELAYBOX_RELAY_LISTEN": "127.0.0.1:0",
    }
    relay = ("-m", "relaybox", "relay", "--config", EXAMPLES / "relay" / "relay.toml", "--once")
    run(*relay, folder=tmp_path, environment=environment)
    assert '"destination":"order-events"' in (tmp_path / "out").read_text()
    with Outbox(environment["RELAYBOX_URL"]) as box, pytest.raises(StoreError, match="permission denied"):
        box.audit()


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
async def test_fastapi_sqlalchemy(engine: str, tmp_path: Path) -> None:
    from relaybox.facts import Delivered, HotEnqueued

    example = runpy.run_path(str(EXAMPLES / "fastapi_sqlalchemy" / "app.py"), run_name="fastapi_example")
    url = postgres_url("+asyncpg") if engine == "postgresql" else f"sqlite+aiosqlite:///{tmp_path}/shop.db"
    probe = Probe()
    app = example["create_app"](create_async_engine(url), observers=[probe])
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client,
    ):
        numbers = [
            response.json()["id"]
            for response in await asyncio.gather(*(client.post("/orders", json={"item": "tea"}) for _ in range(5)))
        ]
        refused = await client.post("/orders", json={"item": "coffee"})
        assert refused.status_code == 409
        await probe.wait(Delivered, count=5)
        for number in numbers:
            shown = (await client.get(f"/orders/{number}")).json()
            assert shown == {"id": number, "item": "tea", "confirmed": True}
        assert probe.count(HotEnqueued) == 5  # handed over at the commit, not found by a poll
        assert probe.count(Delivered) == 5


async def test_topics_fan_out() -> None:
    main = runpy.run_path(str(EXAMPLES / "topics_fan_out" / "shop.py"))["main"]
    everything = [f"order-{number}" for number in range(1, 7)]
    assert await main(postgres_url(), orders=6) == {"mail": everything, "search": everything, "report": everything}
