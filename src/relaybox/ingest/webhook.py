"""Webhooks into an inbox: an ASGI app that answers after the commit.

    receiver = WebhookReceiver(AsyncInbox(url, "orders_inbox"), secrets=["whsec_…"], sender="shop")

    uvicorn app:receiver                                            # by itself
    app.router.routes.append(Route("/hooks/shop", receiver))        # or inside FastAPI or Starlette

The headers of the signature are looked at before the body is read, the signature before anything of the body is looked
at (Standard Webhooks). Bodies are CloudEvents, one or
a batch, or anything else, kept byte for byte. What each request becomes is in webhook_events.py.

    200   stored, now or before                     408   the body came too slowly
    400   signed, and no event all the same         413   too large, or too many events in a batch
    401   not signed by one of the secrets, or not  415   compressed, or CloudEvents of a kind we cannot read
          within the tolerance                      503   the database is away, or too many requests
    405   no POST                                         are under way: send it again

Only `webhook-id`, `webhook-timestamp` and the body are signed. Headers are as trustworthy as the TLS connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from ..brokers.door import door
from ..brokers.options import positive
from ..brokers.parse import Reading
from ..brokers.webhook.signature import TOLERANCE, check_verifying, look, verify
from ..clock import SYSTEM_CLOCK, Clock
from ..durations import Duration, parse_duration
from ..errors import (
    Closed,
    ConfigError,
    InvalidEvent,
    InvalidSignature,
    PayloadTooLarge,
    SchemaDrift,
    SchemaMissing,
    SchemaTooNew,
    StoreError,
)
from ..facts import Ingested, Observer, Observers
from ..inbox.inbox import AsyncInbox
from ..store.inbox import check_sender
from .webhook_events import CHANNEL, Requests
from .webhook_request import Gone, Receive, Refused, Room, Scope, Send, headers_of, respond

log = logging.getLogger("relaybox")

MAX_BODY = 2 * 1024 * 1024  # a payload of the largest size, in an envelope
MEMORY = 16 * MAX_BODY


class WebhookReceiver:
    """An ASGI app that stores every genuine webhook in an inbox, once.

    secrets       `whsec_…` or the sender's public key, `whpk_…`, newest first; a message is genuine if it fits one.
                  Kept in memory only
    unsigned      take messages of anybody who can reach us, where something else keeps strangers away
    sender        who sends: a duplicate is the same id of the same sender. No request can say it
    reading       how to read what is neither a CloudEvent nor relaybox's, and has no `type` in its JSON
    headers       names of headers to keep beside the usual ones (trace context, correlation-id, sequence, priority)
    tolerance     how old a message may be, and how far in the future
    origins       senders that may ask for permission by the CloudEvents handshake; "*" for all, none: no handshake
    rate          requests per minute that such a sender is told it may send; none: as many as it likes
    max_body      bytes
    memory        bytes that the bodies of all requests take together; who comes beyond it is told to come again
    read_timeout  for the whole body
    timeout       for the database; a sender should wait longer
    retry_after   what a sender is told when the database is away
    """

    def __init__(
        self,
        inbox: AsyncInbox,
        *,
        secrets: Sequence[str] | str = (),
        unsigned: bool = False,
        sender: str = "",
        reading: Reading | None = None,
        headers: Sequence[str] = (),
        tolerance: Duration = TOLERANCE,
        origins: Sequence[str] | str = (),
        rate: int | None = None,
        max_body: int = MAX_BODY,
        memory: int = MEMORY,
        read_timeout: Duration = "30s",
        timeout: Duration = "10s",
        retry_after: Duration = "5s",
        observers: Sequence[Observer] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        if not isinstance(inbox, AsyncInbox):
            raise ConfigError(f"expected an AsyncInbox, got {inbox.__class__.__qualname__}")
        self._secrets = [secrets] if isinstance(secrets, str) else list(secrets)
        check_verifying(self._secrets)
        if bool(self._secrets) == unsigned:
            raise ConfigError("give secrets to check signatures with, or unsigned=True to check none; not both")
        if memory < max_body:
            raise ConfigError(f"expected memory to have room for one body of {max_body:,} bytes, got {memory:,}")
        if max_body < 1 or (rate is not None and rate < 1):
            raise ConfigError(f"expected max_body and rate to be at least 1, got {max_body} and {rate}")
        self._inbox = inbox
        check_sender(sender)
        self._sender = sender
        self._requests = Requests(reading or Reading(), headers, signed=not unsigned)
        self._tolerance = positive("tolerance", tolerance)
        self._origins = [origins] if isinstance(origins, str) else list(origins)
        self._rate = "*" if rate is None else str(rate)
        self._max_body = max_body
        self._room = Room(memory)
        self._read_timeout = positive("read_timeout", read_timeout).total_seconds()
        self._timeout = positive("timeout", timeout).total_seconds()
        self._retry_after = {
            "retry-after": str(max(1, round(parse_duration(retry_after, "retry_after").total_seconds())))
        }
        self._observers = Observers(observers)
        self._clock = clock

    def __repr__(self) -> str:
        return f"WebhookReceiver(sender={self._sender!r}, {len(self._secrets)} secrets)"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"]:
            case "http":
                await self._answer(scope, receive, send)
            case "lifespan":
                await self._live(receive, send)
            case "websocket":
                await receive()
                await send({"type": "websocket.close"})

    # -- one request --------------------------------------------------------------------------------

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        try:
            if scope["method"] == "OPTIONS" and self._origins:
                await respond(send, 200, self._permission(headers))
                return
            if scope["method"] != "POST":
                raise Refused(405, f"a {scope['method'][:10]} request", {"allow": self._methods})
            self._look(headers)
            async with self._room.body(headers, receive, self._max_body, self._read_timeout) as body:
                await self._store(headers, body)
            await respond(send, 200)
        except Refused as refused:
            level = logging.ERROR if refused.status >= 500 else logging.INFO
            log.log(level, "webhook of %s answered with %d: %s", self._sender or "?", refused.status, refused)
            closing = {"connection": "close"} if refused.status in (408, 413) and scope["http_version"] < "2" else {}
            await respond(send, refused.status, {**refused.headers, **closing})
        except Gone:
            log.info("a sender of webhooks hung up")

    def _look(self, headers: Mapping[str, str]) -> None:
        """Before anything of the body is kept."""
        try:
            if self._secrets:
                look(headers, tolerance=self._tolerance, clock=self._clock)
        except InvalidSignature as error:
            raise Refused(401, str(error)) from None

    async def _store(self, headers: Mapping[str, str], body: bytes) -> None:
        if self._secrets:
            try:
                verify(headers, body, self._secrets, tolerance=self._tolerance, clock=self._clock)
            except InvalidSignature as error:
                raise Refused(401, str(error)) from None
        try:
            with door(Refused):
                events = self._requests.events(headers, body)
        except PayloadTooLarge as error:
            raise Refused(413, str(error)) from None
        except InvalidEvent as error:
            raise Refused(400, f"no event: {error}") from None
        started = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._timeout):
                new = await self._inbox.accept_all(None, events, sender=self._sender)
        except TimeoutError:
            raise Refused(503, f"the database took longer than {self._timeout:g} s", self._retry_after) from None
        except (StoreError, Closed) as error:
            raise Refused(503, str(error), self._retry_after) from None
        except InvalidEvent as error:
            raise Refused(400, f"no event: {error}") from None
        except Exception as error:
            if self._inbox._vault is None:
                raise
            text = f"it cannot be encrypted: {type(error).__name__}"  # a key management service that is away
            raise Refused(503, text, self._retry_after) from None
        took = self._clock.monotonic() - started
        self._observers(Ingested(CHANNEL, sum(new), len(new) - sum(new), 0, took))

    @property
    def _methods(self) -> str:
        return "POST, OPTIONS" if self._origins else "POST"

    def _permission(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The abuse-protection handshake of CloudEvents: who is not named gets no permission, and no error either."""
        allow, origin = {"allow": self._methods}, headers.get("webhook-request-origin", "")
        if not origin or not ("*" in self._origins or origin in self._origins):
            return allow
        return allow | {"webhook-allowed-origin": origin, "webhook-allowed-rate": self._rate}

    # -- the server's life --------------------------------------------------------------------------

    async def _live(self, receive: Receive, send: Send) -> None:
        """Only where the receiver is the whole app; mounted in another one, that one closes the inbox."""
        while True:
            event = (await receive())["type"]
            if event == "lifespan.startup":
                try:
                    async with asyncio.timeout(self._timeout):
                        await self._inbox.verify()
                except (SchemaMissing, SchemaTooNew, SchemaDrift) as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                except (StoreError, TimeoutError) as error:
                    log.warning("webhooks are answered with 503 until the database is there: %s", error)
                await send({"type": "lifespan.startup.complete"})
            else:
                await self._inbox.close()
                await send({"type": "lifespan.shutdown.complete"})
                return
