"""A channel to Google Pub/Sub: endpoint, credentials, TLS and single calls.

Requests go out through the client library's types and a bare channel: its own publisher and subscriber work in threads,
retry on their own, and can be told to log payloads.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from ...errors import ConfigError, MissingExtra
from ..hosts import client_context

try:
    import google.auth
    import grpc
    from google.api_core.grpc_helpers_async import create_channel
    from google.auth.credentials import Credentials
    from google.auth.exceptions import GoogleAuthError
    from google.oauth2 import service_account
except ModuleNotFoundError as error:
    raise MissingExtra("google-cloud-pubsub", "pubsub") from error

HOST = "pubsub.googleapis.com"
SCOPES = ("https://www.googleapis.com/auth/pubsub",)


class PubSubConnection:
    """Credentials are the application's default ones, unless given. PUBSUB_EMULATOR_HOST names an emulator, which is
    spoken to in plain text and without credentials, as only an emulator is."""

    def __init__(
        self,
        project: str,
        *,
        endpoint: str,
        emulator_host: str | None,
        credentials: Credentials | None,
        credentials_file: Path | None,
        ca_file: Path | None,
        cert_file: Path | None,
        key_file: Path | None,
        timeout: timedelta,
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
        self._endpoint = endpoint if ":" in endpoint else f"{endpoint}:443"
        self._emulator = emulator_host or os.environ.get("PUBSUB_EMULATOR_HOST")
        self._credentials = credentials
        self._credentials_file = credentials_file
        self._files = (ca_file, key_file, cert_file)
        self.channel: grpc.aio.Channel | None = None

    async def open(self) -> None:
        """Raises ConfigError, or ConnectionError where no credentials are found."""
        if self._emulator is None and self._credentials is None:
            self._credentials = await asyncio.to_thread(self._find_credentials)
        self.channel = self._connect()

    async def close(self) -> None:
        channel, self.channel = self.channel, None
        if channel is not None:
            await channel.close()

    async def replace(self) -> None:
        """The channel by a new one: the old may hang on a dead connection or wait out a pause."""
        if self.channel is not None:  # closed meanwhile, it stays closed
            old, self.channel = self.channel, self._connect()
            await old.close()

    async def call(
        self,
        service: Literal["Publisher", "Subscriber"],
        method: str,
        request: Any,
        response: Any,
        seconds: float,
        **route: str,
    ) -> Any:
        """Raises AioRpcError, or ConnectionError where the connection was closed."""
        if self.channel is None:
            raise ConnectionError("closed")
        call = self.channel.unary_unary(
            f"/google.pubsub.v1.{service}/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        [(name, value)] = route.items()
        metadata = (("x-goog-request-params", f"{name}={quote(value, safe='')}"),)
        try:
            return await call(request, timeout=seconds, metadata=metadata)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ConnectionError("closed while a request was under way") from None

    def _find_credentials(self) -> Credentials:
        """Blocks: it reads files and may ask the machine's metadata server."""
        if self._credentials_file is None:
            try:
                return google.auth.default(scopes=SCOPES)[0]
            except GoogleAuthError as error:
                raise ConnectionError(f"{type(error).__name__}: {error}") from None
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
        sizes = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        options = [("grpc.use_local_subchannel_pool", 1), *sizes]
        if self._emulator is not None:
            return grpc.aio.insecure_channel(self._emulator, options=options)
        files = [None if file is None else file.read_bytes() for file in self._files]
        return create_channel(
            self._endpoint,
            credentials=self._credentials,
            ssl_credentials=grpc.ssl_channel_credentials(*files),
            options=options,
        )
