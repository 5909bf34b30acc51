"""Webhooks: one signed POST per event (Standard Webhooks), to endpoints that strangers may have named.

    WebhookSink(endpoints={"crm": Endpoint(url="https://crm.example/hooks", secrets=["whsec_…"])})

A destination is the name of an endpoint or a URL. Nothing an endpoint does can hurt: it gets a bounded number of
requests, of seconds and of bytes (client.py), and no way into our own network (ssrf.py). What its answer means
is in answers.py.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Self
from weakref import WeakValueDictionary

from ...clock import SYSTEM_CLOCK, Clock
from ...durations import Duration, format_duration, parse_duration
from ...errors import BrokerUnavailable, Closed, ConfigError, DeliveryError, Reject
from ..connection import client_context
from ..options import positive, split_url, typed
from ..spi import Answer, DestinationLimits, Features, Message
from .answers import GATEWAY, GONE, answer_to, parse_retry_after
from .client import Client, Unanswered, Unsendable
from .headers import OURS, HeaderRule
from .signature import ID, Key, check_signing, sign
from .ssrf import AddressRules, CheckedUrl, Resolver

log = logging.getLogger("relaybox")

MOST_LANES = 10_000  # URLs remembered; names always are
MOST_UNANSWERED = 1_000  # event ids, per destination

_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^`|~-]+")
_HEADER_VALUE = re.compile(r"[\t -~]*")
_BY_ENDPOINT = OURS - {"accept", "authorization", "cookie", "user-agent"}  # not for an endpoint's headers either


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One receiver. Every field but the URL has a default in the sink."""

    url: str
    secrets: Sequence[str] | str = ()  # whsec_… or whsk_…, newest first; all of them sign: receivers change at leisure
    headers: Mapping[str, str] = field(default_factory=dict)  # sent along, such as Authorization
    timeout: Duration | None = None
    max_in_flight: int | None = None

    def __repr__(self) -> str:
        return f"Endpoint({len(_listed(self.secrets))} secrets, {len(self.headers)} headers)"


@dataclass(slots=True, eq=False)
class _Lane:
    """One destination: where it is, what it is sent, and how it fares."""

    destination: str
    name: str  # for messages: a URL may hold a token
    target: CheckedUrl
    keys: Callable[[], Sequence[Key]]
    headers: Mapping[str, str]
    timeout: float
    most: int  # requests at a time
    slots: Sequence[asyncio.Semaphore]
    gone: bool = False
    succeeded: float = -math.inf  # when it last did, on the monotonic clock
    failing_since: float | None = None
    unanswered: dict[str, float] = field(default_factory=dict)  # event ids, and when nothing came back for them


class WebhookSink:
    """Posts events to HTTP endpoints, signed.

    endpoints            receivers by name, which are then destinations
    secrets              for destinations that are URLs, newest first; `whsec_…`, or `whsk_…` for asymmetric signatures
    url_secrets          instead of those, by URL: a mapping, or a function of the URL, which is asked for each message
    event_headers        headers that events may set besides the usual ones; a name that ends in * is a prefix
    timeout              of one request, from the name lookup to the status
    connect_timeout      name lookup, connection and TLS
    read_timeout         longest silence
    max_in_flight        requests at a time, per destination
    max_per_host         requests at a time to all destinations of a host
    longest_retry_after  an endpoint may ask for a pause, up to this
    patience             an outage that lasts longer counts as failed attempts
    ports                destinations may have; 443 and 8443, with insecure_http also 80 and 8080
    allow_networks       of our own, such as 10.8.0.0/16, where webhooks may go
    ca_file              who signed the endpoints' certificates, if the system does not know them
    cert_file, key_file  our own certificate, for endpoints that ask for one
    insecure_http        let http:// be a destination
    insecure_unsigned    let a destination have no secret
    """

    name = "webhook"
    features = Features(
        keyed_order=True,  # one request of a key at a time
        dedup=False,
        batch=64,
        by_destination=True,
        attribute_prefix="ce-",
        percent_encoded=True,
    )

    def __init__(
        self,
        *,
        endpoints: Mapping[str, Endpoint | Mapping[str, Any]] | None = None,
        secrets: Sequence[str] | str = (),
        url_secrets: Mapping[str, Sequence[str] | str] | Callable[[str], Sequence[str] | str] | None = None,
        event_headers: Sequence[str] | str = (),
        timeout: Duration = "15s",
        connect_timeout: Duration = "5s",
        read_timeout: Duration = "10s",
        max_in_flight: int = 8,
        max_per_host: int = 32,
        longest_retry_after: Duration = "1h",
        patience: Duration = "3d",
        ports: Sequence[int] | str | None = None,
        allow_networks: Sequence[str] | str = (),
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        insecure_http: bool = False,
        insecure_unsigned: bool = False,
        clock: Clock = SYSTEM_CLOCK,
        resolver: Resolver | None = None,
    ) -> None:
        self._rules = AddressRules(
            http=insecure_http,
            ports=None if ports is None else [_port(port) for port in _listed(ports)],
            allow_networks=_listed(allow_networks),
            resolver=resolver,
        )
        self._secrets = check_listed(secrets)
        self._url_secrets = _by_url(url_secrets)
        self._events_may = HeaderRule(_listed(event_headers))
        self._timeout = _seconds("timeout", timeout)
        self._connect_timeout = _seconds("connect_timeout", connect_timeout)
        self._read_timeout = _seconds("read_timeout", read_timeout)
        self._max_in_flight = _count("max_in_flight", max_in_flight)
        self._max_per_host = _count("max_per_host", max_per_host)
        self._longest_retry_after = parse_duration(longest_retry_after, "longest_retry_after")
        self._patience = parse_duration(patience, "patience")
        self._tls_files = (ca_file, cert_file, key_file)
        self._insecure = [name for name, given in (("http", insecure_http), ("unsigned", insecure_unsigned)) if given]
        self._unsigned = insecure_unsigned
        self._clock = clock
        self._host_slots: WeakValueDictionary[tuple[str, int], asyncio.Semaphore] = WeakValueDictionary()
        self._named = {name: self._named_lane(name, given) for name, given in (endpoints or {}).items()}
        self._by_url: dict[str, _Lane] = {}
        self._client: Client | None = None
        self._running: set[asyncio.Task[Answer]] = set()

    @classmethod
    def from_url(cls, url: str, options: Mapping[str, Any]) -> Self:
        """`webhook://` with all else as options, or the URL of one endpoint, whose name is then `default`."""
        if url.partition(":")[0].lower() == "webhook":
            parts, options = split_url(url, options)
            if parts.netloc or parts.path:
                raise ConfigError("expected webhook:// without a host; name the URL or the endpoint in `to`")
            return cls(**typed(cls, options))
        given = typed(cls, options)
        one = Endpoint(url=url, secrets=given.get("secrets", ()))
        return cls(**given | {"endpoints": {**given.get("endpoints", {}), "default": one}})

    def __repr__(self) -> str:
        return f"WebhookSink({', '.join(sorted(self._named)) or 'URLs'})"

    # -- life ---------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Nothing is dialled: endpoints come and go, and none stands for the others."""
        if self._client is not None:
            return
        for name in self._insecure:
            log.warning("webhooks: insecure_%s is on", name)
        self._client = Client(
            self._rules,
            client_context(*self._tls_files),
            connect_timeout=self._connect_timeout,
            read_timeout=self._read_timeout,
        )

    async def probe(self) -> None:
        """Outages concern single destinations: the sink itself is there whenever it is open."""
        self._opened()

    async def close(self) -> None:
        client, self._client = self._client, None
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        if client is not None:
            await client.close()
        self._rules.close()

    def _opened(self) -> Client:
        if self._client is None:
            raise Closed("this webhook sink is not open")
        return self._client

    def limits(self, destination: str) -> DestinationLimits:
        """For the relay, which gives each destination a queue."""
        lane = self._lane(destination)
        return DestinationLimits(lane.name, lane.most, f"{lane.target.host}:{lane.target.port}", self._max_per_host)

    # -- publishing ---------------------------------------------------------------------------------

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        self._opened()
        away: dict[str, BrokerUnavailable] = {}  # found out in this call; nothing more is sent there
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._deliver(message, away)) for message in messages]
            self._running.update(tasks)
            for task in tasks:
                task.add_done_callback(self._running.discard)
        return [BrokerUnavailable("the sink was closed") if task.cancelled() else task.result() for task in tasks]

    async def _deliver(self, message: Message, away: dict[str, BrokerUnavailable]) -> Answer:
        try:
            lane = self._lane(message.destination)
            async with AsyncExitStack() as held:
                for slots in lane.slots:
                    await held.enter_async_context(slots)
                if message.destination in away:
                    return away[message.destination]
                answer = await self._send(lane, message)
            if isinstance(answer, BrokerUnavailable):
                away[message.destination] = answer
            return answer
        except Exception as error:
            return error

    async def _send(self, lane: _Lane, message: Message) -> Answer:
        if lane.gone:
            return Reject(f"{lane.name} answered {GONE} before: it gets nothing more from this process")
        try:
            reply = await self._opened().post(lane.target, self._headers(lane, message), message.body, lane.timeout)
        except Unsendable:
            return Reject(f"event {message.id} has a header that HTTP cannot carry")
        except Unanswered as error:
            outage = BrokerUnavailable(f"{lane.name} {error}", destination=lane.destination)
            return self._away(lane, message, outage, reached=error.reached)
        retry_after = parse_retry_after(reply.retry_after, self._clock.now(), self._longest_retry_after)
        answer = answer_to(reply.status, retry_after, lane.name, lane.destination)
        if isinstance(answer, BrokerUnavailable):
            return self._away(lane, message, answer, reached=reply.status in GATEWAY)
        lane.failing_since = None
        lane.unanswered.pop(message.id, None)
        if answer is None:
            lane.succeeded = self._clock.monotonic()
        elif reply.status == GONE:
            lane.gone = True
            log.warning("%s answered %d: it is switched off until this process restarts", lane.name, GONE)
        return answer

    def _away(self, lane: _Lane, message: Message, outage: BrokerUnavailable, *, reached: bool) -> DeliveryError:
        """An outage, unless the event seems to cause it (it went unanswered before, and others succeeded since), or it
        has lasted too long to be one: these are counted."""
        now = self._clock.monotonic()
        if reached:
            before = lane.unanswered.pop(message.id, math.inf)
            lane.unanswered[message.id] = now
            if len(lane.unanswered) > MOST_UNANSWERED:
                del lane.unanswered[next(iter(lane.unanswered))]
            if lane.succeeded > before:
                return DeliveryError(f"{outage}, for the second time, and took others meanwhile")
        if lane.failing_since is None:
            lane.failing_since = now
        elif now - lane.failing_since > self._patience.total_seconds():
            return DeliveryError(f"{outage}, as it has for more than {format_duration(self._patience)}")
        return outage

    def _headers(self, lane: _Lane, message: Message) -> list[tuple[str, str]]:
        if not ID.fullmatch(message.id):
            raise Reject(f"the event id {message.id!r} cannot be a webhook id: printable ASCII without dots")
        if not _HEADER_VALUE.fullmatch(message.content_type):
            raise Reject(f"the content type of event {message.id} cannot be a header")
        timestamp = int(self._clock.now().timestamp())
        headers = {
            "host": lane.target.authority,
            "user-agent": "relaybox",
            "accept": "*/*",
            "accept-encoding": "identity",
            "content-type": message.content_type,
            "content-length": str(len(message.body)),
            "webhook-id": message.id,
            "webhook-timestamp": str(timestamp),
        }
        if keys := lane.keys():
            headers["webhook-signature"] = sign(keys, message.id, timestamp, message.body)
        headers |= lane.headers
        for name, value in self._events_may.allowed(message):
            headers.setdefault(name, value)
        return list(headers.items())

    # -- destinations -------------------------------------------------------------------------------

    def _lane(self, destination: str) -> _Lane:
        lane = self._named.get(destination) or self._by_url.get(destination)
        if lane is not None:
            return lane
        if "://" not in destination:
            known = ", ".join(sorted(self._named)) or "none"
            raise DeliveryError(f"{destination!r} is no URL and no webhook endpoint; configured: {known}")
        try:
            lane = self._make_lane(destination, None, Endpoint(url=destination))
        except ConfigError as error:
            raise DeliveryError(str(error)) from None
        if len(self._by_url) >= MOST_LANES:
            del self._by_url[next(iter(self._by_url))]
        self._by_url[destination] = lane
        return lane

    def _named_lane(self, name: str, given: Endpoint | Mapping[str, Any]) -> _Lane:
        if not name or "://" in name:
            raise ConfigError(f"expected an endpoint's name to be no URL, got {name!r}")
        try:
            if not isinstance(given, Endpoint):
                options = typed(Endpoint, given)
                if "url" not in options:
                    raise ConfigError("it needs a url")
                given = Endpoint(**options)
            return self._make_lane(name, name, given)
        except ConfigError as error:
            raise ConfigError(f"the webhook endpoint {name!r}: {error}") from None

    def _make_lane(self, destination: str, name: str | None, endpoint: Endpoint) -> _Lane:
        target = self._rules.target(endpoint.url)
        keys = self._keys_of(name, endpoint)
        if not self._unsigned and not keys():
            raise ConfigError("messages are signed: give secrets, or set insecure_unsigned")
        host = self._host_slots.setdefault((target.host, target.port), asyncio.Semaphore(self._max_per_host))
        own = self._max_in_flight if endpoint.max_in_flight is None else _count("max_in_flight", endpoint.max_in_flight)
        own = min(own, self._max_per_host)
        return _Lane(
            destination,
            f"the webhook endpoint {name or target.scheme + '://' + target.authority}",
            target,
            keys,
            dict(_endpoint_headers(endpoint.headers)),
            self._timeout if endpoint.timeout is None else _seconds("timeout", endpoint.timeout),
            own,
            [asyncio.Semaphore(own), host],
        )

    def _keys_of(self, name: str | None, endpoint: Endpoint) -> Callable[[], Sequence[Key]]:
        if name is not None or self._url_secrets is None:
            keys = check_signing(_listed(endpoint.secrets) if name is not None else self._secrets)
            return lambda: keys
        ask, url, parsed = self._url_secrets, endpoint.url, lru_cache(1)(lambda *given: check_signing(given))

        def asked() -> Sequence[Key]:
            try:
                given = ask(url)
            except Exception as error:  # its text may quote what it should not
                raise DeliveryError(f"url_secrets failed for a webhook: {type(error).__name__}") from None
            return parsed(*(self._secrets if given is None else _listed(given)))

        return asked


def check_listed(given: Sequence[str] | str) -> list[str]:
    secrets = _listed(given)
    check_signing(secrets)
    return secrets


def _by_url(given: Any) -> Callable[[str], Sequence[str] | str | None] | None:
    if given is None or callable(given):
        return given  # type: ignore[no-any-return]
    secrets = {url: check_listed(value) for url, value in given.items()}
    return secrets.get


def _endpoint_headers(given: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    for name, value in given.items():
        lower = name.lower()
        if not _HEADER_NAME.fullmatch(lower) or lower in _BY_ENDPOINT:
            raise ConfigError(f"the header {name!r} cannot be set for an endpoint")
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise ConfigError(f"expected the header {name!r} to be printable ASCII")
        yield lower, value


def _listed(given: Sequence[Any] | str) -> list[str]:
    """Options come as lists from code and files, and as comma-separated text from elsewhere."""
    return given.replace(",", " ").split() if isinstance(given, str) else [str(item) for item in given]


def _port(text: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= 65_535:
        raise ConfigError(f"expected ports to be numbers from 1 to 65535, got {text!r}")
    return int(text)


def _count(name: str, value: int) -> int:
    if not isinstance(value, int) or value < 1:
        raise ConfigError(f"expected {name} to be a number of at least 1, got {value!r}")
    return value


def _seconds(name: str, value: Duration) -> float:
    return positive(name, value).total_seconds()
