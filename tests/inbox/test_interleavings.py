"""Any interleaving of two connections' transactions: each id once, in order, and nothing of what was rolled back."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit import one, rows
from relaybox import Inbox
from relaybox.drivers import open_sync
from relaybox.drivers.spi import Connection

from .kit import ENGINES, PATIENCE, WAITING, arrived, inbox_url

Step = tuple[int, list[int] | str]
STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.one_of(
            st.lists(st.integers(0, 7), min_size=1, max_size=5),
            st.sampled_from(["commit", "rollback"]),
        ),
    ),
    max_size=14,
)
_numbers = itertools.count()


@dataclass
class Side:
    """One connection, and what its transaction has accepted so far."""

    connection: Connection
    open: bool = False
    mine: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


class World:
    def __init__(self, engine: str, url: str) -> None:
        self.engine = engine
        self.url = url
        self._closing = ExitStack()
        database = open_sync(url)
        self._closing.callback(database.close)
        self.inbox = self._closing.enter_context(Inbox(url))
        self.thread = self._closing.enter_context(ThreadPoolExecutor(1))
        self.connections = [self._closing.enter_context(database.connection()) for _ in range(2)]

    def play(self, steps: list[Step]) -> None:
        run = f"r{next(_numbers)}-"
        for connection in self.connections:
            connection.rollback()  # what a failed example left
        sides = [Side(connection) for connection in self.connections]
        for who, what in steps:
            if isinstance(what, str):
                end(sides[who], what)
            else:
                self._accept(sides[who], sides[1 - who], [f"{run}{n}" for n in what])
        for side in sides:
            end(side, "commit")
        self._check(run, sides)

    def _accept(self, side: Side, other: Side, ids: list[str]) -> None:
        """Run beside the other's transaction; if it has to wait for that one, that one ends."""
        conflict = other.open and (self.engine == "sqlite" or not set(ids).isdisjoint(other.mine))
        answer = self.thread.submit(self._in_transaction, side, ids)
        waits = conflict if self.engine == "sqlite" else self._waits(answer)
        if waits:
            end(other, "commit" if len(ids) % 2 else "rollback")
        # InnoDB leaves a lock on the gap around an id that somebody waited for in vain, so more may wait there.
        assert waits == conflict or self.engine == "mariadb"
        expected, known = [], {*side.mine, *side.kept, *other.kept}
        for event_id in ids:
            expected.append(event_id not in known)
            known.add(event_id)
        assert answer.result(PATIENCE) == expected
        side.mine += [event_id for event_id, new in zip(ids, expected, strict=True) if new]

    def _waits(self, answer: Future[list[bool]]) -> bool:
        """Whether the server makes it wait for a lock; no guess by time."""
        deadline = time.monotonic() + PATIENCE
        while not wait([answer], 0.02).done:
            if one(self.url, WAITING[self.engine]):
                return True
            assert time.monotonic() < deadline, "neither an answer nor a lock"
        return False

    def _in_transaction(self, side: Side, ids: list[str]) -> list[bool]:
        if not side.open:
            side.connection.begin()
            side.open = True
        return self.inbox.accept_all(side.connection, [arrived(n, id=event_id) for n, event_id in enumerate(ids)])

    def _check(self, run: str, sides: list[Side]) -> None:
        def ids(text: str) -> list[str]:
            found = (row[0] for row in rows(self.url, text))
            texts = (value.decode() if isinstance(value, bytes) else value for value in found)
            return [value for value in texts if value.startswith(run)]

        stored = ids("SELECT event_id FROM inbox ORDER BY seq")
        kept = [event_id for side in sides for event_id in side.kept]
        assert sorted(stored) == sorted(kept)
        assert ids("SELECT event_id FROM inbox m JOIN inbox_pending p ON p.seq = m.seq ORDER BY m.seq") == stored
        assert sorted(ids("SELECT event_id FROM inbox_seen")) == sorted(kept)
        for side in sides:
            assert [event_id for event_id in stored if event_id in side.kept] == side.kept

    def close(self) -> None:
        self._closing.close()


def end(side: Side, how: str) -> None:
    if side.open:
        getattr(side.connection, how)()
        side.kept += side.mine if how == "commit" else []
    side.open, side.mine = False, []


@pytest.fixture(scope="module", params=ENGINES)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("interleavings")
    made = World(request.param, inbox_url(request.param, folder))
    yield made
    made.close()


@given(steps=STEPS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_interleaving(world: World, steps: list[Step]) -> None:
    world.play(steps)
