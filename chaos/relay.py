"""python -m chaos.relay --broker kafka: relays, killed at random, and a broker that is killed and comes back.

Writers commit events of many keys, some transactions roll back. Relay processes move them to a real broker while they
are killed (-9) and paused beyond their leases, and the broker is killed and restarted. Then everything is read back
with another client library, and judged:

    lost         committed and never at the broker
    ghosts       at the broker and never committed
    inversions   a key whose first copies are not in the order of their numbers
    twice        behind the broker's own deduplication, where it has one; behind a guard
    duplicates   without deduplication; allowed only when something was broken, at most what was in flight
    died         dead letters: with --max-attempts 1 an outage that counts as an attempt shows here
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from relaybox import Event, Outbox
from relaybox.guard import Guard
from relaybox.testing.servers import PostgresServer
from relaybox.testing.sink_contract import Received

from .brokers import BROKERS, Broker, broker

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "chaos" / "results" / "relay.jsonl"
DRAIN = 600.0  # seconds until everything must have gone out, and until it is read
PACE = {"sqs": 110, "sns": 110}  # events a second: moto gets slower with every message that waits to be read
TTL = 2.0  # instance_ttl of the relays
IN_FLIGHT = 4 * 100  # workers times messages of one publish


@dataclass(frozen=True)
class Options:
    broker: str = "kafka"
    events: int = 50_000
    keys: int = 5_000
    relays: int = 3
    seconds: float = 40.0  # over which the events are written and things break
    kills: int = 15
    pauses: int = 2
    outages: int = 3
    outage_seconds: float = 3.0
    max_attempts: int = 25
    strategy: str = "shards"
    seed: int = 0

    @property
    def faultless(self) -> bool:
        return not (self.kills or self.pauses or self.outages)


class RelayProcess:
    def __init__(self, number: int, command: list[str], folder: Path) -> None:
        self.command = command
        self.log = folder / f"relay-{number}.log"
        self.start()

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RELAYBOX_")}
        with self.log.open("ab") as log:
            self._begins = log.tell()
            self.process = subprocess.Popen(self.command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def stop(self) -> int:
        """Once it runs: before that a signal just ends it."""
        while self.process.poll() is None and b"relaybox runs relay" not in self.log.read_bytes()[self._begins :]:
            time.sleep(0.05)
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


class Trial:
    def __init__(self, options: Options, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self._random = random.Random(options.seed)
        self._committed: dict[str, tuple[int, int]] = {}  # event id: key and number
        self._problems: list[str] = []
        self._over = threading.Event()

    def run(self) -> dict[str, Any]:
        with PostgresServer.from_wheel(durable=True) as server, broker(self.options.broker, self.folder) as made:
            url = server.create_database()
            with Outbox(url) as box:
                box.migrate()
            destination = asyncio.run(made.harness.destination())
            relays = [
                RelayProcess(n, self._command(url, made, destination), self.folder) for n in range(self.options.relays)
            ]
            try:
                writer = threading.Thread(target=self._guarded, args=(lambda: self._write(url),))
                writer.start()
                read = partial(self._guarded, lambda: self._read(made, destination))
                # One: of two at once moto gives one a message and the other the next of its group.
                reader = threading.Thread(target=read)
                if made.drained:
                    reader.start()
                self._storm(relays, made)
                writer.join()
                drained = self._drain(url)
                self._over.set()
                status = [relay.stop() for relay in relays]
            finally:
                for relay in relays:
                    relay.kill()
            if any(status):
                self._problems.append(f"relays ended with {status}")
            if made.drained:
                reader.join()
            with Outbox(url) as box:
                dead = box.status().dead
            there = len(self._committed) if drained < math.inf else 0  # at least
            received = asyncio.run(made.harness.read(destination, there, DRAIN))
            dedup = made.harness.sink().features.dedup and not made.drained  # moto forgets what was read
            return self._judge(received, dead, drained, dedup)

    def _command(self, url: str, made: Broker, destination: str) -> list[str]:
        options = self.options
        settings = {
            "delivery.instance_ttl": f"{TTL}s",
            "delivery.lease": f"{TTL * 3}s",
            "delivery.workers": made.workers,
            "order.on_exhausted": "skip",
            "order.strategy": options.strategy,
        }
        relay = {"retry.attempts": options.max_attempts, "retry.max": "1s", "batch": made.batch or IN_FLIGHT // 4}
        tables = {
            "relaybox": {"url": url, **settings},
            "relaybox.relay": {"to": destination, **relay},
            "relaybox.sink": {"url": made.url, **made.options},
        }
        config = self.folder / "relay.toml"
        config.write_text("".join(toml_table(name, values) for name, values in tables.items()))
        return [sys.executable, "-m", "relaybox", "relay", "--config", str(config)]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._problems.append(repr(error))

    def _write(self, url: str) -> None:
        """Numbers count up per key; one transaction in ten rolls back, and its numbers are used again."""
        options, rng = self.options, random.Random(self.options.seed + 1)
        numbers: Counter[int] = Counter()
        started = time.monotonic()
        with Outbox(url) as box:
            while len(self._committed) < options.events:
                size = min(rng.randint(1, 40), options.events - len(self._committed))
                made: dict[str, tuple[int, int]] = {}
                events = []
                ahead: Counter[int] = Counter()
                for _ in range(size):
                    key = rng.randrange(options.keys)
                    ahead[key] += 1
                    event = Event("Counted", {"n": numbers[key] + ahead[key]}, key=f"key-{key}")
                    made[event.id] = (key, numbers[key] + ahead[key])
                    events.append(event)
                rolled_back = rng.random() < 0.1
                try:
                    with box.transaction() as tx:
                        box.write_all(tx, events)
                        if rolled_back:
                            raise _RollBack
                except _RollBack:
                    continue
                numbers += ahead
                self._committed |= made
                behind = started + options.seconds * len(self._committed) / options.events - time.monotonic()
                if behind > 0:
                    time.sleep(behind)

    def _read(self, made: Broker, destination: str) -> None:
        """Until there is nothing more, again and again; what was read is kept by the harness."""
        while not self._over.wait(0.05):
            asyncio.run(made.harness.read(destination, 0, self.options.seconds + DRAIN))

    # -- breaking things ----------------------------------------------------------------------------

    def _storm(self, relays: list[RelayProcess], made: Broker) -> None:
        options, rng, started = self.options, self._random, time.monotonic()
        moments: list[tuple[float, Callable[[], None]]] = []
        for count, strike in (
            (options.kills, lambda: rng.choice(relays).restart()),
            (options.pauses, lambda: self._pause(rng.choice(relays))),
            (options.outages, lambda: asyncio.run(self._outage(made))),
        ):
            for number in range(count):
                at = options.seconds * (number + rng.random()) / max(count, 1)
                moments.append((started + 1.5 + at, strike))
        for at, strike in sorted(moments, key=lambda moment: moment[0]):
            time.sleep(max(0.0, at - time.monotonic()))
            strike()

    def _pause(self, relay: RelayProcess) -> None:
        """Longer than its leases: it wakes up with events that another has by now."""
        relay.process.send_signal(signal.SIGSTOP)
        timer = threading.Timer(
            TTL * 4, lambda: relay.process.poll() is None and relay.process.send_signal(signal.SIGCONT)
        )
        timer.daemon = True
        timer.start()

    async def _outage(self, made: Broker) -> None:
        await made.harness.outage()
        await asyncio.sleep(self.options.outage_seconds)
        await made.harness.recovery()

    def _drain(self, url: str) -> float:
        started = time.monotonic()
        with Outbox(url) as box:
            while time.monotonic() - started < DRAIN:
                status = box.status()
                if not (status.due or status.claimed or status.delayed):
                    return time.monotonic() - started
                time.sleep(0.1)
        self._problems.append(f"not drained after {DRAIN:g} s: {status}")
        return float("inf")

    # -- judging ------------------------------------------------------------------------------------

    def _judge(self, received: list[Received], dead: int, drained: float, dedup: bool) -> dict[str, Any]:
        options = self.options
        copies = Counter(message.id for message in received)
        seen: dict[str, int] = {}
        inversions = 0
        first: set[str] = set()
        for message in received:
            if message.id in first or message.id not in self._committed:
                continue
            first.add(message.id)
            key, number = self._committed[message.id]
            inversions += number <= seen.get(str(key), 0)
            seen[str(key)] = max(number, seen.get(str(key), 0))
        duplicates = sum(copies.values()) - len(copies)
        faults = options.kills + options.pauses + options.outages * options.relays
        report: dict[str, Any] = {
            "events": len(self._committed),
            "received": len(received),
            "lost": len(self._committed.keys() - copies.keys()) - dead,
            "ghosts": len(copies.keys() - self._committed.keys()),
            "inversions": inversions,
            "duplicates": duplicates,
            "twice": duplicates if dedup else self._behind_a_guard(received) - len(copies),
            "dedup": "broker" if dedup else "guard",
            "died": dead,
            "drained_after": round(drained, 1),
            "problems": self._problems,
        }
        bad = [name for name in ("lost", "ghosts", "inversions", "twice", "died") if report[name]]
        if duplicates > faults * IN_FLIGHT:
            bad.append("duplicates")
        report["verdict"] = "FAIL: " + ", ".join(bad + self._problems) if bad or self._problems else "PASS"
        return report

    def _behind_a_guard(self, received: list[Received]) -> int:
        """Effects in a consumer's own database, marked in the same transaction."""
        effects = 0
        with Guard.sql(f"sqlite:///{self.folder}/consumer.db", consumer="trial") as guard:
            guard.migrate()
            with Outbox(f"sqlite:///{self.folder}/consumer.db") as box, box.transaction() as tx:
                for message in received:
                    effects += guard.mark(tx, message.id)
        return effects


class _RollBack(Exception):
    pass


def toml_table(name: str, values: dict[str, Any]) -> str:
    """As TOML: what JSON writes for text, numbers, lists and booleans is TOML too."""
    return f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def parse(arguments: list[str] | None = None) -> tuple[Options, bool]:
    parser = argparse.ArgumentParser(
        prog="chaos.relay", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for field in fields(Options):
        name = "--" + field.name.replace("_", "-")
        if field.name == "broker":
            parser.add_argument(name, choices=[*sorted(BROKERS), "all"], default=field.default)
        elif field.name == "strategy":
            parser.add_argument(name, choices=("shards", "advisory", "rows"), default=field.default)
        elif field.name == "seed":
            parser.add_argument(name, type=int, default=secrets.randbelow(1_000_000))
        else:
            parser.add_argument(name, type=type(field.default), default=field.default)
    parser.add_argument("--control", action="store_true", help="nothing is broken: not one duplicate is allowed")
    parser.add_argument(
        "--outage", action="store_true", help="one outage of a minute, and the first attempt is the last"
    )
    parser.add_argument("--keep", action="store_true", help="keep the logs of a trial that passed")
    given = vars(parser.parse_args(arguments))
    keep, control, outage = given.pop("keep"), given.pop("control"), given.pop("outage")
    if control:
        given |= {"kills": 0, "pauses": 0, "outages": 0}
    if outage:
        given |= {"kills": 0, "pauses": 0, "outages": 1, "outage_seconds": 60.0, "max_attempts": 1, "seconds": 30.0}
    given["seconds"] = max(given["seconds"], given["events"] / PACE.get(given["broker"], math.inf))
    return Options(**given), keep


def every_broker(arguments: list[str]) -> int:
    """One process each; the results tell which have passed."""
    given = [a for a in arguments if a not in ("--broker", "all", "--broker=all")]
    command = [sys.executable, "-m", "chaos.relay", *given, "--broker"]
    return max(subprocess.run([*command, name], cwd=ROOT, check=False).returncode for name in sorted(BROKERS))


def main() -> int:
    options, keep = parse()
    if options.broker == "all":
        return every_broker(sys.argv[1:])
    folder = Path(tempfile.mkdtemp(prefix="relaybox-relay-"))
    print(f"chaos.relay: {options}\n  logs in {folder}", flush=True)
    started = time.time()
    report = Trial(options, folder).run()
    print(json.dumps(report, indent=2))
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        line = {"at": time.strftime("%FT%TZ", time.gmtime(started)), "took": round(time.time() - started, 1)}
        file.write(json.dumps({**line, **asdict(options), **report}) + "\n")
    passed = report["verdict"] == "PASS"
    if passed and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
