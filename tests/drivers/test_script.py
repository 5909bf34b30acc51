"""Scripts, and the methods that two twins make of one."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, get_type_hints

import pytest

from relaybox.clock import SYSTEM_CLOCK
from relaybox.drivers.script import Async, Script, Sync, commit, look, twin
from relaybox.op import Op


def answer(value: Any) -> Op[Any]:
    return value
    yield


def refuse(error: Exception) -> Op[Any]:
    raise error
    yield


class Rows:
    """A database of ops that need no statement; notes which had a transaction."""

    def __init__(self) -> None:
        self.transactions: list[bool] = []

    def run(self, op: Op[Any], *, tx: bool = True) -> Any:
        self.transactions.append(tx)
        with ended() as end:
            next(op)
        return end[0]


class AsyncRows(Rows):
    async def run(self, op: Op[Any], *, tx: bool = True) -> Any:
        return super().run(op, tx=tx)


@contextmanager
def ended() -> Iterator[list[Any]]:
    end: list[Any] = []
    try:
        yield end
    except StopIteration as stop:
        end.append(stop.value)


class Shared:
    def __init__(self, db: Any) -> None:
        self._db = db
        self._clock = SYSTEM_CLOCK

    @twin
    def double(self, number: int, *, pause: timedelta = timedelta(0)) -> Script[int]:
        """Twice as much."""
        first = yield from look(answer(number))
        yield pause.total_seconds()
        return first + (yield from commit(answer(number)))

    @twin
    def refused(self) -> Script[str]:
        try:
            return (yield from commit(refuse(KeyError("no"))))
        except KeyError:
            return "caught"

    @twin
    def checked(self) -> Script[int]:
        raise ValueError("wrong from the start")


class Box(Shared, Sync):
    """Plays."""


class AsyncBox(Shared, Async):
    """Awaits."""


def test_the_synchronous_twin_returns_what_the_script_returns() -> None:
    db = Rows()
    assert Box(db).double(4, pause=timedelta(0)) == 8
    assert db.transactions == [False, True]
    assert Box(db).refused() == "caught"
    with pytest.raises(ValueError, match="wrong from the start"):
        Box(db).checked()


async def test_the_asynchronous_twin_is_awaited() -> None:
    db = AsyncRows()
    assert await AsyncBox(db).double(4) == 8
    assert db.transactions == [False, True]
    assert await AsyncBox(db).refused() == "caught"
    begun = AsyncBox(db).checked()  # as in any coroutine, nothing happens before it is awaited
    with pytest.raises(ValueError, match="wrong from the start"):
        await begun


@pytest.mark.parametrize("box", [Box, AsyncBox])
def test_help_shows_the_method_as_it_is_called(box: Any) -> None:
    signature = inspect.signature(box.double)
    assert list(signature.parameters) == ["self", "number", "pause"]
    assert signature.return_annotation == "int"
    assert get_type_hints(box.double)["return"] is int
    assert (box.double.__name__, box.double.__doc__) == ("double", "Twice as much.")
    assert inspect.iscoroutinefunction(box.double) == (box is AsyncBox)
    assert inspect.iscoroutinefunction(box(None).double) == (box is AsyncBox)
