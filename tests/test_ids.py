"""What an event's id gives away: its millisecond, and its neighbours of that millisecond. Nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from relaybox import ids
from relaybox.ids import new_id

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
BITS = 79  # of 80: one is left for counting


class Time:
    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    time = Time(ids.epoch_ms())
    monkeypatch.setattr(ids, "epoch_ms", time)
    monkeypatch.setattr(ids, "_ulids", ids._UlidSource())
    return time


def parts(id: str) -> tuple[int, int]:
    """The millisecond and what was drawn."""
    assert len(id) == 26
    value = sum(ALPHABET.index(letter) << (5 * place) for place, letter in enumerate(reversed(id)))
    return value >> 80, value & ((1 << 80) - 1)


def drawn_each_millisecond(time: Time, count: int) -> list[int]:
    found = []
    for _ in range(count):
        time.ms += 1
        ms, drawn = parts(new_id())
        assert ms == time.ms
        found.append(drawn)
    return found


def test_no_id_tells_those_of_other_milliseconds(time: Time) -> None:
    """Each bit is as often set as not, whatever the one before was."""
    count = 4_000
    found = drawn_each_millisecond(time, count)
    assert len(set(found)) == count
    changed = [before ^ after for before, after in pairwise(found)]
    for bit in range(BITS):
        for values in (found, changed):
            share = sum(value >> bit & 1 for value in values) / count
            assert 0.45 < share < 0.55, bit  # six times its standard deviation


def test_what_is_drawn_comes_from_the_system(time: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def urandom(size: int, real: Any = os.urandom) -> bytes:
        asked.append(size)
        return bytes(real(size))

    monkeypatch.setattr(os, "urandom", urandom)
    drawn_each_millisecond(time, 10)
    assert asked == [10] * 10


def test_ids_of_one_millisecond_follow_each_other(time: Time) -> None:
    """They are in the order they were made, so who has one can guess its neighbours: ids are names, no secrets."""
    time.ms += 1
    found = [parts(new_id()) for _ in range(1_000)]
    time.ms -= 50  # a clock that is set back makes that millisecond longer
    found.append(parts(new_id()))
    assert {ms for ms, _ in found} == {time.ms + 50}
    assert [drawn - found[0][1] for _, drawn in found] == list(range(1_001))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_process_draws_its_own(time: Time) -> None:
    time.ms += 1
    _, mine = parts(new_id())
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, new_id().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as told:
        ms, theirs = parts(told.read())
    os.waitpid(child, 0)
    assert ms == time.ms
    assert abs(theirs - mine) > 1 << 40
