"""A client of one AWS service: credentials, region, endpoint, TLS and timeouts.

botocore's own retries are off: who uses it tries again, and knows when.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, ClientError, InvalidRegionError, NoRegionError, ProfileNotFound
from botocore.loaders import Loader, create_loader
from botocore.parsers import ResponseParserError

from ...durations import DurationField
from ...errors import ConfigError
from ...transport import is_remote, warn_clear
from ..connection import BrokerConnection, client_context
from ..options import check_positive

MISSING = {"QueueDoesNotExist", "NonExistentQueue", "NotFound", "NotFoundException", "ResourceNotFoundException"}
FAILURES = (BotoCoreError, ClientError, ResponseParserError, OSError, TimeoutError)


@dataclass(frozen=True, kw_only=True, repr=False)
class AwsConnection(BrokerConnection):
    """Which AWS account and region, and how to log in. As a URL: sqs://region or sns://region.

        AwsConnection(region="eu-central-1", profile="shop")

    region               None: the environment's
    account              owner of the queues or topics that are named without an ARN or URL
    profile              of the AWS configuration
    access_key_id, secret_access_key, session_token   found where AWS programs find them (environment, profile, role),
                         unless given
    endpoint_url         a VPC endpoint, or an imitation of AWS
    ca_file              who signed the service's certificate, if the system does not know it
    cert_file, key_file  our own certificate, if the service wants one
    connect_timeout      of one connection
    """

    region: str | None = None
    account: str | None = None
    profile: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    endpoint_url: str | None = None
    ca_file: Path | str | None = None
    cert_file: Path | str | None = None
    key_file: Path | str | None = None
    connect_timeout: DurationField = DurationField("3s")

    def __post_init__(self) -> None:
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ConfigError("expected access_key_id and secret_access_key together, or neither")
        client_context(self.ca_file, self.cert_file, self.key_file)  # says what is wrong with the files
        url = self.endpoint_url
        if url is not None and (not url.startswith(("http://", "https://")) or "@" in url):
            raise ConfigError("expected endpoint_url to be https://host or http://host, without an account")
        check_positive(connect_timeout=self.connect_timeout)
        host = urlsplit(url or "").hostname or ""
        if url is not None and url.startswith("http://") and is_remote(host):
            warn_clear("AWS", host, "use https:// in endpoint_url")

    @classmethod
    def parse(cls, url: str, options: Mapping[str, Any]) -> Self:
        parts = urlsplit(url)
        if parts.scheme not in ("sqs", "sns") or parts.path.strip("/") or "@" in parts.netloc or ":" in parts.netloc:
            raise ConfigError("expected sqs://region or sns://region, without a region if the environment has it")
        return cls(**{"region": parts.netloc or None, **options})

    def __str__(self) -> str:
        return self.endpoint_url or self.region or "default region"

    async def open(self, service: str, stack: AsyncExitStack, *, connections: int, read_timeout: timedelta) -> Any:
        """The client, which closes with the stack. Raises ConfigError, or one of FAILURES."""
        certificate = None
        if self.cert_file:
            certificate = (str(self.cert_file), str(self.key_file)) if self.key_file else str(self.cert_file)
        config = AioConfig(
            connect_timeout=self.connect_timeout.total_seconds(),
            read_timeout=read_timeout.total_seconds(),
            max_pool_connections=connections + 1,  # one for the probe
            retries={"total_max_attempts": 1},
            client_cert=certificate,
        )
        session = AioSession(profile=self.profile)
        try:
            session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
            context = session.create_client(
                service,
                config=config,
                region_name=self.region,
                endpoint_url=self.endpoint_url,
                aws_access_key_id=self.access_key_id,
                aws_secret_access_key=self.secret_access_key,
                aws_session_token=self.session_token,
                verify=None if self.ca_file is None else str(self.ca_file),
            )
            return await stack.enter_async_context(context)
        except (NoRegionError, InvalidRegionError, ProfileNotFound, ValueError) as error:
            raise ConfigError(f"{service} at {self}: {error}") from None


@cache
def _loader(path: str | None) -> Loader:
    """One for all clients: each would read the description of its service again, some 50 ms."""
    return create_loader(path)
