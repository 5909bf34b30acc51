"""JSON lines: the sink contract, the format of a line, and what only files and pipes do."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from json_lines_harness import JsonLinesHarness, limit_file_size, received

from relaybox import Event
from relaybox.brokers.formats import MessageFormat, renderer
from relaybox.brokers.lines.sink import JsonLinesSink, line
from relaybox.errors import BrokerUnavailable, ConfigError
from relaybox.testing.sink_contract import SinkContract, arrived, messages, publish

UNLIMITED = -1


@pytest.fixture
def harness(tmp_path: Path) -> JsonLinesHarness:
    return JsonLinesHarness(tmp_path)


class TestJsonLines(SinkContract):
    pass


@pytest.fixture
async def sink(harness: JsonLinesHarness) -> AsyncIterator[JsonLinesSink]:
    made = harness.sink()
    await made.open()
    yield made
    await made.close()


# -- The line ---------------------------------------------------------------------------------------


def rendered(form: MessageFormat, body: bytes, content_type: str = "application/json") -> dict[str, Any]:
    event = Event(
        "OrderPlaced",
        payload_bytes=body,
        content_type=content_type,
        key="order-7",
        id="0192-7",
        aggregate_type="order",
        occurred_at=datetime(2031, 5, 4, 3, 2, 1, tzinfo=UTC),
        headers={"data": 'a "quoted" name'},
    )
    text = line(renderer(form, "https://shop.example", JsonLinesSink.features)(event, "orders"))
    assert text.endswith(b"}\n")
    assert text.count(b"\n") == 1
    return json.loads(text)


def test_a_line() -> None:
    assert rendered("plain", b'{"total": 12.50}') == {
        "id": "0192-7",
        "type": "OrderPlaced",
        "key": "order-7",
        "destination": "orders",
        "time": "2031-05-04T03:02:01Z",
        "content_type": "application/json",
        "attributes": {
            "data": 'a "quoted" name',
            "event_id": "0192-7",
            "event_type": "OrderPlaced",
            "aggregate_type": "order",
            "aggregate_id": "order-7",
            "created_at": "2031-05-04T03:02:01Z",
        },
        "data": {"total": 12.5},
    }


def test_a_structured_cloud_event_is_data() -> None:
    envelope = rendered("cloudevents-structured", b'{"total": 12.50}')["data"]
    assert envelope["specversion"] == "1.0"
    assert envelope["data"] == {"total": 12.5}


UNFIT = {
    "empty": b"",
    "pretty": b'{\n  "total": 12.50\n}',
    "carriage return": b"[1,\r2]",
    "NaN": b"[NaN]",
    "Infinity": b"Infinity",
    "cut": b"{",
    "Latin-1": b'"\xff"',
    "byte order mark": b"\xef\xbb\xbf{}",
}


@pytest.mark.parametrize("body", UNFIT.values(), ids=UNFIT.keys())
def test_what_cannot_stand_in_a_line(body: bytes) -> None:
    value = rendered("plain", body)
    assert "data" not in value
    assert base64.b64decode(value["data_base64"]) == body


@pytest.mark.parametrize(
    ("content_type", "name"),
    [
        ("application/json; charset=utf-8", "data"),
        ("application/vnd.shop+json", "data"),
        ("application/jsonl", "data_base64"),
        ("text/plain", "data_base64"),
    ],
)
def test_only_json_is_data(content_type: str, name: str) -> None:
    assert name in rendered("plain", b"7", content_type)


# -- Files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("removed", [False, True])
async def test_rotation(harness: JsonLinesHarness, sink: JsonLinesSink, tmp_path: Path, removed: bool) -> None:
    before, after = messages(sink, "orders", ["a", "b"]), messages(sink, "orders", ["a"], first=2)
    assert await publish(sink, before) == [None, None]
    old = harness.path.rename(tmp_path / "events.1.jsonl")
    if removed:
        old.unlink()
    assert await publish(sink, after) == [None]
    assert [received(text).id for text in harness.path.read_bytes().splitlines()] == [after[0].id]
    if not removed:
        assert len(old.read_bytes().splitlines()) == 2


@pytest.mark.parametrize("whole_lines", [0, 2])
@pytest.mark.parametrize("torn", [b"{", b'{"id":"x","data":"' + b"y" * 200_000])
async def test_what_a_killed_process_left(harness: JsonLinesHarness, whole_lines: int, torn: bytes) -> None:
    sink = harness.sink()
    old = messages(sink, "orders", ["a"] * whole_lines)
    harness.path.write_bytes(b"".join(map(line, old)) + torn)
    await sink.open()
    new = messages(sink, "orders", ["a"], first=2)
    assert await publish(sink, new) == [None]
    await sink.close()
    await arrived(harness, "orders", old + new)


async def test_a_batch_that_does_not_fit_is_taken_back(harness: JsonLinesHarness, sink: JsonLinesSink) -> None:
    before, during = messages(sink, "orders", ["a", "b"]), messages(sink, "orders", ["a", "a", "b"], first=2)
    assert await publish(sink, before) == [None, None]
    size = harness.path.stat().st_size
    limit_file_size(size + len(line(during[0])) + 20)
    try:
        answers = await publish(sink, during)
    finally:
        limit_file_size(UNLIMITED)
    assert [type(answer) for answer in answers] == [BrokerUnavailable] * 3
    assert "File too large" in str(answers[0])
    assert harness.path.stat().st_size == size
    assert await publish(sink, during) == [None] * 3
    await arrived(harness, "orders", before + during)


async def test_a_full_disk(harness: JsonLinesHarness, sink: JsonLinesSink, tmp_path: Path) -> None:
    sent = messages(sink, "orders", ["a"])
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    real = harness.path.rename(tmp_path / "real.jsonl")
    full.rename(harness.path)
    [answer] = await publish(sink, sent)
    assert isinstance(answer, BrokerUnavailable)
    assert "No space left on device" in str(answer)
    real.rename(harness.path)
    assert await publish(sink, sent) == [None]
    await arrived(harness, "orders", sent)


async def test_the_disk_has_it(harness: JsonLinesHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_size), fsync(file)))
    for wanted in (True, False):
        sink = harness.sink(fsync=wanted)
        await sink.open()
        synced.clear()
        assert await publish(sink, messages(sink, "orders", ["a"])) == [None]
        assert synced == ([harness.path.stat().st_size] if wanted else [])
        await sink.close()


@pytest.mark.parametrize("content", [b"#!/bin/sh\n", b"\x7fELF"])
async def test_a_file_that_is_not_ours(harness: JsonLinesHarness, content: bytes) -> None:
    harness.path.write_bytes(content)
    sink = harness.sink()
    with pytest.raises(ConfigError, match="is not a file of JSON lines"):
        await sink.open()
    await sink.close()
    assert harness.path.read_bytes() == content


@pytest.mark.parametrize("path", ["", "missing/events.jsonl"])
async def test_a_path_that_is_no_file(tmp_path: Path, path: str) -> None:
    sink = JsonLinesSink(path=tmp_path / path)
    with pytest.raises(ConfigError, match="expected a file we may write"):
        await sink.open()
    await sink.close()


# -- Other processes --------------------------------------------------------------------------------

WRITER = """
import asyncio, sys
from relaybox.brokers.lines.sink import JsonLinesSink
from relaybox.testing.sink_contract import messages

async def main():
    sink = JsonLinesSink(path=sys.argv[1] if sys.argv[1] != "-" else None, fsync=False)
    await sink.open()
    for number in range(int(sys.argv[2])):
        batch = messages(sink, "orders", [f"{sys.argv[3]}-{n}" for n in range(20)], first=20 * number)
        await sink.publish(batch)
        print("".join(f"{message.id}\\n" for message in batch), end="", file=sys.stderr, flush=True)
    await sink.close()

asyncio.run(main())
"""


async def writer(path: str | Path, batches: int, name: str, stdout: Any = None) -> asyncio.subprocess.Process:
    """Another process that writes, and says on its stderr what was accepted."""
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(path), str(batches), name, stdout=stdout, stderr=asyncio.subprocess.PIPE
    )


async def test_two_processes_share_a_file(harness: JsonLinesHarness) -> None:
    writers = [await writer(harness.path, 50, name) for name in "ab"]
    accepted = [(await each.communicate())[1].decode().split() for each in writers]
    found = [each.id for each in await harness.read("orders", 2000)]
    assert sorted(found) == sorted(accepted[0] + accepted[1])
    for ids in accepted:
        assert [each for each in found if each in set(ids)] == ids


async def test_a_process_that_is_killed(harness: JsonLinesHarness) -> None:
    for _ in range(3):
        process = await writer(harness.path, 1_000_000, "a")
        assert process.stderr is not None
        first = await process.stderr.readline()
        process.send_signal(signal.SIGKILL)
        accepted = (first + await process.stderr.read()).decode().splitlines()
        await process.wait()
        sink = harness.sink()
        await sink.open()
        assert await publish(sink, messages(sink, "orders", ["b"])) == [None]
        await sink.close()
        found = [each.id for each in await harness.read("orders", 0)]  # every line is whole
        assert set(accepted) <= set(found)
        assert len(found) == len(set(found))


async def test_standard_output() -> None:
    process = await writer("-", 3, "a", stdout=asyncio.subprocess.PIPE)
    out, accepted = await process.communicate()
    assert [received(text).id for text in out.splitlines()] == accepted.decode().split()


async def test_standard_output_into_a_file(tmp_path: Path) -> None:
    """`>` is not append mode: what other processes write meanwhile must not be overwritten."""
    target = tmp_path / "out"
    with target.open("wb") as file:
        writers = [await writer("-", 20, name, stdout=file) for name in "ab"]
        accepted = [(await each.communicate())[1].decode().split() for each in writers]
    assert sorted(received(text).id for text in target.read_bytes().splitlines()) == sorted(accepted[0] + accepted[1])


async def test_a_pipe_that_nobody_reads(harness: JsonLinesHarness) -> None:
    os.mkfifo(harness.path)
    reader = os.open(harness.path, os.O_RDONLY | os.O_NONBLOCK)
    sink = harness.sink()
    await sink.open()
    sent = messages(sink, "orders", ["a", "b"], b'"%s"' % (b"x" * 100_000))  # more than a pipe holds
    publishing = asyncio.create_task(publish(sink, sent))
    await asyncio.wait([publishing], timeout=0.2)
    with pytest.raises(BrokerUnavailable, match="nobody reads it"):
        await sink.probe()
    os.set_blocking(reader, True)
    text = b""
    while text.count(b"\n") < 2:
        text += await asyncio.to_thread(os.read, reader, 65536)
    assert await publishing == [None, None]
    assert [received(each).id for each in text.splitlines()] == [message.id for message in sent]
    await sink.probe()
    os.close(reader)
    [answer] = await publish(sink, messages(sink, "orders", ["a"]))
    assert isinstance(answer, BrokerUnavailable)
    assert "Broken pipe" in str(answer)
    await sink.close()


# -- Options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("jsonl://-", "stdout"),
        ("jsonl:", "stdout"),
        ("jsonl:///var/log/events.jsonl", "/var/log/events.jsonl"),
        ("jsonl://events.jsonl", "events.jsonl"),
        ("jsonl://events/today.jsonl", "events/today.jsonl"),
        ("jsonl:///tmp/a%20b.jsonl?fsync=no", "/tmp/a b.jsonl"),
    ],
)
def test_urls(url: str, where: str) -> None:
    assert repr(JsonLinesSink.from_url(url, {})) == f"JsonLinesSink({where!r})"


def test_options() -> None:
    assert JsonLinesSink.from_url("jsonl://x?fsync=no", {})._fsync is False
    assert JsonLinesSink.from_url("jsonl://x?fsync=no", {"fsync": "true"})._fsync is True
    with pytest.raises(
        ConfigError, match=r"unknown option 'sync' of JsonLinesSink; did you mean 'fsync'\? known: fsync$"
    ):
        JsonLinesSink.from_url("jsonl://x", {"sync": True})
    with pytest.raises(ConfigError, match="got an empty one"):
        JsonLinesSink(path="")
