"""An endpoint that is away or slow, and something else at the same time: a stop, a change, a purge, a poisonous
event."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import Request, ScriptedEndpoint, answer, endpoint
from test_webhook_faults import SECRET

from relaybox import AsyncOutbox, AsyncRelay, Event, Settings
from relaybox.brokers.webhook.signature import new_secret, verify
from relaybox.brokers.webhook.sink import Endpoint, WebhookSink
from relaybox.facts import DestinationChanged, Died, Purged
from relaybox.testing import Probe

KEYS = 3
QUICK = Settings().replaced({"delivery.poll": "50ms", "delivery.stop_timeout": "2s", "relay.retry.base": "5ms"})


class Door:
    """An endpoint that is away until it is opened."""

    def __init__(self) -> None:
        self.open = False
        self.refused = asyncio.Event()
        self.taken: list[Request] = []
        self.more = asyncio.Event()

    async def __call__(self, request: Request, writer: Any) -> None:
        if not self.open:
            self.refused.set()
            await answer(503)(request, writer)
            return
        await answer(204)(request, writer)
        self.taken.append(request)
        self.more.set()

    async def takes(self, count: int) -> None:
        self.open = True
        async with asyncio.timeout(60):
            while len({each.headers["webhook-id"] for each in self.taken}) < count:
                self.more.clear()
                await self.more.wait()

    @property
    def by_key(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for request in self.taken:
            found.setdefault(request.headers["aggregate-id"], []).append(int(request.body))
        return found


def sink_to(server: ScriptedEndpoint, **options: Any) -> WebhookSink:
    given: dict[str, Any] = {
        "endpoints": {"crm": Endpoint(url=server.url(), secrets=[SECRET])},
        "allow_networks": ["127.0.0.0/8"],
        "ports": [server.port],
        "insecure_http": True,
    }
    return WebhookSink(**given | options)


@asynccontextmanager
async def written(folder: Path, count: int) -> AsyncIterator[AsyncOutbox]:
    async with AsyncOutbox(f"sqlite:///{folder}/shop.db") as outbox:
        await outbox.migrate()
        async with outbox.transaction() as tx:
            await outbox.write_all(tx, [Event("E", n, key=f"k{n % KEYS}") for n in range(count)])
        yield outbox


def in_order(count: int) -> dict[str, list[int]]:
    return {f"k{k}": list(range(k, count, KEYS)) for k in range(KEYS)}


async def test_a_stop_while_a_destination_rests(tmp_path: Path) -> None:
    """It waits for nothing, and what waited is there for the next process, in its order."""
    door = Door()
    async with endpoint(door) as server, written(tmp_path, 30) as outbox:
        relay = AsyncRelay(outbox, sink_to(server), to="crm", settings=QUICK)
        await relay.start()
        await asyncio.wait_for(door.refused.wait(), 30)
        await asyncio.wait_for(relay.stop(), 20)
        status = await relay.status()
        assert (status.claimed, status.dead) == (0, 0)
        async with AsyncRelay(outbox, sink_to(server), to="crm", settings=QUICK):
            await door.takes(30)
    assert door.by_key == in_order(30)


async def test_a_secret_that_changes_while_the_destination_rests(tmp_path: Path) -> None:
    door, new, secrets = Door(), new_secret(), [SECRET]
    async with endpoint(door) as server, written(tmp_path, 12) as outbox:
        sink = sink_to(server, endpoints={}, url_secrets=lambda url: list(secrets))
        async with AsyncRelay(outbox, sink, to=lambda event: server.url(), settings=QUICK):
            await asyncio.wait_for(door.refused.wait(), 30)
            secrets[:] = [new]
            await door.takes(12)
    for request in door.taken:
        verify(request.headers, request.body, [new])
    assert door.by_key == in_order(12)


async def test_an_address_that_changes_while_the_destination_rests(tmp_path: Path) -> None:
    """The relay is started again with it: nothing of the rest of the former address is left."""
    door, moved = Door(), Door()
    async with endpoint(door) as server, endpoint(moved) as other, written(tmp_path, 12) as outbox:
        async with AsyncRelay(outbox, sink_to(server), to="crm", settings=QUICK):
            await asyncio.wait_for(door.refused.wait(), 30)
        async with AsyncRelay(outbox, sink_to(other), to="crm", settings=QUICK):
            await moved.takes(12)
    assert not door.taken
    assert moved.by_key == in_order(12)


async def test_sigterm_while_a_slow_endpoint_is_asked(tmp_path: Path) -> None:
    asked, door = asyncio.Event(), Door()

    async def slow(request: Request, writer: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with endpoint(slow) as server, endpoint(door) as other, written(tmp_path, 12) as outbox:
        settings = {"endpoints": {"crm": {"url": server.url(), "secrets": SECRET}}, "insecure_http": "true"}
        settings |= {"allow_networks": "127.0.0.0/8", "ports": str(server.port)}
        file = configuration(tmp_path, settings)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "relaybox", "--url", f"sqlite:///{tmp_path}/shop.db", "relay", "--to", "crm"),
            env={
                **os.environ,
                "RELAYBOX_CONFIG": str(file),
                "RELAYBOX_DELIVERY_STOP_TIMEOUT": "1s",
            },
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            await asyncio.wait_for(asked.wait(), 60)
            process.send_signal(signal.SIGTERM)
            _, errors = await asyncio.wait_for(process.communicate(), 30)
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, errors.decode()
        relay = AsyncRelay(outbox, sink_to(other), to="crm", settings=QUICK)
        assert (await relay.status()).claimed == 0
        async with relay:
            await door.takes(12)
    assert door.by_key == in_order(12)


def configuration(folder: Path, sink: dict[str, Any]) -> Path:
    endpoints = sink.pop("endpoints")
    sections = {"sink": {"url": "webhook://", **sink}}
    sections |= {f"sink.endpoints.{name}": fields for name, fields in endpoints.items()}
    lines = []
    for name, fields in sections.items():
        lines += [f"[relaybox.{name}]", *(f"{field} = {json.dumps(value)}" for field, value in fields.items())]
    file = folder / "relaybox.toml"
    file.write_text("\n".join(lines) + "\n")
    return file


async def test_a_purge_while_the_destination_rests(tmp_path: Path) -> None:
    """Only what is done goes, however old the rest is."""
    door, well, probe = Door(), Door(), Probe()
    well.open = True
    settings = QUICK.replaced({"relay.retention": "1ms", "outbox.purge_interval": "50ms"})
    async with endpoint(door) as server, endpoint(well) as other, written(tmp_path, 12) as outbox:
        async with outbox.transaction() as tx:
            await outbox.write_all(tx, [Event("Done", n, key=f"done-{n}") for n in range(5)])
        endpoints = {
            name: Endpoint(url=each.url(), secrets=[SECRET]) for name, each in (("crm", server), ("well", other))
        }
        sink = sink_to(server, endpoints=endpoints, ports=[server.port, other.port])
        to: Callable[[Event], str] = lambda event: "well" if event.type == "Done" else "crm"  # noqa: E731
        async with AsyncRelay(outbox, sink, to=to, settings=settings, observers=[probe]):
            await asyncio.wait_for(door.refused.wait(), 30)
            await well.takes(5)
            while sum(fact.count for fact in probe.of(Purged)) < 5:
                await probe.wait(Purged, len(probe.of(Purged)) + 1, 30)
            await door.takes(12)
    assert door.by_key == in_order(12)


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_poisonous_event_is_the_one_that_tries(tmp_path: Path, ordered: bool) -> None:
    """It makes the receiver hang up whenever it comes, also as the first after the rest. The others get through, and
    once they do it is counted. Without them nobody can tell it from an outage."""
    door, probe, hung_up = Door(), Probe(), asyncio.Event()

    async def receive(request: Request, writer: Any) -> None:
        if request.body == b"0" and door.open:
            hung_up.set()
            writer.close()
            return
        await door(request, writer)

    settings = QUICK.replaced({"relay.retry.attempts": 1, "order.on_exhausted": "skip"})
    async with endpoint(receive) as server, written(tmp_path, 12) as outbox:
        relay = AsyncRelay(outbox, sink_to(server), to="crm", ordered=ordered, settings=settings, observers=[probe])
        async with relay:
            await asyncio.wait_for(door.refused.wait(), 30)
            await door.takes(8)
            await asyncio.wait_for(hung_up.wait(), 30)
            async with outbox.transaction() as tx:
                await outbox.write(tx, Event("E", 12, key="k2"))
            await door.takes(12)
            await probe.wait(Died, 1, 60)
        status = await outbox.status()
    assert (status.due, status.dead) == (0, 1)
    assert probe.of(DestinationChanged)[0].state == "away"
    if ordered:
        assert door.by_key == in_order(12) | {"k0": [3, 6, 9], "k2": [2, 5, 8, 11, 12]}
