"""Consumers that die or freeze in a process of their own."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from kit import one, rows
from relaybox.errors import InProgress

from .conftest import make_place
from .kit import Place, Twin, child, deliver, said, until


async def handled(guard: Twin, file: Path) -> str:
    """One delivery as a broker would make it: what became of it."""

    def effect() -> None:
        with file.open("a") as log:
            log.write("effect\n")

    before = file.read_text()
    try:
        await deliver(guard, "message", effect)
    except InProgress:
        return "in progress"
    return "handled" if file.read_text() != before else "duplicate"


async def test_killed_inside_the_block(place: Place, tmp_path: Path) -> None:
    """The message is not lost. It comes back when the lease ends, and not earlier."""
    file = tmp_path / "effects"
    with child("block", place.kind, place.url, str(file), "3s") as process:
        assert said(process) == "inside"
        process.kill()
        process.wait()
    async with place.open(lease="30s") as guard:
        assert await handled(guard, file) == "in progress"
        await until(lambda: _expired(place), "end of the lease")
        assert await handled(guard, file) == "handled"
        assert await handled(guard, file) == "duplicate"
    assert file.read_text().split() == ["effect", "effect"]  # a block cannot know whether its effect had happened


def _expired(place: Place) -> bool:
    if place.kind == "redis":
        return place.state("message") is None
    clock = {
        "postgres": "until <= clock_timestamp()",
        "mariadb": "until <= utc_timestamp(6)",
        "sqlite": "until <= (julianday('now') - 2440587.5) * 86400000000",
    }[place.kind]
    return bool(one(place.url, f"SELECT count(*) FROM relaybox_guard WHERE {clock}"))


async def test_frozen_beyond_the_lease(place: Place, tmp_path: Path) -> None:
    """A zombie wakes up when another has handled the message: it changes nothing, and says so."""
    file = tmp_path / "effects"
    with child("block", place.kind, place.url, str(file), "500ms") as process:
        assert said(process) == "inside"
        process.send_signal(signal.SIGSTOP)
        async with place.open(lease="30s") as guard:
            await until(lambda: _expired(place), "end of the lease")
            assert await handled(guard, file) == "handled"
            mark = place.mark("message")
            process.send_signal(signal.SIGCONT)
            _go_on(process)
            assert said(process) == "LeaseLost"
            assert place.mark("message") == mark
            assert await handled(guard, file) == "duplicate"


def _go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
async def test_killed_around_the_transaction_of_the_mark(sql: Place, moment: str, tmp_path: Path) -> None:
    """The effect is in the transaction of the mark: exactly once, whenever the process dies."""
    rows(sql.url, "CREATE TABLE business (n bigint)")
    with child("mark", sql.kind, sql.url) as process:
        assert said(process) == "inside"
        if moment == "after the commit":
            _go_on(process)
            assert said(process) == "inside"
        process.kill()
        process.wait()
    with child("mark", sql.kind, sql.url) as process:  # redelivery: waits for the server to notice, at most
        assert said(process) == "inside"
        _go_on(process)
        assert said(process) == "inside"
    assert one(sql.url, "SELECT count(*) FROM business") == 1
    assert sql.state("message") == "done"


async def test_the_plain_mode_loses_what_a_crash_interrupts(redis_place: Place) -> None:
    """Why it is not the default: the mark is there, the effect may not be, and no lease ends."""
    async with redis_place.open(mode="setnx") as guard:
        assert await guard.call("try_mark", "message")  # and here the process dies
        assert not await guard.call("try_mark", "message")
    assert redis_place.state("message") == "done"


def test_a_fork_inherits_no_held_keys(tmp_path: Path) -> None:
    """The child must not renew for ever what its dead parent held."""
    import multiprocessing

    place = make_place("sqlite", tmp_path)
    guard = place.open(lease="300ms").raw

    def in_child() -> None:
        with guard("own"):
            assert {held.key for held in guard._renewer._held} == {"own"}

    with guard("parents"):
        process = multiprocessing.get_context("fork").Process(target=in_child)
        process.start()
        process.join(20)
        assert process.exitcode == 0
    guard.close()
