"""What a forked child has of its own: connections though its parent's were all in use, locks that a thread of its
parent held, and writes that are not claimed by a delivery that runs in its parent."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest

from kit import delivering, migrated
from kit.forked import in_a_child
from relaybox import Event, Guard, Inbox, Listeners, Outbox, Settings
from relaybox.drivers import open_async, open_sync
from relaybox.errors import Closed
from relaybox.op import Op, Query, run
from relaybox.testing.servers import require
from relaybox.types import DeliverySettings

ANSWER = Query("test.answer", "SELECT 42", "rows")


def ask() -> Op[int]:
    return int((yield ANSWER.bind()).rows[0][0])


def server() -> Op[int]:
    return int((yield Query("test.server", "SELECT pg_backend_pid()", "rows").bind()).rows[0][0])


def test_threads(tmp_path: Path) -> None:
    db = open_sync(f"sqlite:///{tmp_path / 'a.db'}", size=2)
    with ExitStack() as busy:
        for _ in range(2):
            busy.enter_context(db.connection())
        assert in_a_child(lambda: db.run(ask(), tx=False)) == 42
    assert db.run(ask(), tx=False) == 42
    db.close()


async def test_tasks(tmp_path: Path) -> None:
    db = open_async(f"sqlite:///{tmp_path / 'a.db'}", size=2)

    def child() -> int:
        asyncio._set_running_loop(None)
        return asyncio.new_event_loop().run_until_complete(db.run(ask(), tx=False))

    async with AsyncExitStack() as busy:
        for _ in range(2):
            await busy.enter_async_context(db.connection())
        assert await asyncio.to_thread(in_a_child, child) == 42
    assert await db.run(ask(), tx=False) == 42
    await db.close()


async def test_a_child_does_not_make_its_parent_deaf() -> None:
    """The child inherits the epoll of its parent's loop: a connection that ended there would be taken from it, and the
    parent would wait for its answers for ever. The child lets go of all it can."""
    db = open_async(require("postgres-wheel", durable=False).create_database(), size=2)
    async with db.connection():
        assert await db.run(ask(), tx=False) == 42  # now one is idle and one in use

        def child() -> int:
            asyncio._set_running_loop(None)
            answer = asyncio.new_event_loop().run_until_complete(db.run(ask(), tx=False))
            gc.collect()
            return answer

        assert in_a_child(child) == 42
        async with asyncio.timeout(20):
            assert await db.run(ask(), tx=False) == 42
    await db.close()


def test_a_connection_borrowed_by_the_parent_is_not_kept_by_the_child() -> None:
    db = open_sync(require("postgres-wheel", durable=False).create_database())
    loan = db.connection()
    mine = run(server(), loan.__enter__())

    def child() -> int:
        loan.__exit__(None, None, None)  # as if the block went on there
        return int(db.run(server(), tx=False) != mine)

    assert in_a_child(child) == 1
    loan.__exit__(None, None, None)
    db.close()


@pytest.fixture
def fresh() -> str:
    return require("postgres-wheel", durable=False).create_database()


class HeldElsewhere:
    """A lock in the hands of another thread, which a forked child does not have."""

    def __init__(self, lock: threading.Condition | threading.Lock) -> None:
        self._lock = lock
        self._end, held = threading.Event(), threading.Event()

        def hold() -> None:
            with self._lock:
                held.set()
                self._end.wait()

        self._thread = threading.Thread(target=hold)
        self._thread.start()
        held.wait()

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def test_a_child_writes_while_its_parent_was_about_to_notify(fresh: str) -> None:
    with migrated(fresh) as box:
        assert box._notifier is not None
        box._notifier.soon()  # its thread runs

        def child() -> int:
            with box.transaction() as tx:
                box.write(tx, Event("T", 1))
            box.close()
            return 7

        with HeldElsewhere(box._notifier._changed):
            assert in_a_child(child) == 7
        assert box.status().due == 1


def test_a_child_guards_while_its_parent_was_renewing(tmp_path: Path) -> None:
    with Guard.sql(f"sqlite:///{tmp_path / 'g.db'}", consumer="c") as guard:
        guard.migrate()

        def child() -> int:
            with guard("m2") as first:
                return 7 if first else 1

        with guard("m1") as first:
            assert first
            with HeldElsewhere(guard._renewer._lock):
                assert in_a_child(child) == 7


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.mark.parametrize("server", ["postgres-wheel", "mariadb"])
def test_what_the_child_of_a_delivering_process_writes_is_delivered_by_others_at_once(server: str) -> None:
    """Well before the lease ends under which the parent claims what it writes itself."""
    url = require(server, durable=False).create_database()
    arrived, listeners = threading.Event(), Listeners()
    listeners.on("T")(lambda event: arrived.set())
    settings = Settings(delivery=DeliverySettings(lease="10m", poll="100ms"))
    with delivering(Outbox, url, listeners, settings=settings, migrate=True) as box:

        def child() -> int:
            said = Said()
            logging.getLogger("relaybox").addHandler(said)
            for n in range(2):
                with box.transaction() as tx:
                    box.write(tx, Event("T", n))
            box.close()
            (line,) = said.lines
            return 7 if line.startswith("this process was forked after delivery of outbox_event had started") else 1

        assert in_a_child(child) == 7
        assert arrived.wait(20)
        with box.transaction() as tx:  # the parent goes on as before
            box.write(tx, Event("T", 3))
        until_none_waits(box)


def until_none_waits(box: Outbox) -> None:
    deadline = time.monotonic() + 20
    while (status := box.status()).due or status.claimed:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_child_of_a_processing_process_accepts_and_ends(fresh: str) -> None:
    arrived = threading.Event()
    with Inbox(fresh) as inbox:
        inbox.migrate()
        processor = inbox.process(lambda event, connection: arrived.set())
        with processor:

            def child() -> int:
                said = Said()
                logging.getLogger("relaybox").addHandler(said)
                inbox.accept(None, Event("T", 1))
                processor.stop()
                (line,) = said.lines
                return 7 if line.startswith("this process was forked after processing of inbox had started") else 1

            assert in_a_child(child) == 7
            assert arrived.wait(20)


def test_a_service_says_in_the_child_that_it_works_in_the_parent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with migrated(url) as box, box.deliver(lambda event: None) as delivery:

        def child() -> int:
            for call in (delivery.start, delivery.drain):
                with pytest.raises(Closed, match=r"before this process was forked.*gunicorn\.md"):
                    call()
            delivery.stop()
            assert delivery.health().reasons == (
                "it was started before this process was forked, and works in its parent alone",
            )
            return 7

        assert in_a_child(child) == 7
        assert delivery.health().level == "ok"


def test_a_child_that_delivers_itself_is_not_warned(fresh: str) -> None:
    with migrated(fresh) as box, box.deliver(lambda event: None):

        def child() -> int:
            said, heard = Said(), threading.Event()
            logging.getLogger("relaybox").addHandler(said)
            with box.deliver(lambda event: heard.set()):
                with box.transaction() as tx:
                    box.write(tx, Event("T", 1))  # claimed here, so that the parent does not take it
                assert heard.wait(20)
            return 7 if not said.lines else 1

        assert in_a_child(child) == 7
