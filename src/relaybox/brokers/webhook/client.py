"""One POST to one endpoint, bounded in time and bytes, to an address that was checked.

The client is httpcore and no more: it has no redirects, cookies, proxies, environment or decompression that would have
to be switched off, and it takes a URL in parts, so that nothing parses it a second time.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, NamedTuple, cast

from ...errors import MissingExtra
from .ssrf import AddressRules, CheckedUrl

try:
    import httpcore
except ImportError as error:
    raise MissingExtra("httpcore", "webhook") from error

RESPONSE_BYTES = 65_536  # read of a response's body, and for no longer than:
RESPONSE_SECONDS = 1.0
IDLE_CONNECTIONS = 64
IDLE_SECONDS = 4.0  # many servers hang up after five
ADDRESSES = 4  # of one host that are tried


class Unanswered(Exception):
    """No status came. `reached` is False if there was not even a connection. The text repeats nothing that came from
    the endpoint: that may be what we sent."""

    def __init__(self, reason: str, *, reached: bool = True) -> None:
        super().__init__(reason)
        self.reached = reached


class Unsendable(Exception):
    """A header that HTTP does not carry."""


class Reply(NamedTuple):
    status: int
    retry_after: str | None


class Client:
    def __init__(
        self, rules: AddressRules, tls: ssl.SSLContext, *, connect_timeout: float, read_timeout: float
    ) -> None:
        self._timeouts = {"connect": connect_timeout, "read": read_timeout, "write": read_timeout}
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls,
            max_connections=None,  # the sink bounds them per host, and in all by what the relay gives it at a time
            max_keepalive_connections=IDLE_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=_PinnedBackend(rules),
        )

    async def close(self) -> None:
        await self._pool.aclose()

    async def post(self, target: CheckedUrl, headers: Sequence[tuple[str, str]], body: bytes, timeout: float) -> Reply:
        url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        request = httpcore.Request("POST", url, headers=headers, content=body, extensions={"timeout": self._timeouts})
        try:
            async with asyncio.timeout(timeout):
                response = await self._pool.handle_async_request(request)
        except httpcore.LocalProtocolError as error:
            raise Unsendable from error
        except httpcore.ConnectTimeout:
            raise Unanswered("could not be reached in time", reached=False) from None
        except httpcore.ConnectError as error:
            raise Unanswered(f"cannot be reached: {error}", reached=False) from None
        except httpcore.RemoteProtocolError:
            raise Unanswered("hung up, or does not speak HTTP") from None
        except (TimeoutError, httpcore.TimeoutException):
            raise Unanswered("gave no answer in time") from None
        except (OSError, httpcore.NetworkError) as error:
            raise Unanswered(f"broke the connection: {type(error).__name__}") from None
        try:
            waits = [value.decode("latin-1") for name, value in response.headers if name.lower() == b"retry-after"]
            await _read_rest(response)
            return Reply(response.status, waits[0] if waits else None)
        finally:
            await response.aclose()


async def _read_rest(response: httpcore.Response) -> None:
    """The status was the answer. So much of the body is read that the connection can be used again, else it goes."""
    left = RESPONSE_BYTES
    chunks = cast("AsyncGenerator[bytes, None]", response.aiter_stream())
    with suppress(OSError, httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError):
        async with asyncio.timeout(RESPONSE_SECONDS), aclosing(chunks):
            async for chunk in chunks:
                left -= len(chunk)
                if left < 0:
                    return


class _PinnedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were checked and never to a name: between a check and a second lookup the answer may
    have changed. Host header and TLS keep the name, which httpcore takes from the URL."""

    def __init__(self, rules: AddressRules) -> None:
        self._rules = rules
        self._dial = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                addresses = (await self._rules.addresses(host, port))[:ADDRESSES]
        except TimeoutError:
            raise httpcore.ConnectTimeout from None
        except OSError as error:
            raise httpcore.ConnectError(error) from None
        share = None if timeout is None else timeout / len(addresses)
        *others, last = addresses
        for address in others:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await self._dial.connect_tcp(str(address), port, share, local_address, socket_options)
        return await self._dial.connect_tcp(str(last), port, share, local_address, socket_options)
