"""Per-key order in a group over several processes that are killed, frozen and restarted:

    python -m chaos.groups --events 200000 --kills 200 --freezes 20 --members 3

Every process notes when a handler begins and ends. For each key: every event was handled, and none began before the one
before it had been handled by somebody. Without faults, none came twice.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import psycopg

from relaybox import AsyncOutbox, Event, Listeners, Outbox, Retry, Settings, StartFrom
from relaybox.testing.servers import require
from relaybox.topic import Topic
from relaybox.types import DeliverySettings

ROOT = Path(__file__).parent.parent
TOPIC = "storm"
TTL = 0.5  # where processes die
CALM_TTL = 30.0  # where none does, a machine that is busy must not look like a death
PATIENCE = 120.0


@dataclass
class Options:
    events: int = 20_000
    keys: int = 50
    members: int = 3
    kills: int = 20
    freezes: int = 4
    failures: float = 0.002  # how often a handler raises
    batch: int = 0  # handlers take lists of so many
    seed: int = 1


@dataclass
class Report:
    events: int = 0
    lost: list[str] = field(default_factory=list)
    inversions: list[str] = field(default_factory=list)
    twice: int = 0
    kills: int = 0
    freezes: int = 0
    failed: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.lost and not self.inversions and (self.kills + self.freezes > 0 or not self.twice)


# -- a member ---------------------------------------------------------------------------------------------------------


async def member(url: str, file: Path, seed: int, failures: float, batch: int, ttl: float) -> None:
    chance = random.Random(seed)
    log = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    def note(word: str, event: Event) -> None:
        os.write(log, f"{word} {time.monotonic_ns()} {event.key} {event.payload}\n".encode())

    async def handle(event: Event) -> None:
        note("begin", event)
        if chance.random() < 0.05:
            await asyncio.sleep(chance.random() * 0.01)
        if chance.random() < failures:
            note("failed", event)
            raise ValueError("by chance")
        note("end", event)

    async def handle_all(events: Sequence[Event]) -> None:
        for event in events:
            await handle(event)

    settings = Settings(
        delivery=DeliverySettings(
            instance_ttl=timedelta(seconds=ttl),
            lease=timedelta(seconds=2 * ttl),
            retry=Retry(attempts=1000, base="5ms", max="50ms"),
            stop_timeout="2s",
            workers=8,
        )
    )
    box = AsyncOutbox(url, settings=settings)
    batches: Listeners = Listeners()
    batches.on_batch("Counted", size=batch or 1)(handle_all)
    async with box.topics.group(TOPIC, "g", start=StartFrom.earliest()).deliver(batches if batch else handle):
        await stop.wait()
    await box.close()


# -- the trial --------------------------------------------------------------------------------------------------------


class Storm:
    def __init__(self, options: Options, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.url = require("postgres-wheel", durable=False).create_database()
        self._chance = random.Random(options.seed)
        self._members: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self._numbers: dict[int, int] = {}  # of the file of each process
        self._report = Report(events=options.events)
        self._frozen: list[tuple[float, subprocess.Popen[bytes]]] = []

    def run(self) -> Report:
        began = time.monotonic()
        with Outbox(self.url) as box:
            box.migrate()
            box.topics.configure(Topic.pub_sub(TOPIC, shards=8))
            self._members = [self._start() for _ in range(self.options.members)]
            try:
                self._wait_for_members()
                writers = [threading.Thread(target=self._write, args=(box, part)) for part in range(2)]
                for writer in writers:
                    writer.start()
                self._break(writers)
                for writer in writers:
                    writer.join()
                self._calm()
            finally:
                for process in self._members:
                    process.kill()
                    process.wait()
        self._judge()
        self._report.seconds = round(time.monotonic() - began, 1)
        return self._report

    def _start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        options, number = self.options, self._started
        arguments = [self.url, str(self.folder / f"{number}.txt"), str(options.seed * 1000 + number)]
        arguments += [
            str(options.failures),
            str(options.batch),
            str(TTL if options.kills + options.freezes else CALM_TTL),
        ]
        with (self.folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "chaos.groups", "member", *arguments],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        self._numbers[process.pid] = number
        return process

    def _wait_for_members(self) -> None:
        """The group exists, so that nothing is written before somebody is subscribed."""
        with psycopg.connect(self.url, autocommit=True) as look:
            self._until(lambda: look.execute("SELECT count(*) FROM outbox_event_member").fetchone() > (0,))

    def _write(self, box: Outbox, part: int) -> None:
        """Every key has one writer, so the order of its numbers is the order of its commits."""
        chance = random.Random(self.options.seed * 10 + part)
        keys = [key for key in range(self.options.keys) if key % 2 == part]
        numbers = Counter[int]()
        left = self.options.events // 2
        producer = box.topics.producer(TOPIC)
        with psycopg.connect(self.url) as connection:
            while left > 0:
                count, before = min(left, chance.randint(1, 20)), numbers.copy()
                for _ in range(count):
                    key = chance.choice(keys)
                    numbers[key] += 1
                    producer.send(connection, numbers[key], key=f"k{key}", type="Counted")
                if chance.random() < 0.01:
                    time.sleep(0.2)
                if chance.random() < 0.03:
                    connection.rollback()
                    numbers = before
                else:
                    connection.commit()
                    left -= count
        with (self.folder / f"truth-{part}.json").open("w") as file:
            json.dump({f"k{key}": numbers[key] for key in keys}, file)

    def _break(self, writers: list[threading.Thread]) -> None:
        """Kill and freeze as long as events are written, as often as was asked for."""
        todo = ["kill"] * self.options.kills + ["freeze"] * self.options.freezes
        self._chance.shuffle(todo)
        while todo or any(writer.is_alive() for writer in writers) or self._frozen:
            self._thaw()
            if todo:
                victim = self._chance.randrange(len(self._members))
                process = self._members[victim]
                if self._at_work(process) and process not in [frozen for _, frozen in self._frozen]:
                    self._hurt(victim, todo.pop())
            time.sleep(self._chance.uniform(0.05, 0.4))

    def _at_work(self, process: subprocess.Popen[bytes]) -> bool:
        return (self.folder / f"{self._numbers[process.pid]}.txt").exists()

    def _hurt(self, victim: int, how: str) -> None:
        process = self._members[victim]
        if how == "kill":
            process.kill()
            process.wait()
            self._members[victim] = self._start()
            self._report.kills += 1
        else:
            process.send_signal(signal.SIGSTOP)
            self._frozen.append((time.monotonic() + TTL * self._chance.uniform(1.5, 5), process))
            self._report.freezes += 1

    def _thaw(self) -> None:
        for entry in list(self._frozen):
            if entry[0] < time.monotonic():
                entry[1].send_signal(signal.SIGCONT)
                self._frozen.remove(entry)

    def _calm(self) -> None:
        """Until nobody holds anything and everything was handled, then a graceful stop."""
        self._until(lambda: self._finished() >= self.options.events // 2 * 2)
        for process in self._members:
            process.send_signal(signal.SIGTERM)
        for process in self._members:
            process.wait(30)

    def _until(self, condition: object) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():  # type: ignore[operator]
            if time.monotonic() > deadline:
                return
            time.sleep(0.2)

    def _notes(self) -> list[tuple[int, str, str, int]]:
        notes = []
        for file in self.folder.glob("[0-9]*.txt"):
            for line in file.read_text().splitlines():
                parts = line.split()
                if len(parts) == 4:
                    notes.append((int(parts[1]), parts[0], parts[2], int(parts[3])))
        return sorted(notes)

    def _finished(self) -> int:
        return len({(key, number) for _, word, key, number in self._notes() if word == "end"})

    def _judge(self) -> None:
        report = self._report
        truth: dict[str, int] = {}
        for file in self.folder.glob("truth-*.json"):
            truth |= json.loads(file.read_text())
        assert sum(truth.values()) == self.options.events // 2 * 2, "a writer failed"
        ended: set[tuple[str, int]] = set()
        ends = Counter[tuple[str, int]]()
        for at, word, key, number in self._notes():
            if word == "begin" and number > 1 and (key, number - 1) not in ended:
                report.inversions.append(f"{key}: {number} began before {number - 1} was handled, at {at}")
            elif word == "end":
                ended.add((key, number))
                ends[key, number] += 1
            elif word == "failed":
                report.failed += 1
        report.lost = [
            f"{key}: {n}" for key, last in truth.items() for n in range(1, last + 1) if (key, n) not in ended
        ]
        report.twice = sum(ends.values()) - len(ends)


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    if sys.argv[1:2] == ["member"]:
        url, file, seed, failures, batch, ttl = sys.argv[2:]
        asyncio.run(member(url, Path(file), int(seed), float(failures), int(batch), float(ttl)))
        return 0
    parser = argparse.ArgumentParser(prog="chaos.groups", description=__doc__)
    for name, default in vars(Options()).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    folder = Path(tempfile.mkdtemp(prefix="relaybox-groups-"))
    report = Storm(Options(**vars(parser.parse_args())), folder).run()
    print(f"{report.events} events, {report.kills} kills, {report.freezes} freezes in {report.seconds} s ({folder})")
    print(f"lost {len(report.lost)}, inversions {len(report.inversions)}, twice {report.twice}, failed {report.failed}")
    for line in (report.lost + report.inversions)[:10]:
        print(f"  {line}")
    print("PASS" if report.passed else "FAIL")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
