"""The examples around the inbox run and do what their READMEs say."""

from __future__ import annotations

import asyncio
import os
import runpy
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from relaybox import AsyncInbox, AsyncOutbox, AsyncRelay, Event
from relaybox.brokers.nats.sink import NatsSink
from relaybox.testing.servers import require

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


def postgres_url(driver: str = "") -> str:
    url = require("postgres-wheel", durable=False).create_database()
    return str(url).replace("postgresql://", f"postgresql{driver}://", 1)


def test_inbox_processor(tmp_path: Path) -> None:
    script = EXAMPLES / "inbox" / "inbox_processor.py"
    done = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "accepted: True",
        "accepted: False (it was there already)",
        "Counts(done=1, failed=0, dead=1, ignored=0)",
        "dead letter: order-2, Reject: no such customer",
        "Counts(done=1, failed=0, dead=0, ignored=0)",
        "invoices: [('order-1', 'ann'), ('order-2', 'bob')]",
    ]


def test_inbox_processor_ordered(capsys: pytest.CaptureFixture[str]) -> None:
    expected = list(range(1, 11))
    assert load("inbox/inbox_processor_ordered.py")["main"](postgres_url()) == dict.fromkeys(
        ("ann", "bob", "cid"), expected
    )
    assert capsys.readouterr().out.startswith("bob waits for number 3")


@asynccontextmanager
async def stream(nats_url: str) -> AsyncIterator[str]:
    """The name of a fresh one, and of its subject."""
    import nats

    client, name = await nats.connect(nats_url), f"orders-{uuid4()}"
    await client.jetstream().add_stream(name=name, subjects=[name])
    yield name
    await client.jetstream().delete_stream(name)
    await client.close()


async def test_inbox_writer_nats(tmp_path: Path) -> None:
    nats_url = f"nats://127.0.0.1:{require('nats').port}"
    shop, billing = f"sqlite:///{tmp_path}/shop.db", f"sqlite:///{tmp_path}/billing.db"
    async with stream(nats_url) as subject, AsyncOutbox(shop) as outbox:
        await outbox.migrate()
        async with outbox.transaction() as tx:
            events = [Event("OrderPlaced", {"n": n}, key=f"order-{n}") for n in range(20)]
            await outbox.write_all(tx, events)
        async with AsyncRelay(shop, NatsSink(nats_url), to=subject) as relay:
            await relay.drain()
        writer = asyncio.create_task(load("inbox/inbox_writer_nats.py")["main"](nats_url, billing, subject))
        inbox = AsyncInbox(billing, "orders_inbox")
        await inbox.migrate()
        async with asyncio.timeout(30):
            while (await inbox.status()).pending < 20:
                assert not writer.done(), writer.result()
                await asyncio.sleep(0.02)
        writer.cancel()
        received: list[Event] = []

        async def take(event: Event, handle: Any) -> None:
            received.append(event)

        await inbox.process(take).once()
        await asyncio.wait([writer])
        await inbox.close()
    assert {event.id for event in received} == {event.id for event in events}
    assert {event.key: event.payload for event in received} == {event.key: event.payload for event in events}


async def test_webhook_receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from relaybox.brokers.webhook.signature import new_secret, parse_secret, sign
    from relaybox.clock import SYSTEM_CLOCK

    old, new = new_secret(), new_secret()
    url = f"sqlite:///{tmp_path}/billing.db"
    monkeypatch.setenv("WEBHOOK_SECRETS", f"{new},{old}")
    monkeypatch.setenv("INBOX_URL", url)
    receiver = load("inbox/webhook_receiver.py")["receiver"]
    body, now = b'{"type": "OrderPlaced"}', int(SYSTEM_CLOCK.now().timestamp())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(receiver), base_url="http://billing") as client:
        for secret, expected in ((old, 200), (new, 200), (new_secret(), 401)):
            headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now), "content-type": "application/json"}
            headers["webhook-signature"] = sign([parse_secret(secret)], "msg_1", now, body)
            assert (await client.post("/", content=body, headers=headers)).status_code == expected
    inbox = AsyncInbox(url, "orders_inbox")
    assert (await inbox.status()).pending == 1
    await inbox.close()
    await receiver._inbox.close()


@pytest.mark.parametrize("way", ["outbox", "group"])
@pytest.mark.parametrize("form", ["inline", "claim-check"])
async def test_outbox_relay(form: str, way: str, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    received = await load("outbox_relay/outbox_relay.py")["main"](postgres_url(), form, way, file)
    assert received["order-1"] == "two teas"
    assert len(received["order-2"]) > 100_000
    assert (len(file.read_bytes()) > 100_000) == (form == "inline")


@pytest.mark.parametrize("shop", ["sqlite", "postgresql"])
async def test_two_services(shop: str, tmp_path: Path) -> None:
    shop_url = postgres_url("+asyncpg") if shop == "postgresql" else f"sqlite+aiosqlite:///{tmp_path}/shop.db"
    answered = await load("two_services/services.py")["main"](
        shop_url, f"sqlite+aiosqlite:///{tmp_path}/billing.db", orders=5
    )
    assert answered == [(number, f"R-{number}") for number in range(1, 6)]


def test_two_services_as_a_program(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("SHOP_URL", "BILLING_URL")}
    script = EXAMPLES / "two_services" / "services.py"
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, timeout=60)
    assert done.stdout.decode().splitlines() == [f"order {n} has invoice R-{n}" for n in (1, 2, 3)], done.stderr
