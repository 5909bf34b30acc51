"""The hosts of a broker from one URL, and the TLS context to trust them with.

Hosts.parse("amqps://relay:secret@rabbit-1,rabbit-2:5671/shop", {"amqp": 5672, "amqps": 5671})
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import unquote, urlsplit

from ..errors import ConfigError


class Hosts(NamedTuple):
    scheme: str
    addresses: tuple[tuple[str, int], ...]
    username: str | None
    password: str | None
    path: str

    @classmethod
    def parse(cls, url: str, ports: Mapping[str, int]) -> Self:
        """`ports` has the schemes and their default ports."""
        expected = f"expected {'://, '.join(ports)}:// and host:port, several with commas between them"
        try:
            parts = urlsplit(url)
            account, _, hosts = parts.netloc.rpartition("@")
            each = [urlsplit(f"//{host}") for host in hosts.split(",")]
            addresses = tuple((one.hostname or "", one.port or ports.get(parts.scheme, 0)) for one in each)
        except ValueError:
            raise ConfigError(f"cannot read the sink's URL; {expected}") from None
        if parts.scheme not in ports or not all(host for host, _ in addresses):
            raise ConfigError(f"{expected}, got {parts.scheme}://{hosts}")
        if parts.query or parts.fragment:
            raise ConfigError(f"expected a URL without a query, got one in {parts.scheme}://{hosts}")
        username, _, password = (unquote(part) for part in account.partition(":"))
        return cls(parts.scheme, addresses, username or None, password or None, unquote(parts.path))

    def __str__(self) -> str:
        """Without the account, for messages."""
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.addresses)
        return f"{self.scheme}://{hosts}{self.path}"

    def __repr__(self) -> str:
        return f"Hosts({str(self)!r})"


def client_context(ca_file: Path | None, cert_file: Path | None, key_file: Path | None) -> ssl.SSLContext:
    """Certificate and host name are always verified; `ca_file` None trusts the system's authorities."""
    if key_file is not None and cert_file is None:
        raise ConfigError("key_file needs cert_file beside it")
    try:
        context = ssl.create_default_context(cafile=ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if cert_file is not None:
            # An encrypted key must not make OpenSSL ask the terminal of a daemon.
            context.load_cert_chain(cert_file, key_file, password=lambda: "")
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(str(file) for file in (ca_file, cert_file, key_file) if file is not None)
        raise ConfigError(f"cannot use the TLS files {files}: {error.strerror or error}") from None
    return context
