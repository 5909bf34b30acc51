"""A channel to Google Pub/Sub: endpoint, credentials, TLS and single calls.

Requests go out through the client library's types and a bare channel: its own publisher and subscriber work in threads,
retry on their own, and can be told to log payloads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit

import google.auth
import grpc
from google.api_core.grpc_helpers_async import create_channel
from google.auth.credentials import Credentials
from google.auth.exceptions import GoogleAuthError
from google.oauth2 import service_account
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types

from ...durations import DurationField
from ...errors import ConfigError
from ...tasks import is_cancelled
from ...transport import is_remote, warn_clear
from ..connection import BrokerConnection, client_context
from ..options import check_positive

SCOPES = ("https://www.googleapis.com/auth/pubsub",)
LONGEST_TEXT = 300
# Requests and answers. The bare protobuf classes: a quarter of the time of their wrappers.
METHODS: dict[str, tuple[Any, Any]] = {
    "Publisher/GetTopic": (types.GetTopicRequest.pb(), types.Topic.pb()),
    "Publisher/Publish": (types.PublishRequest.pb(), types.PublishResponse.pb()),
    "Subscriber/GetSubscription": (types.GetSubscriptionRequest.pb(), types.Subscription.pb()),
    "Subscriber/Pull": (types.PullRequest.pb(), types.PullResponse.pb()),
    "Subscriber/Acknowledge": (types.AcknowledgeRequest.pb(), Empty),
    "Subscriber/ModifyAckDeadline": (types.ModifyAckDeadlineRequest.pb(), Empty),
}


@dataclass(frozen=True, repr=False)
class PubSubConnection(BrokerConnection):
    """Which Google Cloud project, and how to log in. As a URL: pubsub://project.

        PubSubConnection("shop-prod", endpoint="europe-west3-pubsub.googleapis.com")

    endpoint              of a region, or Google's choice
    emulator_host         host:port of an emulator, which is spoken to in plain text and without credentials, as only an
                          emulator is; None: PUBSUB_EMULATOR_HOST of the environment
    credentials           of google.auth; or:
    credentials_file      key file of a service account; without either, the application's default credentials
    ca_file               who signed the service's certificate, if gRPC does not know it
    cert_file, key_file   our own certificate, if the service wants one
    timeout               of one request
    """

    project: str
    _: KW_ONLY
    endpoint: str = "pubsub.googleapis.com"
    emulator_host: str | None = None
    credentials: Credentials | None = None
    credentials_file: Path | str | None = None
    ca_file: Path | str | None = None
    cert_file: Path | str | None = None
    key_file: Path | str | None = None
    timeout: DurationField = DurationField("8s")

    def __post_init__(self) -> None:
        if ":" in self.project and "." not in self.project.partition(":")[0]:  # example.com:shop is one, too
            raise ConfigError("expected project to be the id of a Google Cloud project, got one with a colon")
        if not self.project or "/" in self.project:
            raise ConfigError(f"expected project to be the id of a Google Cloud project, got {self.project!r}")
        if "/" in self.endpoint or "@" in self.endpoint or not self.endpoint:
            raise ConfigError("expected endpoint to be host or host:port, such as europe-west3-pubsub.googleapis.com")
        if self.credentials is not None and self.credentials_file is not None:
            raise ConfigError("expected credentials or credentials_file, not both")
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("expected cert_file and key_file together, or neither")
        client_context(self.ca_file, self.cert_file, self.key_file)  # says what is wrong with the files
        check_positive(timeout=self.timeout)

    @classmethod
    def parse(cls, url: str, options: Mapping[str, Any]) -> Self:
        parts = urlsplit(url)
        if parts.scheme != "pubsub" or not parts.netloc or parts.path.strip("/") or "@" in parts.netloc:
            raise ConfigError("expected pubsub://project")
        return cls(parts.netloc, **options)

    def __str__(self) -> str:
        return self.project


class PubSubChannel:
    """A gRPC channel to the service, when it is open."""

    def __init__(self, connection: PubSubConnection) -> None:
        self._to = connection
        self._emulator = connection.emulator_host or os.environ.get("PUBSUB_EMULATOR_HOST")
        if self._emulator and is_remote(host := urlsplit(f"//{self._emulator}").hostname or ""):
            warn_clear("an emulator of Pub/Sub", host, "leave out emulator_host and PUBSUB_EMULATOR_HOST")
        self._credentials = connection.credentials
        self._channel: grpc.aio.Channel | None = None

    @property
    def is_open(self) -> bool:
        return self._channel is not None

    async def open(self) -> None:
        """Raises ConfigError, or ConnectionError where no credentials are found."""
        if self._emulator is None and self._credentials is None:
            self._credentials = await asyncio.to_thread(self._find_credentials)
        self._channel = self._connect()

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def replace(self) -> None:
        """The channel by a new one: the old may hang on a dead connection or wait out a pause."""
        if self._channel is not None:  # closed meanwhile, it stays closed
            old, self._channel = self._channel, self._connect()
            await old.close()

    async def call(self, method: str, seconds: float | None = None, **fields: Any) -> Any:
        """The first field is the topic or subscription. `seconds` None: as long as the connection's timeout. Raises
        AioRpcError, or ConnectionError where the channel was closed."""
        if self._channel is None:
            raise ConnectionError("closed")
        request, answer = METHODS[method]
        call = self._channel.unary_unary(
            f"/google.pubsub.v1.{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        name, value = next(iter(fields.items()))
        metadata = (("x-goog-request-params", f"{name}={quote(value, safe='')}"),)
        try:
            limit = self._to.timeout.total_seconds() if seconds is None else seconds
            return await call(request(**fields), timeout=limit, metadata=metadata)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            raise ConnectionError("closed while a request was under way") from None

    def _find_credentials(self) -> Credentials:
        """Blocks: it reads files and may ask the machine's metadata server."""
        if self._to.credentials_file is None:
            try:
                return google.auth.default(scopes=SCOPES)[0]
            except GoogleAuthError as error:
                raise ConnectionError(f"{type(error).__name__}: {error}") from None
        key: Any = service_account.Credentials
        try:
            found: Credentials = key.from_service_account_file(str(self._to.credentials_file), scopes=SCOPES)
        except (OSError, ValueError, GoogleAuthError) as error:
            raise ConfigError(
                f"{self._to.credentials_file} is not the key file of a service account: {type(error).__name__}"
            ) from None
        return found

    def _connect(self) -> grpc.aio.Channel:
        # Channels to one address share their connection and its pauses, unless told not to.
        sizes = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        options = [("grpc.use_local_subchannel_pool", 1), *sizes]
        if self._emulator is not None:
            return grpc.aio.insecure_channel(self._emulator, options=options)
        files = (self._to.ca_file, self._to.key_file, self._to.cert_file)
        contents = [None if file is None else Path(file).read_bytes() for file in files]
        endpoint = self._to.endpoint
        return create_channel(
            endpoint if ":" in endpoint else f"{endpoint}:443",
            credentials=self._credentials,
            ssl_credentials=grpc.ssl_channel_credentials(*contents),
            options=options,
        )
