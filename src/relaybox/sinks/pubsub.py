"""Google Pub/Sub: publish requests with ordering keys.

    PubSubSink("shop-prod", endpoint="europe-west3-pubsub.googleapis.com")

The destination is the name of a topic in the project, or `projects/…/topics/…`. The ordering key is the event's key;
the content type is the attribute `content-type`. Pub/Sub keeps the order of a key that is published in one region, one
request after the other: `endpoint` sees to the first, the relay to the second. It drops no repetitions: consumers do,
by the attribute `event_id`.

The messages go out through the client library's types and a bare channel: its own publisher batches in threads, retries
on its own, and can be told to log payloads.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from ..errors import ConfigError, DeliveryError, MissingExtra, Reject, ServiceClosed, SinkUnavailable
from .hosts import client_context
from .options import split_url, typed
from .spi import Answer, Features, Message

try:
    import google.auth
    import grpc
    from google.api_core.grpc_helpers_async import create_channel
    from google.auth.credentials import Credentials
    from google.auth.exceptions import GoogleAuthError
    from google.oauth2 import service_account
    from google.pubsub_v1 import types
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status
    from grpc import StatusCode
except ModuleNotFoundError as error:
    raise MissingExtra("google-cloud-pubsub", "pubsub") from error

HOST = "pubsub.googleapis.com"
SCOPES = ("https://www.googleapis.com/auth/pubsub",)
PROBE_SECONDS = 2.0
THROTTLE_PAUSE = timedelta(seconds=1)  # where Google names none
MOST_BYTES = 9_900_000  # of a request, and so of a message: 10 MB less what the envelope may take
MOST_MESSAGES = 1000
LONGEST_TEXT = 300
TOPIC = re.compile(r"projects/[^/]+/topics/(?!goog)[A-Za-z][\w.~+%-]{2,254}", re.ASCII)

# The bare protobuf classes: a quarter of the time of their wrappers.
PubsubMessage: Any = types.PubsubMessage.pb()
PublishRequest: Any = types.PublishRequest.pb()
PublishResponse: Any = types.PublishResponse.pb()
GetTopicRequest: Any = types.GetTopicRequest.pb()
Topic: Any = types.Topic.pb()


class PubSubSink:
    """Credentials are the application's default ones, unless given. PUBSUB_EMULATOR_HOST names an emulator, which is
    spoken to in plain text and without credentials, as only an emulator is."""

    name = "pubsub"
    features = Features(keyed_order=True, dedup=False, max_bytes=MOST_BYTES, attribute_prefix="ce-")

    def __init__(
        self,
        project: str,
        *,
        endpoint: str = HOST,
        emulator_host: str | None = None,
        credentials: Credentials | None = None,
        credentials_file: Path | None = None,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        timeout: timedelta = timedelta(seconds=8),
    ) -> None:
        if not project or "/" in project:
            raise ConfigError(f"expected project to be the id of a Google Cloud project, got {project!r}")
        if "/" in endpoint or "@" in endpoint or not endpoint:
            raise ConfigError("expected endpoint to be host or host:port, such as europe-west3-pubsub.googleapis.com")
        if credentials is not None and credentials_file is not None:
            raise ConfigError("expected credentials or credentials_file, not both")
        if (cert_file is None) != (key_file is None):
            raise ConfigError("expected cert_file and key_file together, or neither")
        client_context(ca_file, cert_file, key_file)  # says what is wrong with the files
        if timeout <= timedelta(0):
            raise ConfigError(f"expected timeout to be a positive duration, got {timeout}")
        self._project = project
        self._endpoint = endpoint if ":" in endpoint else f"{endpoint}:443"
        self._emulator = emulator_host or os.environ.get("PUBSUB_EMULATOR_HOST")
        self._credentials = credentials
        self._credentials_file = credentials_file
        self._files = (ca_file, key_file, cert_file)
        self._timeout = timeout.total_seconds()
        self._channel: grpc.aio.Channel | None = None

    @classmethod
    def from_url(cls, url: str, options: Mapping[str, Any]) -> Self:
        parts, options = split_url(url, options)
        if parts.scheme != "pubsub" or not parts.netloc or parts.path.strip("/") or "@" in parts.netloc:
            raise ConfigError("expected pubsub://project")
        return cls(parts.netloc, **typed(cls, options, taken={"project"}))

    def __repr__(self) -> str:
        return f"PubSubSink({self._project!r})"

    # Life

    async def open(self) -> None:
        try:
            if self._emulator is None and self._credentials is None:
                self._credentials = await asyncio.to_thread(self._find_credentials)
            self._channel = self._connect()
            await self._ask(self._timeout)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def probe(self) -> None:
        """After a failure with a new channel: the old one may hang on a dead connection or wait out a pause."""
        channel = self._open_channel()
        try:
            await self._ask(PROBE_SECONDS)
        except SinkUnavailable:
            if self._channel is not None:  # closed meanwhile, it stays closed
                self._channel = self._connect()
                await channel.close()
            raise

    async def _ask(self, seconds: float) -> None:
        """Whether the topic exists and may be looked at does not matter, only who answers."""
        request = GetTopicRequest(topic=self._topic("relaybox-probe"))
        try:
            await self._call("GetTopic", request, Topic, "relaybox-probe", seconds)
        except DeliveryError as error:
            if isinstance(error, SinkUnavailable) and error.destination is None:
                raise

    def _find_credentials(self) -> Credentials:
        """Blocks: it reads files and may ask the machine's metadata server."""
        if self._credentials_file is None:
            try:
                return google.auth.default(scopes=SCOPES)[0]
            except GoogleAuthError as error:
                raise SinkUnavailable(f"{self!r}: {type(error).__name__}: {error}") from None
        key: Any = service_account.Credentials
        try:
            found: Credentials = key.from_service_account_file(str(self._credentials_file), scopes=SCOPES)
        except (OSError, ValueError, GoogleAuthError) as error:
            raise ConfigError(
                f"{self._credentials_file} is not the key file of a service account: {type(error).__name__}"
            ) from None
        return found

    def _connect(self) -> grpc.aio.Channel:
        # Channels to one address share their connection and its pauses, unless told not to.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        if self._emulator is not None:
            return grpc.aio.insecure_channel(self._emulator, options=options)
        files = [None if file is None else file.read_bytes() for file in self._files]
        return create_channel(
            self._endpoint,
            credentials=self._credentials,
            ssl_credentials=grpc.ssl_channel_credentials(*files),
            options=options,
        )

    def _open_channel(self) -> grpc.aio.Channel:
        if self._channel is None:
            raise ServiceClosed("the Pub/Sub sink is not open")
        return self._channel

    # Publishing

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        self._open_channel()
        answers: list[Answer] = [None] * len(messages)
        by_destination: dict[str, list[tuple[int, Any]]] = {}
        for number, message in enumerate(messages):
            ready = _message(message)
            answers[number] = refusal = _refusal(ready)
            if refusal is None:
                by_destination.setdefault(message.destination, []).append((number, ready))
        sends = (self._send(to, part, answers) for to, some in by_destination.items() for part in _parts(some))
        await asyncio.gather(*sends)
        return answers

    async def _send(self, destination: str, batch: list[tuple[int, Any]], answers: list[Answer]) -> None:
        answer: Answer = None
        try:
            request = PublishRequest(topic=self._topic(destination), messages=[message for _, message in batch])
            await self._call("Publish", request, PublishResponse, destination, self._timeout)
        except Reject as error:
            if len(batch) > 1:  # one of them: find out which
                half = len(batch) // 2
                await asyncio.gather(*(self._send(destination, b, answers) for b in (batch[:half], batch[half:])))
                return
            answer = error
        except DeliveryError as error:
            answer = error
        for number, _ in batch:
            answers[number] = answer

    async def _call(self, method: str, request: Any, response: Any, destination: str, seconds: float) -> None:
        if self._channel is None:
            raise SinkUnavailable(f"{self!r} was closed")
        call = self._channel.unary_unary(
            f"/google.pubsub.v1.Publisher/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        route = (("x-goog-request-params", f"topic={quote(request.topic, safe='')}"),)
        try:
            await call(request, timeout=seconds, metadata=route)
        except grpc.aio.AioRpcError as error:
            raise _answer(error, destination) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise SinkUnavailable(f"{self!r} was closed while a request was under way") from None

    def _topic(self, destination: str) -> str:
        topic = destination if "/" in destination else f"projects/{self._project}/topics/{destination}"
        if not TOPIC.fullmatch(topic):  # or Pub/Sub would blame the messages
            raise DeliveryError(f"expected a topic's name or projects/…/topics/…, got {destination!r}")
        return topic


def _message(message: Message) -> Any:
    attributes = {**message.attributes, "content-type": message.content_type}
    return PubsubMessage(data=message.body, attributes=attributes, ordering_key=message.key or "")


def _refusal(message: Any) -> Reject | None:
    """What Pub/Sub would refuse together with the rest of the request."""
    if message.ByteSize() > MOST_BYTES:
        return Reject(f"the message is {message.ByteSize():,} bytes, Pub/Sub takes {MOST_BYTES:,}")
    if len(message.attributes) > 100:
        return Reject(f"the message has {len(message.attributes)} attributes, Pub/Sub takes 100")
    for name, value in message.attributes.items():
        if len(name.encode()) > 256 or len(value.encode()) > 1024 or name.startswith("goog"):
            return Reject(f"Pub/Sub takes no attribute {name[:256]!r} of {len(value.encode()):,} bytes")
    return None


def _parts(messages: list[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    part: list[tuple[int, Any]] = []
    size = 0
    for number, message in messages:
        if part and (size + message.ByteSize() > MOST_BYTES or len(part) == MOST_MESSAGES):
            yield part
            part, size = [], 0
        part.append((number, message))
        size += message.ByteSize()
    yield part


def _answer(error: grpc.aio.AioRpcError, destination: str) -> DeliveryError:
    """An operator has to act on what concerns one topic: the others go on. Everything unknown is an outage."""
    said = f"Pub/Sub: {error.code().name}: {str(error.details())[:LONGEST_TEXT]}"
    match error.code():
        case StatusCode.NOT_FOUND:
            return DeliveryError(f"there is no topic {destination!r}")
        case StatusCode.INVALID_ARGUMENT:
            return Reject(said)
        case StatusCode.PERMISSION_DENIED | StatusCode.FAILED_PRECONDITION:  # also a disabled encryption key
            return SinkUnavailable(f"{said} ({destination})", destination=destination)
        case StatusCode.RESOURCE_EXHAUSTED:
            return SinkUnavailable(said, retry_after=_pause(error))
    return SinkUnavailable(said)


def _pause(error: grpc.aio.AioRpcError) -> timedelta:
    for name, value in error.trailing_metadata() or ():
        if name == "grpc-status-details-bin":
            for detail in Status.FromString(value).details:
                info = RetryInfo()
                if detail.Unpack(info):
                    pause: timedelta = info.retry_delay.ToTimedelta()
                    return pause
    return THROTTLE_PAUSE
