"""The peer's side of the line protocol, for Python programs. Standard library only.

A peer fills in the hooks of `Peer`; pacing, clocks and counting live here, the same for everyone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

MARK = "@@"
PAYLOAD_BYTES = 256
PREFETCH = 10  # messages that a broker has under way to a consumer
TEMPLATE = '{"seq":%d,"kind":"order.placed","pad":"%s"}'
PAD = "x" * (PAYLOAD_BYTES - len(TEMPLATE) + len("%d%s"))
BUSINESS_TABLE = "CREATE TABLE business (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text NOT NULL)"
BUSINESS_NOTE = "an order of the business"


class Unsupported(Exception):
    """This peer cannot do what was asked; the message says why."""


def payload(seq: int) -> dict[str, Any]:
    """The event body: 256 bytes as compact JSON."""
    return {"seq": seq, "kind": "order.placed", "pad": PAD[len(str(seq)) :]}


def payload_bytes(seq: int) -> bytes:
    """The event body as bytes."""
    return (TEMPLATE % (seq, PAD[len(str(seq)) :])).encode()


def key(seq: int, keys: int) -> str:
    """The ordering key of an event: neighbours have different ones."""
    return f"order-{seq % keys}"


class Meter:
    """Counts handled events; in latency mode also notes when each one came."""

    def __init__(self) -> None:
        self.count = self.first_count = self.first_ns = self.last_ns = 0
        self.received: dict[int, int] = {}
        self.latency = False

    def one(self, body: bytes | str | Mapping[str, Any]) -> None:
        """The handler was called with one event."""
        now = time.monotonic_ns()
        if self.latency:
            value = body if isinstance(body, Mapping) else json.loads(body)
            self.received.setdefault(value["seq"], now)
        if not self.count:
            self.first_ns, self.first_count = now, 1
        self.count += 1
        self.last_ns = now

    def many(self, bodies: Sequence[bytes | str | Mapping[str, Any]]) -> None:
        """The handler was called with a batch."""
        if self.latency:
            for body in bodies:
                self.one(body)
            return
        now = time.monotonic_ns()
        if not self.count:
            self.first_ns, self.first_count = now, len(bodies)
        self.count += len(bodies)
        self.last_ns = now


class Peer:
    """The hooks one system fills in, and the commands built on them."""

    #: name and settings recorded with every result
    version = ""
    settings: Mapping[str, Any] = MappingProxyType({})
    #: True when `commit_one_sync` is used, in a thread of its own
    sync_producer = False
    #: False when there is no event to compare a bare transaction with (baselines)
    has_bare = True

    def __init__(self) -> None:
        self.meter = Meter()
        self.url = ""
        self.workload = ""
        self.options: Mapping[str, Any] = {}
        self._next = 0

    async def setup(self, fresh: bool) -> None:
        """Connect; when `fresh`, also create the schema and the business table."""
        raise NotImplementedError

    def prepare(self, first: int, count: int, event: bool) -> None:
        """What a block needs at hand before the clock runs."""

    async def write_block(self, first: int, count: int, event: bool) -> None:
        """`count` transactions, each one business row and, if `event`, one event."""
        raise Unsupported("no transactional enqueue")

    async def write_batch(self, first: int, count: int) -> None:
        """One transaction with `count` events."""
        raise Unsupported("no batched write")

    async def hold(self, total: int, keys: int) -> None:
        """Write `total` events over `keys` keys and ANALYZE, in a transaction that stays open: they come to light
        together, under workers that are ready."""
        raise Unsupported("no transactional enqueue")

    async def commit(self) -> float:
        """Let them go; returns when (`time.time()`) work could begin."""
        raise Unsupported("no transactional enqueue")

    async def claims(self) -> list[float]:
        """Claim batch after batch until nothing waits; milliseconds of each claim."""
        raise Unsupported("no claims apart from delivery")

    async def start(self) -> None:
        """Start the worker; every handled event goes to `self.meter`."""
        raise Unsupported("no worker")

    async def stop(self) -> None:
        """Stop the worker gracefully, acknowledgements written."""

    async def commit_one(self, seq: int) -> None:
        """One business row and one event, committed."""
        await self.write_block(seq, 1, True)

    def commit_one_sync(self, seq: int) -> None:
        """As `commit_one`, for peers with a synchronous API."""
        raise NotImplementedError

    async def _command(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if name == "setup":
            self.url, self.workload = arguments["url"], arguments["workload"]
            self.options = arguments.get("options", {})
            await self.setup(arguments["fresh"])
            return {"version": self.version, "settings": dict(self.settings)}
        if name == "write_tx":
            return await self._write_tx(arguments["total"], arguments["block"])
        if name == "write_batches":
            return await self._write_batches(arguments["batches"], arguments["size"])
        if name == "hold":
            await self.hold(arguments["total"], arguments["keys"])
            return {}
        if name == "commit":
            return {"at": await self.commit()}
        if name == "claims":
            return {"ms": await self.claims()}
        if name == "start":
            self.meter.latency = arguments["mode"] == "latency"
            await self.start()
            return {}
        if name == "stop":
            await self.stop()
            meter = self.meter
            return {
                "count": meter.count,
                "first_count": meter.first_count,
                "first_ns": meter.first_ns,
                "last_ns": meter.last_ns,
                "received": meter.received,
            }
        if name == "produce":
            return {"committed": await self._produce(arguments["rate"], arguments["total"])}
        raise Unsupported(f"unknown command {name}")

    async def _write_tx(self, total: int, block: int) -> dict[str, Any]:
        spent = {False: 0.0, True: 0.0}
        modes = (False, True) if self.has_bare else (True,)
        for mode in modes:
            first = self._take(20)
            self.prepare(first, 20, mode)
            await self.write_block(first, 20, mode)
        for turn in range(total // block):
            for mode in modes if turn % 2 else modes[::-1]:
                first = self._take(block)
                self.prepare(first, block, mode)
                began = time.perf_counter()
                await self.write_block(first, block, mode)
                spent[mode] += time.perf_counter() - began
        return {"event_seconds": spent[True], "bare_seconds": spent[False]}

    async def _write_batches(self, batches: int, size: int) -> dict[str, Any]:
        began = time.monotonic_ns()
        for _ in range(batches):
            await self.write_batch(self._take(size), size)
        return {"seconds": (time.monotonic_ns() - began) / 1e9, "began_ns": began}

    async def _produce(self, rate: int, total: int) -> dict[int, int]:
        if self.sync_producer:
            return await asyncio.to_thread(self._produce_sync, rate, total)
        committed: dict[int, int] = {}
        began = time.monotonic()
        for seq in range(total):
            pause = began + seq / rate - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            await self.commit_one(seq)
            committed[seq] = time.monotonic_ns()
        return committed

    def _produce_sync(self, rate: int, total: int) -> dict[int, int]:
        committed: dict[int, int] = {}
        began = time.monotonic()
        for seq in range(total):
            pause = began + seq / rate - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            self.commit_one_sync(seq)
            committed[seq] = time.monotonic_ns()
        return committed

    def _take(self, count: int) -> int:
        first, self._next = self._next, self._next + count
        return first


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(f"{MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


def _report(meter: Meter) -> None:
    said = 0
    while True:
        time.sleep(0.02)
        if meter.count != said:
            said = meter.count
            _say({"handled": said})


async def _serve(peer: Peer) -> None:
    threading.Thread(target=_report, args=(peer.meter,), daemon=True).start()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        arguments = json.loads(line)
        try:
            _say(await peer._command(arguments.pop("command"), arguments))
        except Unsupported as error:
            _say({"unsupported": str(error)})
        except Exception as error:
            traceback.print_exc()
            _say({"error": f"{type(error).__name__}: {error}"})


def serve(peer: Peer, *, uvloop: bool = False) -> None:
    """Answer commands on stdin until it closes."""
    if uvloop:
        import uvloop as fast

        fast.run(_serve(peer))
    else:
        asyncio.run(_serve(peer))
