"""Messages that arrive at once are accepted together.

One that comes alone goes at once and by itself. Those that come while `LANES` statements are under way wait for one of
them to end, as they would for a connection, and then go together: one round trip and one commit for all. Whatever keeps
them from that (one of them is refused, or has to wait for another transaction) sends each on its own way.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from ..errors import Closed, ConnectionLost
from ..event import Event
from ..forks import renew_after_fork
from ..store.event_rows import chunks

log = logging.getLogger("relaybox")

LANES = 2  # statements
PATIENCE = 0.1  # seconds after which those who wait go as well: what is under way waits for other transactions
FOR_ALL = (ConnectionLost, Closed)  # errors that are nobody's own: to try again is up to the caller

Acceptance: TypeAlias = bool | Exception | None  # None: go alone
F = TypeVar("F", bound=Any)  # the future of an answer: asyncio's or a thread's


class Waiting(NamedTuple, Generic[F]):
    event: Event
    sender: str
    turn: F


class Queue(Generic[F]):
    """Who goes at once, who waits, and who goes together."""

    def __init__(self, future: Callable[[], F], begin: Callable[[F], bool]) -> None:
        self._future = future
        self._begin = begin  # False: nobody waits for this one any more
        self._under_way = 0
        self._waiting: list[Waiting[F]] = []

    def enter(self, event: Event, sender: str) -> F | None:
        """None: go at once, and `leave` then. Otherwise a turn comes."""
        if self._under_way < LANES:
            self._under_way += 1
            return None
        waiting = Waiting(event, sender, self._future())
        self._waiting.append(waiting)
        return waiting.turn

    def leave(self) -> list[Waiting[F]]:
        """A statement has ended: those who go next in its place, as many as one takes; and then they leave."""
        while self._waiting:
            fit = len(next(chunks([waiting.event for waiting in self._waiting])))
            some, self._waiting = self._waiting[:fit], self._waiting[fit:]
            if called := [waiting for waiting in some if self._begin(waiting.turn)]:
                return called
        self._under_way -= 1
        return []

    def overflow(self) -> list[Waiting[F]]:
        """Nothing has ended for long: those who go all the same."""
        self._under_way += 1
        return self.leave()


AsyncQueue: TypeAlias = "Queue[asyncio.Future[Acceptance]]"


class AsyncArrivals:
    def __init__(
        self,
        alone: Callable[[Event, str], Awaitable[bool]],
        together: Callable[[Sequence[Event], Sequence[str]], Awaitable[list[bool]]],
    ) -> None:
        self._alone = alone
        self._together = together
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def accept(self, event: Event, sender: str) -> bool:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # what another one had under way (before a fork, say) ends nowhere here
            self._loop, self._timer = loop, None
            self._queue: AsyncQueue = Queue(loop.create_future, lambda turn: not turn.done())
        queue = self._queue
        turn = queue.enter(event, sender)
        if turn is None:
            try:
                return await self._alone(event, sender)
            finally:
                self._call(queue, queue.leave())
        if self._timer is None:
            self._timer = loop.call_later(PATIENCE, self._hurry, queue)
        answer = _told(await turn)
        return await self._alone(event, sender) if answer is None else answer

    def _hurry(self, queue: AsyncQueue) -> None:
        called = queue.overflow()
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._hurry, queue) if called else None
        self._call(queue, called)

    def _call(self, queue: AsyncQueue, called: Sequence[Waiting[asyncio.Future[Acceptance]]]) -> None:
        """In a task of its own: any of those who wait may be cancelled, and take nobody along."""
        if called:
            task = asyncio.create_task(self._go(queue, called), name="relaybox-accept")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _go(self, queue: AsyncQueue, called: Sequence[Waiting[asyncio.Future[Acceptance]]]) -> None:
        try:
            with _answering(called) as answers:
                answers += await self._together(*_contents(called))
        finally:
            self._call(queue, queue.leave())


Turn: TypeAlias = "Future[Acceptance | list[Waiting[Turn]]]"


class Arrivals:
    """AsyncArrivals for threads. The first that waits goes for all of them: its turn is the list of them."""

    def __init__(
        self,
        alone: Callable[[Event, str], bool],
        together: Callable[[Sequence[Event], Sequence[str]], list[bool]],
    ) -> None:
        self._alone = alone
        self._together = together
        self.after_fork()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """What its parent's threads have under way ends nowhere here."""
        self._lock = threading.Lock()
        self._queue: Queue[Turn] = Queue(Future, lambda turn: turn.set_running_or_notify_cancel())

    def accept(self, event: Event, sender: str) -> bool:
        with self._lock:
            turn = self._queue.enter(event, sender)
        if turn is None:
            try:
                return self._alone(event, sender)
            finally:
                self._call(self._queue.leave)
        answer = _told(self._wait(turn))
        return self._alone(event, sender) if answer is None else answer

    def _wait(self, turn: Turn) -> Acceptance:
        try:
            while True:
                try:
                    answer = turn.result(PATIENCE)
                    break
                except TimeoutError:
                    if not turn.running():
                        self._call(self._queue.overflow)
            if isinstance(answer, list):
                self._go(answer)
                answer = answer[0].turn.result()
        except BaseException:  # interrupted
            if not turn.cancel():
                turn.add_done_callback(self._stand_in)
            raise
        assert not isinstance(answer, list)
        return answer

    def _stand_in(self, turn: Turn) -> None:
        """For a thread that was interrupted while it was being called."""
        called = turn.result()
        if isinstance(called, list) and not called[0].turn.done():
            self._go(called)

    def _call(self, choose: Callable[[], list[Waiting[Turn]]]) -> None:
        with self._lock:
            called = choose()
        if called:
            turn = called[0].turn
            called[0] = called[0]._replace(turn=Future())
            turn.set_result(called)

    def _go(self, called: Sequence[Waiting[Turn]]) -> None:
        try:
            with _answering(called) as answers:
                answers += self._together(*_contents(called))
        finally:
            self._call(self._queue.leave)


def _contents(called: Sequence[Waiting[F]]) -> tuple[list[Event], list[str]]:
    return [waiting.event for waiting in called], [waiting.sender for waiting in called]


@contextmanager
def _answering(called: Sequence[Waiting[F]]) -> Iterator[list[Acceptance]]:
    """Whatever happens inside, all of them get an answer."""
    answers: list[Acceptance] = []
    try:
        yield answers
    except FOR_ALL as error:
        answers += [error] * len(called)
    except Exception as error:  # whose trouble it is shows when each goes alone
        log.debug("%d messages go one by one, not together: %s", len(called), type(error).__name__)
    finally:
        for waiting, answer in zip(called, answers or [None] * len(called), strict=True):
            if not waiting.turn.done():
                waiting.turn.set_result(answer)


def _told(answer: Acceptance) -> bool | None:
    if isinstance(answer, Exception):  # one for each: raising it adds where
        raise type(answer)(*answer.args) from answer
    return answer
