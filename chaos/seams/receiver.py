"""A receiving process of a trial:  python -m chaos.seams.receiver SPEC

Its handlers note when they begin and end. Files in the trial's folder tell them how to behave: `slow` (seconds each),
`hog` (hold a transaction of the same outbox so long), `healed` (keys that begin with p do not fail any more).
SIGTERM ends it in order, SIGUSR1 forks it.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import select
import signal
import sys
import threading
import zlib
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from relaybox import AsyncInbox, AsyncOutbox, Event, Inbox, Listeners, Outbox, Reject, StartFrom
from relaybox.errors import RelayboxError, StoreBusy

from .command import look_for_stalls
from .notes import Notes
from .products import (
    BESIDE,
    DATABASE,
    GROUP,
    INBOX,
    MARIADB,
    POSTGRES,
    PRODUCTS,
    SQLITE,
    TOPIC,
    TTL,
    TYPE,
    execute,
    outbox,
    settings,
)
from .writer import make

LITTLE, MUCH = 10, 100  # events per poll
FLAKY = 40  # one message in so many fails once in each process
LEASE = timedelta(seconds=8)
PATIENCE = 3.0  # of a program that polls: its calls have no deadline of their own
HOT_PACE = 0.06


class Receiver:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.folder = Path(spec["folder"])
        self.product = PRODUCTS[spec["product"]]
        self.engine = spec["engine"]
        self.url = spec["url"]
        self.number = int(spec["number"])
        self.notes = Notes(self.folder / f"r{self.number}-{spec['incarnation']}.notes")
        self.group = spec.get("group") or GROUP
        self.stream = self.group if self.product.topic else ""
        self.settings = settings(spec["settings"])
        self.stop = threading.Event()
        self.fork = threading.Event()
        # A large poll may be left behind to small ones.
        self.most = MUCH if self.number % 2 == 0 and spec["incarnation"] == 1 else LITTLE
        self.failed: set[tuple[str, str | None]] = set()
        self.box: Any = None  # the outbox whose pool `hog` takes
        self.loop: asyncio.AbstractEventLoop | None = None

    # -- handlers -----------------------------------------------------------------------------------------------

    def note(self, op: str, event: Event, stream: str | None = None) -> None:
        self.notes.note(op, id=event.id, key=event.key, n=event.payload["n"], stream=stream or self.stream)

    def told(self, name: str) -> float:
        try:
            return float((self.folder / name).read_text() or 0)
        except FileNotFoundError:
            return 0.0

    def slow(self) -> bool:
        return bool(self.told("slow") or self.told("hog"))

    def check(self, event: Event, stream: str | None = None) -> None:
        """Some fail for good until they are mended, some only once."""
        if (event.key or "").startswith("p") and not (self.folder / "healed").exists():
            self.note("failed", event, stream)
            raise Reject("until somebody mends it")
        if zlib.crc32(event.id.encode()) % FLAKY == 0 and (event.id, stream) not in self.failed:
            self.failed.add((event.id, stream))
            self.note("failed", event, stream)
            raise ValueError("by chance")

    def sleep(self, seconds: float) -> None:
        """As time.sleep(), which fails under a faked clock."""
        threading.Event().wait(seconds)

    def handle(self, event: Event) -> None:
        self.note("begin", event)
        self.check(event)
        if slow := self.told("slow"):
            self.sleep(slow)
        if (hog := self.told("hog")) and self.box is not None:
            try:
                with self.box.transaction() as tx:
                    execute(tx.connection, "SELECT 1")
                    self.sleep(hog)
            except Exception:
                self.note("failed", event)  # no connection was free for it
                raise
        self.note("done", event)

    async def ahandle(self, event: Event, stream: str | None = None) -> None:
        self.note("begin", event, stream)
        self.check(event, stream)
        if slow := self.told("slow"):
            await asyncio.sleep(slow)
        if (hog := self.told("hog")) and self.box is not None:
            try:
                async with self.box.transaction():
                    await asyncio.sleep(hog)
            except Exception:
                self.note("failed", event, stream)
                raise
        self.note("done", event, stream)

    def effect(self, event: Event, connection: Any) -> None:
        self.note("begin", event)
        self.check(event)
        if self.engine == MARIADB:
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO seam_effect VALUES (%s)", (event.id,))
        else:
            mark = "?" if self.engine == SQLITE else "%s"
            connection.execute(f"INSERT INTO seam_effect VALUES ({mark})", (event.id,))
        self.sleep(max(self.told("slow"), self.told("hog")))
        self.note("done", event)

    async def aeffect(self, event: Event, connection: Any) -> None:
        self.note("begin", event)
        self.check(event)
        if self.engine == POSTGRES:
            await connection.execute("INSERT INTO seam_effect VALUES ($1)", event.id)
        elif self.engine == SQLITE:
            connection.execute("INSERT INTO seam_effect VALUES (?)", (event.id,))
        else:
            async with connection.cursor() as cursor:
                await cursor.execute("INSERT INTO seam_effect VALUES (%s)", (event.id,))
        await asyncio.sleep(max(self.told("slow"), self.told("hog")))
        self.note("done", event)

    # -- running ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self.stop.set())
        signal.signal(signal.SIGUSR1, lambda *_: self.fork.set())
        self._signals, told = os.pipe()
        os.set_blocking(told, False)
        signal.set_wakeup_fd(told)
        threading.Thread(target=look_for_stalls, args=(self.notes,), daemon=True).start()
        kind = self.product.kind
        if kind == "outbox" and self.number % 2:
            self._sync_outbox()
        elif kind == "pull" and self.number % 2 and not self.spec["silent"]:
            self._sync_pull()
        elif kind in ("inbox", "ingest") and not self.product.asynchronous:
            self._sync_inbox()
        else:
            self._in_a_thread({"outbox": self._async_outbox, "pull": self._async_pull}.get(kind, self._async_rest))

    def _ready(self) -> None:
        self.notes.note("ready")

    def _wait(self) -> None:
        """In the main thread, which alone may fork."""
        self._ready()
        while not self._stopped_within(0.05):
            self._fork_if_told()

    def _stopped_within(self, seconds: float) -> bool:
        """For the main thread, as Event.wait(), which under a faked clock may not return."""
        if select.select([self._signals], [], [], seconds)[0]:
            os.read(self._signals, 16)
        return self.stop.is_set()

    def _fork_if_told(self) -> None:
        if self.fork.is_set():
            self.fork.clear()
            if os.fork() == 0:
                self._child()

    def _child(self) -> None:
        """Uses what it inherited, and leaves without a word to its parent's servers."""
        status = 1
        try:
            self.notes = Notes(self.folder / f"child-{os.getpid()}.notes")
            self.notes.note("forked")
            self._child_writes()
            self.notes.note("left")
            status = 0
        except BaseException as error:
            print(f"child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            self.box = None
            gc.collect()
            os._exit(status)

    def _child_writes(self) -> None:
        if self.product.kind not in ("outbox", "group", "queue", "pull"):
            return
        inherited = self.box if isinstance(self.box, Outbox) else Outbox(self.url)
        for number in range(5):
            events = self._committed(inherited, f"f{self.number}-{number}")
            for event in events:
                self.notes.note("acked", id=event.id, key=event.key, n=event.payload["n"])

    def _committed(self, inherited: Outbox, key: str) -> list[Event]:
        """SQLite's writers wait for each other, and who waited too long is told to come again."""
        while True:
            try:
                with inherited.transaction() as tx:
                    events = make(tx.connection, [key], self.product)
                    inherited.write_all(tx, events)
                return events
            except StoreBusy:
                continue

    # -- synchronous --------------------------------------------------------------------------------------------

    def _serve(self, thing: AbstractContextManager[Any]) -> None:
        with thing:
            self._wait()
            self.notes.note("stopping")

    def _sync_outbox(self) -> None:
        listeners = Listeners()
        listeners.on(TYPE)(self.handle)
        self.box = outbox(self.product, self.url, self.spec["settings"], asynchronous=False)
        if not self.product.ordered and self.engine != SQLITE:
            threading.Thread(target=self._write_hot, daemon=True).start()
        with self.box:
            self._serve(self.box.deliver(listeners, ordered=self.product.ordered))

    def _write_hot(self) -> None:
        """In the process that delivers: what it commits goes straight to a worker."""
        self.notes.note("writes")
        while not self.stop.wait(HOT_PACE) and not (self.folder / "stop").exists():
            try:
                with self.box.transaction() as tx:
                    events = make(tx.connection, [f"h{self.number}"], self.product)
                    self.box.write_all(tx, events)
            except Exception as error:  # whatever a fault may cause; the table of truth has the answer
                print(f"hot: {type(error).__name__}: {error}"[:300], file=sys.stderr)
        self.notes.note("written")

    def _sync_inbox(self) -> None:
        with Inbox(self.url, INBOX, settings=self.settings) as inbox:
            self._serve(inbox.process(self.effect))

    def _sync_pull(self) -> None:
        self.box = Outbox(self.url, settings=self.settings)
        with self.box, self.box.topics.group(TOPIC, self.group).consumer(f"r{self.number}") as consumer:
            self._ready()
            while not self.stop.is_set():
                self._fork_if_told()
                try:
                    self._pull(consumer)
                except (RelayboxError, OSError) as error:
                    print(f"pull: {type(error).__name__}: {error}"[:300], file=sys.stderr)
                    self.stop.wait(0.1)
            self.notes.note("stopping")

    def _pull(self, consumer: Any) -> None:
        batch = consumer.poll(self.most, lease=LEASE)
        failed = {}
        for event in batch:
            if self.slow():
                consumer.extend(batch, LEASE)
            try:
                self.handle(event)
            except (Reject, ValueError) as error:
                failed[event] = error
        if batch:
            consumer.commit(batch, failed=failed)
        else:
            self.stop.wait(0.05)

    # -- asynchronous -------------------------------------------------------------------------------------------

    def _in_a_thread(self, main: Any) -> None:
        """The loop is not in the main thread: that one has to be free to fork."""
        over = threading.Event()
        failed: list[BaseException] = []

        async def body() -> None:
            self.loop = asyncio.get_running_loop()
            self.astop = asyncio.Event()
            await main()

        def work() -> None:
            try:
                asyncio.run(body())
            except BaseException as error:
                failed.append(error)
                logging.exception("the receiver's loop ended")
            finally:
                over.set()

        threading.Thread(target=work, daemon=True).start()
        while not self._stopped_within(0.05) and not over.is_set():
            self._fork_if_told()
        if self.loop is not None and not over.is_set():
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.astop.set)
        over.wait()
        if failed:
            raise SystemExit(f"{type(failed[0]).__name__}: {failed[0]}")

    async def _aserve(self, thing: Any) -> None:
        async with thing:
            self._ready()
            await self.astop.wait()
            self.notes.note("stopping")

    async def _async_outbox(self) -> None:
        listeners = Listeners()
        listeners.on(TYPE)(self.ahandle)
        self.box = outbox(self.product, self.url, self.spec["settings"], asynchronous=True)
        async with self.box:
            await self._aserve(self.box.deliver(listeners, ordered=self.product.ordered))

    async def _async_pull(self) -> None:
        self.box = AsyncOutbox(self.url, settings=self.settings)
        async with self.box, self.box.topics.group(TOPIC, self.group).consumer(f"r{self.number}") as consumer:
            self._ready()
            while not self.astop.is_set():
                try:
                    async with asyncio.timeout(PATIENCE):
                        batch = await consumer.poll(self.most, lease=LEASE)
                    failed = {}
                    for event in batch:
                        if self.slow():
                            await consumer.extend(batch, LEASE)
                        try:
                            await self.ahandle(event)
                        except (Reject, ValueError) as error:
                            failed[event] = error
                    if batch:
                        async with asyncio.timeout(PATIENCE):
                            await consumer.commit(batch, failed=failed)
                    else:
                        await asyncio.sleep(0.05)
                except (RelayboxError, OSError) as error:
                    print(f"pull: {type(error).__name__}: {error}"[:300], file=sys.stderr)
                    await asyncio.sleep(0.1)
            self.notes.note("stopping")

    async def _async_rest(self) -> None:
        if self.product.inbox:
            inbox = AsyncInbox(self.url, INBOX, settings=self.settings)
            try:
                await self._aserve(inbox.process(self.aeffect))
            finally:
                await inbox.close()
            return
        self.box = AsyncOutbox(self.url, settings=self.settings)
        names = (self.group, BESIDE) if self.product.kind == "group" and self.group == GROUP else (self.group,)
        groups = []
        async with self.box:
            for name in names:
                if self.product.kind == "queue":
                    group = self.box.topics.queue(TOPIC)
                else:
                    start, ordered = StartFrom.earliest(), self.product.ordered
                    group = self.box.topics.group(TOPIC, name, start=start, ordered=ordered, on_exhausted="skip")
                groups.append(await group.deliver(partial(self.ahandle, stream=name)).start())
            self._ready()
            await self.astop.wait()
            self.notes.note("stopping")
            await asyncio.gather(*(group.stop() for group in groups))


class Slowness(logging.Handler):
    """A database without a processor is a stall too, and the process that waited for it says so."""

    def __init__(self, notes: Notes) -> None:
        super().__init__(logging.ERROR)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        if "database_timeout" in record.getMessage():
            self._notes.note("stall", seconds=DATABASE + TTL)


def main(path: str) -> None:
    spec = json.loads(Path(path).read_text())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True)
    receiver = Receiver(spec)
    logging.getLogger("relaybox").addHandler(Slowness(receiver.notes))
    receiver.run()


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # a thread that a black hole holds must not keep the process
