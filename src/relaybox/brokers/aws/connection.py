"""A client of one AWS service: credentials, region, endpoint, TLS and timeouts.

botocore's own retries are off: who uses it tries again, and knows when.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from ...errors import ConfigError, MissingExtra
from ..hosts import client_context

try:
    from aiobotocore.config import AioConfig
    from aiobotocore.session import AioSession
    from botocore.exceptions import BotoCoreError, ClientError, InvalidRegionError, NoRegionError, ProfileNotFound
    from botocore.parsers import ResponseParserError
except ModuleNotFoundError as error:
    raise MissingExtra("aiobotocore", "aws") from error

MISSING = {"QueueDoesNotExist", "NonExistentQueue", "NotFound", "NotFoundException", "ResourceNotFoundException"}
FAILURES = (BotoCoreError, ClientError, ResponseParserError, OSError, TimeoutError)


class AwsConnection:
    """Credentials come from where AWS programs find them (environment, profile, role), unless given."""

    def __init__(
        self,
        service: str,
        *,
        region: str | None,
        endpoint_url: str | None,
        profile: str | None,
        access_key_id: str | None,
        secret_access_key: str | None,
        session_token: str | None,
        ca_file: Path | None,
        cert_file: Path | None,
        key_file: Path | None,
        connections: int,
        connect_timeout: timedelta,
        read_timeout: timedelta,
    ) -> None:
        if (access_key_id is None) != (secret_access_key is None):
            raise ConfigError("expected access_key_id and secret_access_key together, or neither")
        client_context(ca_file, cert_file, key_file)  # says what is wrong with the files
        if endpoint_url is not None and (not endpoint_url.startswith(("http://", "https://")) or "@" in endpoint_url):
            raise ConfigError("expected endpoint_url to be https://host or http://host, without an account")
        for name, value in (("connect_timeout", connect_timeout), ("read_timeout", read_timeout)):
            if value <= timedelta(0):
                raise ConfigError(f"expected {name} to be a positive duration, got {value}")
        self._service = service
        self._profile = profile
        self._settings: dict[str, Any] = {
            "region_name": region,
            "endpoint_url": endpoint_url,
            "aws_access_key_id": access_key_id,
            "aws_secret_access_key": secret_access_key,
            "aws_session_token": session_token,
            "verify": None if ca_file is None else str(ca_file),
        }
        certificate = None
        if cert_file:
            certificate = (str(cert_file), str(key_file)) if key_file else str(cert_file)
        self._config = AioConfig(
            connect_timeout=connect_timeout.total_seconds(),
            read_timeout=read_timeout.total_seconds(),
            max_pool_connections=connections + 1,  # one for the probe
            retries={"total_max_attempts": 1},
            client_cert=certificate,
        )
        self._stack = AsyncExitStack()

    def __str__(self) -> str:
        return str(self._settings["endpoint_url"] or self._settings["region_name"] or "default region")

    async def open(self) -> Any:
        """The client. Raises ConfigError, or one of FAILURES."""
        try:
            session = AioSession(profile=self._profile)
            context = session.create_client(self._service, config=self._config, **self._settings)
            return await self._stack.enter_async_context(context)
        except (NoRegionError, InvalidRegionError, ProfileNotFound, ValueError) as error:
            raise ConfigError(f"{self._service} at {self}: {error}") from None

    async def close(self) -> None:
        await self._stack.aclose()
