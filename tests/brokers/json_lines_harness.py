"""JSON-lines files for the sink contract. Away means that no file of this process may grow."""

from __future__ import annotations

import base64
import json
import resource
from pathlib import Path
from typing import Any

from relaybox.brokers.lines.sink import JsonLinesSink
from relaybox.testing.sink_contract import Received, SinkHarness


class JsonLinesHarness(SinkHarness):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.jsonl"

    def sink(self, **options: Any) -> JsonLinesSink:
        return JsonLinesSink(path=self.path, **options)

    async def destination(self) -> str:
        return "orders"

    async def read(self, destination: str, count: int, timeout: float = 20) -> list[Received]:
        return [received(line) for line in self.path.read_bytes().splitlines()]

    async def outage(self) -> None:
        limit_file_size(0)

    async def recovery(self) -> None:
        limit_file_size(resource.RLIM_INFINITY)


def limit_file_size(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def received(line: bytes) -> Received:
    value = json.loads(line)
    body = base64.b64decode(value["data_base64"]) if "data_base64" in value else exact(line, value)
    return Received(value["id"], value["key"], body, value["content_type"], value["attributes"])


def exact(line: bytes, value: dict[str, Any]) -> bytes:
    """The bytes of `data`, which is last: what follows the other members."""
    head = {name: member for name, member in value.items() if name != "data"}
    start = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()[:-1] + b',"data":'
    assert line.startswith(start)
    return line.removeprefix(start).removesuffix(b"}")
