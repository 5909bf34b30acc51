"""Services that work as long as an ASGI application: FastAPI, Starlette, Litestar, and others that have a lifespan.

app = FastAPI(lifespan=lifespan(outbox, outbox.deliver(listeners)))
app = Litestar(lifespan=[lifespan(outbox, outbox.deliver(listeners))])
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from ..errors import ConfigError
from ..service import AsyncService, Service, made, started

__all__ = ["lifespan"]

log = logging.getLogger("relaybox")


def lifespan(
    *parts: Service | AsyncService | AbstractContextManager[Any] | AbstractAsyncContextManager[Any] | Callable[[], Any],
    inside: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None,
) -> Callable[[Any], AbstractAsyncContextManager[Any]]:
    """The lifespan of an application. Outboxes, inboxes and other context managers among the parts are entered, then
    services are started, in this order and before the first request. After the last one the services are stopped
    together, and what was entered is left. A service that does not start is named in the log, and the application does
    not start either.

    parts   also functions without arguments that make one, for an application that starts more than once, as under
            tests
    inside  the lifespan you have: it begins before the parts and ends after them, and its state is handed on
    """

    @asynccontextmanager
    async def living(app: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as last_first:
            state = None if inside is None else await last_first.enter_async_context(_own(inside, app))
            services: list[Service | AsyncService] = []
            for part in [await _part(given) for given in parts]:
                if isinstance(part, (Service, AsyncService)):
                    services.append(part)
                else:
                    await last_first.enter_async_context(part)
            waiting = list(services)
            try:
                await last_first.enter_async_context(started(services, waiting.remove))
            except Exception as error:
                log.error("%s did not start: %s: %s", waiting[0].name, type(error).__name__, error)
                raise
            yield state

    return living


async def _part(given: Any) -> Service | AsyncService | AbstractAsyncContextManager[Any]:
    if not isinstance(given, (AbstractAsyncContextManager, AbstractContextManager)):
        given = await made(given, getattr(given, "__qualname__", "a part of the lifespan"))
    if isinstance(given, (Service, AsyncService, AbstractAsyncContextManager)):
        return given
    if isinstance(given, AbstractContextManager):
        return _off_loop(given)
    raise ConfigError(
        f"expected a service, such as outbox.deliver(listeners), an outbox or an inbox, got {type(given).__name__}"
    )


@asynccontextmanager
async def _off_loop(context: AbstractContextManager[Any]) -> AsyncIterator[None]:
    """One that may block."""
    await asyncio.to_thread(context.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


def _own(inside: Callable[[Any], Any], app: Any) -> AbstractAsyncContextManager[Any]:
    found = inside(app)
    if not isinstance(found, AbstractAsyncContextManager):
        raise ConfigError(
            "expected inside to be a lifespan: a function of the application that @asynccontextmanager decorates, "
            f"got one that returns {type(found).__name__}"
        )
    return found
