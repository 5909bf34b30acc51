"""What works, from start() to stop(): delivery of an outbox, groups, inboxes, relays, ingests, the maintainer.

    with outbox.deliver(listeners) as delivery: ...    # beside the program
    outbox.deliver(listeners).run(listen="0.0.0.0:9400")    # as the program: until SIGTERM
    outbox.deliver(listeners).once()                   # what is due now

A service has one life: once stopped, make a new one.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, cast

from .clock import SYSTEM_CLOCK, Clock
from .durations import Duration, parse_duration
from .errors import Closed, ConfigError
from .forks import renew_after_fork
from .settings import ListenSettings, Settings
from .tasks import LoopThread, cancelled
from .values import Counts, Health

if TYPE_CHECKING:
    from .observe.health import Response

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("relaybox")

PULSE = 1.0  # seconds between two signs of life of the loop
STUCK = 10  # missing signs of life
SIGNALS = (signal.SIGINT, signal.SIGTERM)
AFTER_FORK = "start it after the fork, in a hook of the server: docs/guides/gunicorn.md, docs/guides/celery.md"


class Owner(Protocol):
    """What a service stands on. It stops the service when it is closed itself."""

    def _works(self, service: Any, running: bool) -> None: ...


class Owning:
    """An outbox or an inbox with its services."""

    _running: list[Any]
    _orphaned = ""  # what went on working in the parent of this process, until it has been told

    def _check_open(self) -> None: ...

    def _forked(self) -> None:
        """Services stay with the parent. It is told when this process has something for them, because most children
        have nothing to do with us."""
        self._orphaned = ", ".join(service.name for service in self._running) or self._orphaned
        self._running.clear()

    def _tell_of_fork(self) -> None:
        if self._orphaned:
            log.warning(
                "this process was forked after %s had started in its parent: nothing is delivered here, and what is "
                "written waits for the processes that deliver; %s", self._orphaned, AFTER_FORK,
            )  # fmt: skip
            self._orphaned = ""

    def _works(self, service: Any, running: bool) -> None:
        if running:
            self._check_open()
            self._orphaned = ""
            self._running.append(service)
        elif service in self._running:
            self._running.remove(service)

    def _stop_services(self, last_first: ExitStack) -> None:
        """Of a synchronous program, as `stop_all`: together, and all of them also when one fails."""
        running = list(self._running)
        with ThreadPoolExecutor(len(running) or 1) as together:
            for stopped in [together.submit(service.stop) for service in running]:
                last_first.callback(stopped.result)


class AsyncService(ABC):
    """Something that works in the background from `start` to `stop`, such as delivery: in the event loop that starts
    it. Inside `async with` it works."""

    _pages: ListenSettings | None = None  # who may read its pages; None: as the environment says

    def __init__(self, clock: Clock = SYSTEM_CLOCK, owner: Owner | None = None) -> None:
        self._clock = clock
        self._owner = owner
        self._started = self._stopped = self._left = False
        self._pulse = clock.monotonic()
        self._pulse_task: asyncio.Task[None] | None = None
        self._ending: asyncio.Event | None = None  # of run()
        renew_after_fork(self)

    def after_fork(self) -> None:
        """The parent's loop goes on there, not here."""
        self._left = self._left or (self._started and not self._stopped)
        self._stopped = self._stopped or self._started
        self._pulse_task = None

    def _check_here(self) -> None:
        if self._left:
            raise Closed(
                f"{self.name} was started before this process was forked, and works in its parent alone; {AFTER_FORK}"
            )

    async def start(self) -> Self:
        """Returns when it works. A start that fails leaves nothing behind."""
        self._check_here()
        if self._stopped or self._started:
            raise Closed(f"{self.name} was {'stopped' if self._stopped else 'started'} already; make a new one")
        if self._owner is not None:
            self._owner._works(self, True)
        self._started = True
        self._pulse_task = asyncio.create_task(self._beat(), name="relaybox-pulse")
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def stop(self, *, timeout: Duration | None = None) -> None:
        """Begins nothing more, lets what runs finish, gives the rest back. `timeout`: how long what runs may take; as
        the settings say, if it is not given. Safe to repeat."""
        seconds = None if timeout is None else parse_duration(timeout, "timeout").total_seconds()
        if self._stopped:
            return
        self._stopped = True
        if self._ending is not None:
            self._ending.set()
        try:
            await self._stop(seconds)
        finally:
            if self._owner is not None:
                self._owner._works(self, False)
            await cancelled(self._pulse_task)

    def halt(self) -> None:  # noqa: B027 - not every service has something to hold back
        """Begins nothing more; stop() does it too. For what stops several services: none goes on beginning things until
        its turn comes."""

    async def drain(self, *, timeout: Duration | None = None) -> Counts:
        """Waits until nothing is due. TimeoutError: something still was after `timeout`."""
        self._check_here()
        if not self._started or self._stopped:
            raise Closed(f"{self.name} is not running; drain() is for a service between start() and stop()")
        async with asyncio.timeout(None if timeout is None else parse_duration(timeout, "timeout").total_seconds()):
            await self._drain()
        return self.counts

    async def once(self) -> Counts:
        """Does what is due now, and stops."""
        async with self:
            await self.drain()
        return self.counts

    async def run(self, *, listen: str | None = None, token: str | None = None) -> None:
        """Works until SIGTERM, Ctrl-C or stop(). A second signal ends the process at once. `listen`: an address, such
        as 127.0.0.1:9400, at which /live, /ready and /metrics are served; in full to those who send `token` (or
        that of the setting listen.token) as their bearer token, if there is one."""
        self._ending = asyncio.Event()
        with (
            serving(listen, self.health, token=token, settings=self._pages),
            signalled(asyncio.get_running_loop(), self._ending.set),
        ):
            async with self:
                await self._ending.wait()

    def health(self) -> Health:
        """How it does in this process. Callable from any thread."""
        if self._left:
            return Health("critical", ("it was started before this process was forked, and works in its parent alone",))
        live = self._clock.monotonic() - self._pulse < PULSE * STUCK
        if not self._started or self._stopped:
            return Health("critical", ("not running",))
        if not live:
            return Health("critical", ("the event loop is stuck",), live=False)
        if complaints := tuple(self._complaints()):
            return Health("critical", (*complaints, *self._worries()))
        worries = tuple(self._worries())
        return Health("degraded" if worries else "ok", worries)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _beat(self) -> None:
        while True:
            self._pulse = self._clock.monotonic()
            await self._clock.sleep(PULSE)

    @property
    @abstractmethod
    def name(self) -> str:
        """What it does, for people."""

    @property
    @abstractmethod
    def counts(self) -> Counts:
        """Since its start."""

    @abstractmethod
    async def _start(self) -> None: ...

    @abstractmethod
    async def _stop(self, timeout: float | None) -> None:
        """Called after a start that failed halfway, too."""

    @abstractmethod
    async def _drain(self) -> None: ...

    @abstractmethod
    def _complaints(self) -> Iterator[str]:
        """Why it does not do its work. Also asked while it starts."""

    def _worries(self) -> Iterator[str]:
        """What somebody should look at although it does its work."""
        return iter(())


class Service:
    """Something that works in the background from `start` to `stop`, such as delivery: in a thread of its own. Inside
    `with` it works."""

    def __init__(self, inner: AsyncService, owner: Owner | None = None) -> None:
        self._inner = inner
        self._owner = owner
        self._thread: LoopThread | None = None
        self._ending = threading.Event()
        renew_after_fork(self)

    def after_fork(self) -> None:
        self._thread = None
        self._ending = threading.Event()

    def start(self) -> Self:
        """Returns when it works. A start that fails leaves nothing behind."""
        self._inner._check_here()
        if self._inner._started:
            raise Closed(f"{self._inner.name} was started already; make a new one")
        if self._owner is not None:
            self._owner._works(self, True)
        self._thread = LoopThread()
        try:
            self._thread.call(self._inner.start())
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, *, timeout: Duration | None = None) -> None:
        """Begins nothing more, lets what runs finish, gives the rest back. `timeout`: how long what runs may take; as
        the settings say, if it is not given. Safe to repeat."""
        thread, self._thread = self._thread, None
        self._ending.set()
        if thread is not None:
            try:
                thread.call(self._inner.stop(timeout=timeout))
            finally:
                thread.stop()
                if self._owner is not None:
                    self._owner._works(self, False)

    def drain(self, *, timeout: Duration | None = None) -> Counts:
        """Waits until nothing is due. TimeoutError: something still was after `timeout`."""
        self._inner._check_here()
        if self._thread is None:
            raise Closed(f"{self._inner.name} is not running; drain() is for a service between start() and stop()")
        try:
            return self._thread.call(self._inner.drain(timeout=timeout))
        except CancelledError:
            raise Closed(f"{self._inner.name} was stopped before it was drained") from None

    def once(self) -> Counts:
        """Does what is due now, and stops."""
        with self:
            self.drain()
        return self.counts

    def run(self, *, listen: str | None = None, token: str | None = None) -> None:
        """Works until SIGTERM, Ctrl-C or stop(). A second signal ends the process at once. `listen`: an address, such
        as 127.0.0.1:9400, at which /live, /ready and /metrics are served; in full to those who send `token` (or
        that of the setting listen.token) as their bearer token, if there is one."""
        pages = serving(listen, self.health, token=token, settings=self._inner._pages)
        with pages, signalled(None, self._ending.set), self:
            self._ending.wait()

    def health(self) -> Health:
        """How it does in this process. Callable from any thread."""
        return self._inner.health()

    @property
    def counts(self) -> Counts:
        """Since its start."""
        return self._inner.counts

    @property
    def name(self) -> str:
        """What it does, for people."""
        return self._inner.name

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        """Where it works; if it does not, in a loop for this question alone."""
        if self._thread is not None:
            return self._thread.call(question)
        thread = LoopThread()
        try:
            return thread.call(question)
        finally:
            thread.stop()


def made_as(kind: Callable[P, AsyncService]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """For the constructor of a twin: arguments and text of the asynchronous one."""

    def decorate(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        made: Any = init
        made.__signature__, made.__doc__ = inspect.signature(kind.__init__), kind.__init__.__doc__
        return cast(Callable[Concatenate[Any, P], None], made)

    return decorate


def asks(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The method of a twin: what the asynchronous one answers, with the same arguments and text."""

    def asked(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer: T = self._ask(method(self._inner, *args, **kwargs))
        return answer

    update_wrapper(asked, method)
    return asked


async def stop_all(services: Iterable[Service | AsyncService], timeout: Duration | None = None) -> None:
    """Together: none begins anything while another is waited for. Also those that had not begun to stop when this is
    cancelled."""
    all_of_them = tuple(services)
    async with AsyncExitStack() as each:
        for service in all_of_them:
            if isinstance(service, AsyncService):
                service.halt()
            each.push_async_callback(do, service, "stop", timeout=timeout)  # nothing, where it was stopped already
        stops = (do(service, "stop", timeout=timeout) for service in all_of_them)
        for error in await asyncio.gather(*stops, return_exceptions=True):
            if error is not None:
                raise error


async def do(service: Service | AsyncService, verb: str, **options: Any) -> None:
    """A synchronous service works in a thread of its own; it is started and stopped off this loop."""
    if isinstance(service, Service):
        await asyncio.to_thread(getattr(service, verb), **options)
    else:
        await getattr(service, verb)(**options)


@asynccontextmanager
async def started(
    services: Iterable[Service | AsyncService], each: Callable[[Service | AsyncService], object]
) -> AsyncIterator[None]:
    """They work, in this order, and are stopped together; also those before one that does not start. `each` is called
    for one that has started."""
    running: list[Service | AsyncService] = []
    try:
        for service in services:
            await do(service, "start")
            running.append(service)
            each(service)
        yield
    finally:
        await stop_all(running)


async def made(found: Any, called: str) -> Any:
    """A service, or what a function without arguments makes. `called`: how the program names it."""
    if callable(found) and not isinstance(found, (Service, AsyncService)):
        if _required(found):
            raise ConfigError(f"{called} needs arguments; name a function without, or the service itself")
        found = found()
        if inspect.isawaitable(found):
            found = await found
    return found


def _required(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


@contextmanager
def serving(
    listen: str | None,
    health: Callable[[], Health],
    metrics: Callable[[], Response] | None = None,
    *,
    token: str | None = None,
    settings: ListenSettings | None = None,
) -> Iterator[None]:
    """/live, /ready and /metrics at this address; the page of the Prometheus client unless another is given. `token`:
    that of the settings, unless another is given; without settings those of the environment."""
    if not listen:
        yield
        return
    from .observe.health import HealthServer, metrics_page

    token = token or (settings or Settings.load().listen).bearer()
    server = HealthServer(listen, health, metrics or metrics_page(), token=token)
    try:
        yield
    finally:
        server.close()


@contextmanager
def signalled(loop: asyncio.AbstractEventLoop | None, stop: Callable[[], None]) -> Iterator[None]:
    """The first signal calls `stop`, in the loop if there is one. From then on a signal ends the process, even if a
    listener blocks: leases give its work to others. Only the main thread hears signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def first(*_: Any) -> None:
        for number in SIGNALS:
            signal.signal(number, lambda received, _: os._exit(128 + received))
        if loop is None:
            stop()
        else:
            loop.call_soon_threadsafe(stop)

    with ExitStack() as restored:
        for number in SIGNALS:
            restored.callback(signal.signal, number, signal.signal(number, first))
        yield
