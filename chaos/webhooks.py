"""python -m chaos.webhooks: slow endpoints and dead ones, beside one honest tenant whose events must not wait for them.

First the honest tenant alone, then with five endpoints that answer after 9 s and twenty that never do, 500 events each.
The relay is a process of its own, as `relaybox relay` starts it; so are the endpoints. Judged:

    p95          of the honest tenant, from the commit to the request: less than twice what it is alone
    lost         honest events that never came
    inversions   keys of any endpoint whose first copies are not in the order of their numbers
    twice        second copies of events that were answered in time
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TextIO

from relaybox import AsyncOutbox, Event
from relaybox.brokers.webhook import new_secret
from relaybox.testing.servers import PostgresServer
from relaybox.testing.servers.process import free_port

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "chaos" / "results" / "webhooks.jsonl"
HONEST = "honest"
LATE = 30.0  # seconds after the last honest event within which all must have come


@dataclass(frozen=True)
class Options:
    slow: int = 5  # endpoints that answer after `answer` seconds
    dead: int = 20  # endpoints that never do
    events: int = 500  # of each of them
    keys: int = 50  # of each tenant
    answer: float = 9.0
    seconds: float = 60.0  # of honest events, alone and beside the others
    pause: float = 0.25  # between two honest events


# -- the endpoints, as a process ------------------------------------------------------------------------


async def serve(port: int, names: list[str], answer: float, file: TextIO) -> None:
    """Each at an address of its own, for relays bound what they send to a host."""

    async def connected(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
                line = [name, *json.loads(await reader.readexactly(length)), time.time()]
                file.write(json.dumps(line) + "\n")
                if name.startswith("dead"):
                    await asyncio.Event().wait()
                if name.startswith("slow"):
                    await asyncio.sleep(answer)
                writer.write(b"HTTP/1.1 204 Fine\r\n\r\n")
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()

    for number, name in enumerate(names):
        await asyncio.start_server(
            lambda reader, writer, name=name: connected(name, reader, writer), address(number), port
        )
    print("ready", flush=True)
    while True:
        file.flush()
        await asyncio.sleep(0.1)


def address(number: int) -> str:
    return f"127.0.2.{number + 1}"


# -- the trial -----------------------------------------------------------------------------------------


async def trial(options: Options, folder: Path, url: str) -> dict[str, Any]:
    names = [HONEST, *(f"slow{n}" for n in range(options.slow)), *(f"dead{n}" for n in range(options.dead))]
    port, seen = free_port(), folder / "seen.jsonl"
    (folder / "relaybox.toml").write_text(configuration(names, port))
    async with AsyncOutbox(url) as outbox:
        await outbox.migrate()
        endpoints = start("-m", "chaos.webhooks", "--serve", json.dumps([port, names, options.answer, str(seen)]))
        relay = None
        try:
            assert endpoints.stdout is not None
            assert endpoints.stdout.readline().strip() == b"ready"
            relay = start(
                "-m", "relaybox", "--config", str(folder / "relaybox.toml"), "--url", url, "relay", "--to", "{tenant}"
            )
            warm = await write_honest(outbox, options, 0, 3.0)
            await arrived(seen, warm)
            alone = await write_honest(outbox, options, warm, options.seconds)
            await arrived(seen, alone)
            for name in names[1:]:
                async with outbox.transaction() as tx:
                    await outbox.write_all(tx, [event(name, n, options) for n in range(options.events)])
            beside = await write_honest(outbox, options, alone, options.seconds)
            lost = beside - await arrived(seen, beside)
        finally:
            for process in (relay, endpoints):
                if process is not None:
                    process.terminate()
                    process.wait(20)
    return judged(seen, warm, alone, lost, options)


def start(*command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def configuration(names: list[str], port: int) -> str:
    lines = ["[relaybox.sink]", 'url = "webhook://"', "insecure_http = true", f"ports = [{port}]"]
    lines += ['allow_networks = ["127.0.0.0/8"]']
    for number, name in enumerate(names):
        lines += [f"[relaybox.sink.endpoints.{name}]", f'url = "http://{address(number)}:{port}/in"']
        lines += [f'secrets = ["{new_secret()}"]']
    return "\n".join(lines) + "\n"


def event(name: str, number: int, options: Options) -> Event:
    key = f"{name}-{number % options.keys}"
    return Event("Trial", [number, key, time.time()], key=key, tenant=name)


async def write_honest(outbox: AsyncOutbox, options: Options, first: int, seconds: float) -> int:
    """The number of the next one."""
    end, number = time.monotonic() + seconds, first
    while time.monotonic() < end:
        async with outbox.transaction() as tx:
            await outbox.write(tx, event(HONEST, number, options))
        number += 1
        await asyncio.sleep(options.pause)
    return number


async def arrived(seen: Path, wanted: int) -> int:
    """How many honest events did, once all did or it took too long."""
    end = time.monotonic() + LATE
    while True:
        found = len({line[1] for line in read(seen) if line[0] == HONEST})
        if found >= wanted or time.monotonic() > end:
            return found
        await asyncio.sleep(0.2)


def read(seen: Path) -> list[list[Any]]:
    text = seen.read_text() if seen.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("]")]


def judged(seen: Path, warm: int, alone: int, lost: int, options: Options) -> dict[str, Any]:
    copies: dict[tuple[str, str], list[int]] = defaultdict(list)
    took: dict[int, float] = {}
    requests: dict[str, int] = defaultdict(int)
    twice = 0
    for name, number, key, written, at in read(seen):
        numbers = copies[name, key]
        requests[name.rstrip("0123456789")] += 1
        if number in numbers:
            twice += not name.startswith("dead")
            continue
        numbers.append(number)
        if name == HONEST:
            took[number] = at - written
    before = sorted(value for number, value in took.items() if warm <= number < alone)
    after = sorted(value for number, value in took.items() if number >= alone)
    inversions = sum(numbers != sorted(numbers) for numbers in copies.values())
    report = {
        "alone_p95_ms": round(percentile(before) * 1000, 1),
        "beside_p95_ms": round(percentile(after) * 1000, 1),
        "beside_p95_ms_by_10_s": over_time(took, alone, options),
        "events": [len(before), len(after)],
        "requests": dict(requests),
        "lost": lost,
        "inversions": inversions,
        "twice": twice,
    }
    fine = report["beside_p95_ms"] < 2 * report["alone_p95_ms"]  # type: ignore[operator]
    return report | {"verdict": "PASS" if fine and not (lost or inversions or twice) else "FAIL"}


def over_time(took: dict[int, float], first: int, options: Options) -> list[float]:
    """Where the time goes: at once, when the others come, or all along. The verdict is about the whole."""
    each = max(int(10 / options.pause), 1)
    numbers = sorted(number for number in took if number >= first)
    parts = [numbers[at : at + each] for at in range(0, len(numbers), each)]
    return [round(percentile(sorted(took[number] for number in part)) * 1000, 1) for part in parts]


def percentile(values: list[float], share: float = 0.95) -> float:
    return values[min(int(len(values) * share), len(values) - 1)] if values else float("inf")


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.webhooks", description=__doc__)
    for field in fields(Options):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = vars(parser.parse_args())
    if (told := given.pop("serve")) is not None:
        port, names, answer, path = json.loads(told)
        with open(path, "a") as file:
            asyncio.run(serve(port, names, answer, file))
    options, folder = Options(**given), Path(tempfile.mkdtemp(prefix="relaybox-webhooks-"))
    print(f"webhooks: {options}")
    started = time.time()
    with PostgresServer.from_wheel(durable=True) as server:
        report = asyncio.run(trial(options, folder, server.create_database()))
    print("  " + ", ".join(f"{name} {value}" for name, value in report.items()))
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as results:
        line = {"at": time.strftime("%FT%TZ", time.gmtime(started)), "took": round(time.time() - started, 1)}
        results.write(json.dumps({**line, **asdict(options), **report}) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    return 0 if report["verdict"] == "PASS" else 1


if __name__ == "__main__":
    sys.exit(main())
