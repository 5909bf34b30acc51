"""The Redis sink against a private server; read back over the bare protocol."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from relaybox.brokers.redis.sink import RedisStreamSink
from relaybox.testing.servers import RedisServer
from relaybox.testing.servers.process import free_port
from relaybox.testing.servers.redis import connect
from relaybox.testing.sink_contract import SECRET, Received, SinkHarness

_names = itertools.count()


class RedisHarness(SinkHarness):
    def __init__(self, server: RedisServer, **options: Any) -> None:
        self.server = server
        self.options = options

    def sink(self, **options: Any) -> RedisStreamSink:
        return RedisStreamSink.from_url(self.server.url, {**self.options, **options})

    async def destination(self) -> str:
        return f"orders-{next(_names)}"

    async def read(self, destination: str, count: int, timeout: float = 20) -> list[Received]:
        # XADD is visible when it is acknowledged, so there is nothing to wait for.
        return [received(entry) for _, entry in await command(self.server.url, "XRANGE", destination, "-", "+")]

    async def outage(self) -> None:
        self.server.kill()

    async def recovery(self) -> None:
        await asyncio.to_thread(self.server.start)

    def wrong_credentials(self) -> RedisStreamSink:
        return self.sink(password=f"wrong-{SECRET}")


class ClusterNode(RedisServer):
    """A Redis Cluster of one node, until it meets others."""

    slots = (0, 16383)

    @functools.cached_property
    def bus(self) -> int:
        return free_port()

    def _command(self) -> Sequence[str | Path]:
        command = super()._command()
        file = Path(command[-1])
        lines = [line for line in file.read_text().splitlines() if not line.startswith("databases")]
        lines += ["cluster-enabled yes", f"cluster-port {self.bus}", f"masterauth {SECRET}"]
        file.write_text("\n".join(lines) + "\n")
        return command

    def _answering_folder(self) -> str:
        """Ready when its slots can be used, which takes a moment after a restart."""
        folder = super()._answering_folder()
        with connect(self.url) as client:
            state = client.cluster("INFO")
            if state["cluster_slots_assigned"] == "0":
                client.cluster("ADDSLOTSRANGE", *self.slots)
            elif state["cluster_state"] == "ok" or self.slots != ClusterNode.slots:
                return folder
        raise ConnectionError("the cluster is not complete yet")


@contextmanager
def three_nodes() -> Iterator[list[ClusterNode]]:
    with ExitStack() as stack:
        nodes = [ClusterNode(durable=False, password=SECRET) for _ in range(3)]
        for number, node in enumerate(nodes):
            node.slots = (5462 * number, min(5462 * number + 5461, 16383))
            stack.enter_context(node)
        for node in nodes[1:]:
            with connect(node.url) as client:
                client.cluster("MEET", "127.0.0.1", nodes[0].port, nodes[0].bus)
        for node in nodes:
            with connect(node.url) as client:
                while client.cluster("INFO")["cluster_state"] != "ok":
                    time.sleep(0.05)
        yield nodes


def received(entry: list[bytes]) -> Received:
    fields = {name.decode(): value for name, value in zip(entry[::2], entry[1::2], strict=True)}
    key = fields.get("key")
    return Received(
        fields["id"].decode(),
        None if key is None else key.decode(),
        fields["data"],
        fields["content_type"].decode(),
        json.loads(fields["attributes"]),
    )


async def command(url: str, *words: str | int) -> Any:
    """One command on a connection of its own, as RESP2 has it."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        answer = None
        for line in [["AUTH", parts.password]] * bool(parts.password) + [["SELECT", parts.path[1:] or 0], list(words)]:
            encoded = [str(word).encode() for word in line]
            writer.write(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in encoded))
            answer = await _reply(reader)
        return answer
    finally:
        writer.close()
        await writer.wait_closed()


async def _reply(reader: asyncio.StreamReader) -> Any:
    line = (await reader.readuntil(b"\r\n"))[:-2]
    kind, rest = line[:1], line[1:]
    if kind == b"-":
        raise RuntimeError(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else (await reader.readexactly(int(rest) + 2))[:-2]
    if kind == b"*":
        return [await _reply(reader) for _ in range(int(rest))]
    return rest.decode()
