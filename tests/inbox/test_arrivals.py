"""Messages that arrive at once share statements, and nothing else: each has its own answer, and its own trouble."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drivers.test_fork import in_a_child
from kit import one, rows, until
from relaybox import AsyncInbox, ConfigError, Event, Inbox, InvalidEvent
from relaybox.drivers import open_sync
from relaybox.drivers.spi import Connection
from relaybox.errors import Closed, ConnectionLost, StoreBusy, StoreError
from relaybox.inbox.arrivals import LANES, Arrivals, AsyncArrivals, Queue

from .kit import PATIENCE, WAITING, arrived, inbox_url, message_ids

THREADS = 40


class Doors:
    """Every `come` is a caller of its own: a task, or a thread."""

    def __init__(self, url: str, *, is_async: bool) -> None:
        self.url = url
        self.inbox: Any = (AsyncInbox if is_async else Inbox)(url)
        self.sizes: list[int] = []  # of what was accepted in one go
        together = self.inbox._arrivals
        self._one, self._many = together._alone, together._together
        together._alone, together._together = self._alone, self._together
        self._threads = None if is_async else ThreadPoolExecutor(THREADS)

    def _alone(self, event: Event, sender: str | None) -> Any:
        self.sizes.append(1)
        return self._one(event, sender)

    def _together(self, events: Sequence[Event], senders: Sequence[str | None]) -> Any:
        self.sizes.append(len(events))
        return self._many(events, senders)

    def come(self, event: Event, **options: Any) -> asyncio.Future[bool]:
        if self._threads is None:
            return asyncio.ensure_future(self.inbox.accept(None, event, **options))
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._threads, lambda: self.inbox.accept(None, event, **options))

    async def waiting(self, count: int) -> None:
        await until(lambda: len(self.inbox._arrivals._queue._waiting) == count, f"{count} who wait")

    async def close(self) -> None:
        closed = self.inbox.close()
        if closed is not None:
            await closed
        if self._threads is not None:
            self._threads.shutdown()


@asynccontextmanager
async def opened(url: str, is_async: bool) -> AsyncIterator[Doors]:
    doors = Doors(url, is_async=is_async)
    try:
        await doors.come(arrived(0, id="first"))  # which looks whose table it is
        doors.sizes.clear()
        yield doors
    finally:
        await doors.close()


class Blocked:
    """A transaction that has accepted what the statements under way would accept."""

    def __init__(self, doors: Doors, connection: Connection, events: Sequence[Event]) -> None:
        self._connection = connection
        self.answers = [doors.come(event) for event in events]

    async def end(self) -> None:
        self._connection.rollback()
        assert await asyncio.gather(*self.answers) == [True] * LANES


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits waits until a statement ends."""
    monkeypatch.setattr("relaybox.inbox.arrivals.PATIENCE", 3600.0)


@contextmanager
def holding(url: str, *events: Event) -> Iterator[Connection]:
    """A transaction that has accepted these and does not end."""
    database = open_sync(url)
    with Inbox(url) as inbox, database.connection() as connection:
        connection.begin()
        inbox.accept_all(connection, events)
        yield connection
    database.close()


@asynccontextmanager
async def blocked(doors: Doors) -> AsyncIterator[Blocked]:
    events = [arrived(n, id=f"blocked-{n}") for n in range(LANES)]
    with holding(doors.url, *events) as connection:
        found = Blocked(doors, connection, events)
        await until(lambda: one(doors.url, WAITING["postgres"]) == LANES, "statements that wait")
        yield found


@pytest.fixture
def postgres(tmp_path: Path) -> str:
    return inbox_url("postgres", tmp_path)


async def within(answer: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(answer, PATIENCE)


async def test_of_a_crowd_each_is_told_the_truth(url: str, is_async: bool) -> None:
    events = [arrived(n) for n in range(60)]
    async with opened(url, is_async) as doors:
        answers = await within(asyncio.gather(*[doors.come(event) for event in [*events, *events]]))
    first, second = answers[:60], answers[60:]
    assert [a + b for a, b in zip(first, second, strict=True)] == [1] * 60  # one of the two was new
    assert sorted(message_ids(url)) == sorted(["first", *(event.id for event in events)])


async def test_one_that_comes_alone_goes_alone(postgres: str, is_async: bool) -> None:
    async with opened(postgres, is_async) as doors:
        for n in range(3):
            assert await doors.come(arrived(n))
        assert doors.sizes == [1, 1, 1]


async def test_those_who_wait_go_together(postgres: str, is_async: bool) -> None:
    async with opened(postgres, is_async) as doors, blocked(doors) as others:
        twice = arrived(1, id="twice")
        answers = [doors.come(event) for event in (twice, *(arrived(n) for n in range(20)))]
        await doors.waiting(21)
        answers += [doors.come(twice), doors.come(arrived(99), sender="another")]
        await doors.waiting(23)
        await others.end()
        news = await within(asyncio.gather(*answers))
        assert (sum(news), news[0] + news[21], news[22]) == (22, 1, True)
        assert sorted(doors.sizes) == [1, 1, 23]
    assert rows(postgres, "SELECT count(*) FROM inbox WHERE sender = 'another'") == [(1,)]


async def test_what_is_refused_is_refused_alone(postgres: str, is_async: bool) -> None:
    rows(
        postgres,
        """CREATE FUNCTION picky() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.event_type = 'Bad' THEN RAISE 'not this one'; END IF; RETURN NEW; END $$;
           CREATE TRIGGER picky BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION picky(); SELECT 1""",
    )
    async with opened(postgres, is_async) as doors, blocked(doors) as others:
        bad, *good = [doors.come(event) for event in (Event("Bad", 1), *(arrived(n) for n in range(5)))]
        await doors.waiting(6)
        await others.end()
        assert await within(asyncio.gather(*good)) == [True] * 5
        with pytest.raises(StoreError, match="not this one"):
            await within(bad)
        assert sorted(doors.sizes) == [1] * 2 + [1] * 6 + [6]
        for n in range(LANES + 1):
            assert await within(doors.come(arrived(7 + n)))  # and the lanes are free


async def test_a_lost_connection_is_told_to_all_and_the_ids_tell(postgres: str, is_async: bool) -> None:
    events = [arrived(n, id=f"id-{n}") for n in range(5)]
    sleepy(postgres)
    async with opened(postgres, is_async) as doors, blocked(doors) as others:
        answers = [doors.come(event) for event in (*events[1:], Event("Sleepy", 1))]
        await doors.waiting(5)
        await others.end()
        asleep = "FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
        await until(lambda: one(postgres, f"SELECT count(*) {asleep}") == 1, "statement that sleeps")
        rows(postgres, f"SELECT pg_terminate_backend(pid) {asleep}")
        errors = [await within(caught(answer)) for answer in answers]
        assert [type(error) for error in errors] == [ConnectionLost] * 5
        assert len(set(map(id, errors))) == 5  # each its own
        assert await within(asyncio.gather(*[doors.come(event) for event in events])) == [True] * 5
    assert sorted(message_ids(postgres)) == sorted(["first", "blocked-0", "blocked-1", *(e.id for e in events)])


def sleepy(url: str) -> None:
    rows(
        url,
        """CREATE FUNCTION sleepy() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.event_type = 'Sleepy' THEN PERFORM pg_sleep(60); END IF; RETURN NEW; END $$;
           CREATE TRIGGER sleepy BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION sleepy(); SELECT 1""",
    )


async def caught(answer: Awaitable[bool]) -> BaseException | None:
    try:
        await answer
    except StoreError as error:
        return error
    return None


async def test_who_is_cancelled_takes_nobody_along(postgres: str) -> None:
    async with opened(postgres, True) as doors, blocked(doors) as others:
        answers = [doors.come(arrived(n, id=f"id-{n}")) for n in range(4)]
        await doors.waiting(4)
        answers[0].cancel()
        await others.end()
        assert await within(asyncio.gather(*answers[1:])) == [True] * 3
        assert answers[0].cancelled()
    assert "id-0" not in message_ids(postgres)


async def test_cancelled_while_it_goes_with_others(postgres: str) -> None:
    gate = asyncio.Event()
    async with opened(postgres, True) as doors, blocked(doors) as others:
        together = doors._many

        async def slowly(*arguments: Any) -> Any:
            await gate.wait()
            return await together(*arguments)

        doors._many = slowly
        answers = [doors.come(arrived(n, id=f"id-{n}")) for n in range(4)]
        await doors.waiting(4)
        await others.end()
        answers[0].cancel()
        gate.set()
        assert await within(asyncio.gather(*answers[1:])) == [True] * 3


async def test_one_who_must_wait_for_a_transaction_keeps_nobody_waiting(postgres: str, is_async: bool) -> None:
    """Not even the caller that began that transaction, and accepts something else before it ends."""
    async with opened(postgres, is_async) as doors, blocked(doors) as others:
        with holding(postgres, arrived(1, id="a")) as mine:
            same, *else_ = [doors.come(arrived(n, id=name)) for n, name in enumerate("abcd")]
            await doors.waiting(4)
            await others.end()
            assert await within(asyncio.gather(*else_)) == [True] * 3
            assert not same.done()
            mine.commit()
        assert await within(same) is False


async def test_many_senders_go_together_in_the_order_they_came(postgres: str, is_async: bool) -> None:
    async with opened(postgres, is_async) as doors, blocked(doors) as others:
        answers = []
        for n in range(9):
            answers.append(doors.come(arrived(n, id=f"id-{n}"), sender=f"s{n % 3}"))
            await doors.waiting(n + 1)
        await others.end()
        assert await within(asyncio.gather(*answers)) == [True] * 9
    found = rows(postgres, "SELECT event_id, sender FROM inbox WHERE sender <> '' ORDER BY seq")
    assert found == [(f"id-{n}", f"s{n % 3}") for n in range(9)]


async def test_nobody_waits_for_long_while_all_lanes_are_blocked(
    postgres: str, is_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relaybox.inbox.arrivals.PATIENCE", 0.1)
    async with opened(postgres, is_async) as doors, blocked(doors) as others:
        assert await within(asyncio.gather(*[doors.come(arrived(n)) for n in range(30)])) == [True] * 30
        assert not any(answer.done() for answer in others.answers)
        await others.end()
        assert doors.inbox._arrivals._queue._under_way == 0


async def test_one_lane_goes_on_while_the_other_is_blocked(postgres: str, is_async: bool) -> None:
    async with opened(postgres, is_async) as doors:
        with holding(postgres, arrived(1, id="held")) as holder:
            held = doors.come(arrived(1, id="held"))
            await until(lambda: one(postgres, WAITING["postgres"]) == 1, "statement that waits")
            assert await within(asyncio.gather(*[doors.come(arrived(n)) for n in range(30)])) == [True] * 30
            assert not held.done()
            holder.commit()
        assert await within(held) is False


async def test_bad_input_is_told_before_anybody_waits(postgres: str, is_async: bool) -> None:
    async with opened(postgres, is_async) as doors, blocked(doors) as others:
        with pytest.raises(InvalidEvent, match="takes a list of events"):
            await within(doors.come("no event"))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="expected sender"):
            await within(doors.come(arrived(1), sender=["no", "sender"]))
        good = doors.come(arrived(1))
        await doors.waiting(1)
        await others.end()
        assert await within(good)


async def test_a_closed_inbox_refuses_all(postgres: str, is_async: bool) -> None:
    async with opened(postgres, is_async) as doors, blocked(doors) as others:
        answers = [doors.come(arrived(n)) for n in range(3)]
        await doors.waiting(3)
        doors.inbox._db.close.__self__._closed = True
        await others.end()
        for answer in answers:
            with pytest.raises(Closed):
                await within(answer)


# -- threads, without a database --------------------------------------------------------------------------


class Gate:
    """Every statement waits here until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.sizes: list[int] = []
        self.error: BaseException | None = None  # of those who go together

    def alone(self, event: Event, sender: str | None) -> bool:
        self.sizes.append(1)
        self.opened.wait(PATIENCE)
        return True

    def together(self, events: Sequence[Event], senders: Sequence[str | None]) -> list[bool]:
        self.sizes.append(len(events))
        if self.error is not None:
            raise self.error
        return [True] * len(events)


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def crowd(gate: Gate, threads: ThreadPoolExecutor) -> tuple[Arrivals, list[Future[bool]]]:
    """As many as may are under way."""
    together = Arrivals(gate.alone, gate.together)
    answers = [threads.submit(together.accept, arrived(n), None) for n in range(LANES)]
    await until(lambda: len(gate.sizes) == LANES, "statements")
    return together, answers


async def test_a_forked_child_waits_for_nobody(gate: Gate) -> None:
    with ThreadPoolExecutor() as threads:
        together, answers = await crowd(gate, threads)

        def child() -> int:
            gate.opened = threading.Event()
            gate.opened.set()
            return 42 if together.accept(arrived(9), None) else 1

        assert in_a_child(child) == 42
        gate.opened.set()
        assert [answer.result(PATIENCE) for answer in answers] == [True] * LANES


async def test_another_loop_waits_for_nobody() -> None:
    never = asyncio.Event()

    async def alone(event: Event, sender: str | None) -> bool:
        return True if event.id == "another" else await never.wait()

    together = AsyncArrivals(alone, lambda events, senders: pytest.fail("nobody waits"))
    tasks = [asyncio.ensure_future(together.accept(arrived(n), None)) for n in range(LANES)]
    await asyncio.sleep(0)
    other = asyncio.to_thread(asyncio.run, together.accept(arrived(1, id="another"), None))
    assert await within(other)
    for task in tasks:
        task.cancel()


@pytest.mark.parametrize("late", [False, True], ids=["before it is called", "after"])
async def test_who_is_interrupted_leaves_the_others_their_turn(gate: Gate, late: bool) -> None:
    with ThreadPoolExecutor() as threads:
        together, answers = await crowd(gate, threads)
        turn = together._queue.enter(arrived(5), None)  # the first of those who wait, to be interrupted
        assert turn is not None
        answers += [threads.submit(together.accept, arrived(n), None) for n in (6, 7)]
        await until(lambda: len(together._queue._waiting) == 3, "threads that wait")
        if not late:
            assert turn.cancel()
        gate.opened.set()
        if late:
            await until(turn.done, "call")
            turn.add_done_callback(together._stand_in)  # what an interrupted thread leaves behind
            turn.add_done_callback(together._stand_in)  # which does no harm twice
        assert [answer.result(PATIENCE) for answer in answers] == [True] * (LANES + 2)
        assert sorted(gate.sizes) == [1] * LANES + [2 + late]
        assert together.accept(arrived(8), None)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StoreBusy("somebody is there")])
async def test_whatever_happens_to_the_first_the_others_get_their_answers(gate: Gate, error: BaseException) -> None:
    gate.error = error
    with ThreadPoolExecutor() as threads:
        together, before = await crowd(gate, threads)
        answers = [threads.submit(together.accept, arrived(n), None) for n in (6, 7, 8)]
        await until(lambda: len(together._queue._waiting) == 3, "threads that wait")
        gate.opened.set()
        errors = [answer.exception(PATIENCE) for answer in answers]
        assert sum(found is None for found in errors) == (2 if isinstance(error, KeyboardInterrupt) else 3)
        assert [answer.result(PATIENCE) for answer in before] == [True] * LANES
        assert together.accept(arrived(9), None)


# -- the queue ------------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from(["enter", "leave", "cancel"]), max_size=60), st.randoms(use_true_random=False))
def test_nobody_is_forgotten_or_called_twice(steps: list[str], chance: Any) -> None:
    queue: Queue[Future[bool]] = Queue(Future, lambda turn: turn.set_running_or_notify_cancel())
    under_way, waiting = 0, list[Future[bool]]()

    def leave() -> None:
        nonlocal under_way
        called = [each.turn for each in queue.leave()]
        under_way -= not called
        assert called == [turn for turn in waiting if not turn.cancelled()]  # all of them, in their order
        waiting.clear()

    for step in steps:
        if step == "enter":
            turn = queue.enter(arrived(0), None)
            if turn is None:
                assert not waiting
                under_way += 1
            else:
                assert under_way == LANES
                waiting.append(turn)
        elif step == "leave" and under_way:
            leave()
        elif step == "cancel" and waiting:
            chance.choice(waiting).cancel()
        assert under_way <= LANES
    while under_way:
        leave()
    assert not waiting


def test_no_more_than_a_statement_takes_and_nobody_is_overtaken() -> None:
    queue: Queue[Future[bool]] = Queue(Future, lambda turn: turn.set_running_or_notify_cancel())
    large = Event("Large", payload_bytes=bytes(1_000_000))
    turns = [queue.enter(large, "a" if n % 2 else "b") for n in range(12)][LANES:]
    called: list[Future[bool]] = []
    while some := queue.leave():
        assert len(some) <= 4
        called += [each.turn for each in some]
    assert called == turns
