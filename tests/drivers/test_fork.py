"""A child that was forked while all connections of its parent were in use has its own."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from relaybox.drivers import open_async, open_sync
from relaybox.op import Op, Query, run
from relaybox.testing.servers import require

ANSWER = Query("test.answer", "SELECT 42", "rows")


def ask() -> Op[int]:
    return int((yield ANSWER.bind()).rows[0][0])


def server() -> Op[int]:
    return int((yield Query("test.server", "SELECT pg_backend_pid()", "rows").bind()).rows[0][0])


def in_a_child(work: Callable[[], int]) -> int:
    """What it returned; a child that hangs is killed."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


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
