"""What a database URL says about TLS, for all client libraries alike: see `transport`.

PostgreSQL's own `sslmode`, `sslrootcert`, `sslcert` and `sslkey` mean what libpq has them mean. MySQL's `ssl=true`,
`ssl_ca`, `ssl_cert` and `ssl_key` are other words for ours.
"""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from ..errors import ConfigError, StoreError
from ..redaction import masked
from ..transport import Tls, insecure, is_remote, split_url, tls_of, warn_clear, warn_unverified

_MYSQL = {"ssl": "tls", "ssl_ca": "ca_file", "ssl_cert": "cert_file", "ssl_key": "key_file"}
_LIBPQ = {"ca_file": "sslrootcert", "cert_file": "sslcert", "key_file": "sslkey"}
_REMEDY = "add tls=verify to its URL (with ca_file=…, if the system does not know who signed its certificate)"


class Transport(NamedTuple):
    url: str  # without the options of this module
    tls: Tls
    insecure_no_tls: bool
    hosts: tuple[str, ...]  # that are not on this machine
    sslmode: str | None = None  # PostgreSQL: what libpq makes of the URL and the environment

    def __repr__(self) -> str:
        return f"Transport({masked(self.url)!r})"

    @property
    def encrypted(self) -> bool:
        """Whether TLS is certain."""
        return self.tls.mode in ("verify", "require") or self.sslmode in ("require", "verify-ca", "verify-full")

    @property
    def guarded(self) -> bool:
        """Whether a password must not be told in clear text."""
        return bool(self.hosts) and not self.encrypted and not self.insecure_no_tls

    def warn(self, what: str) -> None:
        for host in self.hosts:
            if not self.encrypted:
                warn_clear(what, host, _REMEDY)
            elif self.tls.mode == "require" or self.sslmode == "require":
                warn_unverified(what, host, _REMEDY)


@lru_cache(64)
def of_postgres(url: str) -> Transport:
    """What the environment says (PGSSLMODE, PGHOST) is what every client library hears, too."""
    url, found, rest = split_url(url, {})
    theirs = [name for name in rest if name.startswith("ssl") and name != "sslnegotiation"]
    ours = [name for name in found if name != "insecure_no_tls"]
    if ours and theirs:
        raise ConfigError(f"expected {ours[0]} or {theirs[0]} in the database URL, not both: they say the same")
    netloc = urlsplit(url).netloc.rpartition("@")[2]
    named = [*netloc.split(","), *rest.get("host", "").split(","), *rest.get("hostaddr", "").split(",")]
    hosts = [_host(each) for each in named if each] or [*os.environ.get("PGHOST", "").split(",")]
    tls = tls_of(found)
    mode = None if tls.mode else rest.get("sslmode") or os.environ.get("PGSSLMODE") or "prefer"
    return Transport(url, tls, insecure(found), tuple(filter(is_remote, hosts)), mode)


@lru_cache(64)
def of_mysql(url: str) -> Transport:
    url, found, rest = split_url(url, _MYSQL)
    host = "" if "unix_socket" in rest else urlsplit(url).hostname or ""
    return Transport(url, tls_of(found), insecure(found), (host,) if is_remote(host) else ())


def libpq(tls: Tls) -> dict[str, Any]:
    """`tls` in the words of libpq."""
    if tls.mode is None:
        return {}
    files = {_LIBPQ[name]: str(file) for name in _LIBPQ if (file := getattr(tls, name)) is not None}
    if files:
        tls.context()  # libpq would call a missing file a lost connection, at every attempt to connect
    if tls.mode != "verify":
        return {"sslmode": "require" if tls.mode == "require" else "disable", **files}
    return {"sslmode": "verify-full", "sslrootcert": _system_authorities(), **files}


def _system_authorities() -> str:
    """The file that Python trusts: a libpq from a wheel has its own OpenSSL, which looks elsewhere."""
    return ssl.get_default_verify_paths().cafile or "system"


def _host(address: str) -> str:
    """Without the port."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address


def clear_password(what: str) -> StoreError:
    """The server asks for the password in a way that shows it to the network, or to who poses as the server."""
    return StoreError(
        f"{what} asks for the password in clear text, or under a key that may be anybody's; it was not sent. Add "
        "tls=verify to the database URL, or insecure_no_tls=true if you trust the network"
    )
