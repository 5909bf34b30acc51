"""How to reach a broker: each has one frozen dataclass of options, which its sink and its source share.

    NatsSink("tls://nats-1.example,nats-2.example?credentials_file=relay.creds")
    NatsSink(NatsConnection("tls://nats-1.example,nats-2.example", credentials_file="relay.creds"))

Both say the same. In a URL the query gives the options, as text.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast
from urllib.parse import unquote, urlsplit, urlunsplit

from ..errors import BrokerUnavailable, ConfigError, MissingExtra
from ..redaction import masked
from ..transport import Tls, TlsMode, is_remote, warn_clear, warn_unverified
from .options import read, readers, required, split_url, typed


class BrokerConnection:
    """The options of a connection. Wrong ones raise ConfigError when it is made."""

    @classmethod
    def parse(cls, url: str, options: Mapping[str, Any]) -> Self:
        """Made from a URL without a query, and options as the fields have them."""
        raise NotImplementedError

    @classmethod
    def of(cls, given: str | Self) -> Self:
        """`given` itself, or what a URL says."""
        if not isinstance(given, str):
            return given
        parts, options = split_url(given, {})
        return cls.parse(urlunsplit(parts), typed(cls, options))

    def __repr__(self) -> str:
        """Without secrets, as `str`."""
        return f"{type(self).__name__}({str(self)!r})"


C = TypeVar("C", bound=BrokerConnection)


class Connected(Generic[C]):
    """A sink or source whose first argument is a URL or a connection, and whose others are keyword arguments."""

    connection_type: ClassVar[type[BrokerConnection]]
    _connection: C

    @classmethod
    def from_url(cls, url: str, options: Mapping[str, Any]) -> Self:
        """Made from a URL, whose query gives options, and others, which win. Text becomes the type of its option."""
        parts, options = split_url(url, options)
        shared, own = readers(cls.connection_type), readers(cls)
        values = read(cls.__name__, {**shared, **own}, options)
        for name in required(cls):
            if name not in values:
                raise ConfigError(f"expected {name}, which {cls.__name__} needs; say it in the URL, as in ?{name}=…")
        given = {name: value for name, value in values.items() if name in own}
        connection = cls.connection_type.parse(
            urlunsplit(parts), {name: value for name, value in values.items() if name not in own}
        )
        return cast(Self, cast(Any, cls)(connection, **given))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self._connection)!r})"

    def _unavailable(self, reason: object) -> BrokerUnavailable:
        return BrokerUnavailable(f"{self!r}: {reason}")


class Hosts(NamedTuple):
    """The servers that a URL names, with the account in it.

    Hosts.parse("amqps://relay:secret@rabbit-1,rabbit-2:5671/shop", {"amqp": 5672, "amqps": 5671})
    """

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
            raise ConfigError(f"cannot read the broker's URL; {expected}") from None
        if parts.scheme not in ports or not all(host for host, _ in addresses):
            raise ConfigError(f"{expected}, got {parts.scheme}://{hosts}")
        if "@" in parts.path or account.count("@"):  # a password with a slash: what follows would be shown
            raise ConfigError(
                "the broker's URL has an @ behind its host; in a password write / ? # @ as %2F %3F %23 %40"
            )
        if parts.query or parts.fragment:
            raise ConfigError(f"expected a URL without a query, got one in {parts.scheme}://{hosts}")
        username, _, password = (unquote(part) for part in account.partition(":"))
        return cls(parts.scheme, addresses, username or None, password or None, unquote(parts.path))

    @property
    def authority(self) -> str:
        """host:port, several with commas between them."""
        return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.addresses)

    def __str__(self) -> str:
        """Without the account, for messages."""
        return masked(f"{self.scheme}://{self.authority}{self.path}")

    def __repr__(self) -> str:
        return f"Hosts({str(self)!r})"


@dataclass(frozen=True, repr=False)
class HostsConnection(BrokerConnection):
    """A connection to servers by their names."""

    product: ClassVar[str]
    ports: ClassVar[Mapping[str, int]]  # schemes and their default ports: without TLS, and with it

    url: str  # scheme://user:password@host:port, several hosts with commas between them
    _: KW_ONLY
    username: str | None = None
    password: str | None = None
    tls: TlsMode | None = None
    insecure_no_tls: bool = False
    ca_file: Path | str | None = None
    cert_file: Path | str | None = None
    key_file: Path | str | None = None

    def __post_init__(self) -> None:
        _, secure = self.ports
        if self.tls == "off" and self.secure:
            raise ConfigError(f"tls=off makes no sense with {self}, which asks for TLS")
        given = [name for name, value in self._for_tls().items() if value]
        if given and not self.secure:
            raise ConfigError(f"{given[0]} needs a URL that begins with {secure}://, or tls=verify, got {self}")
        _ = self._tls  # says what is wrong
        for host in (host for host, _ in self.hosts.addresses if is_remote(host)):
            self._check_network(host, f"use {secure}://")

    def _check_network(self, host: str, remedy: str) -> None:
        if self.secure and self.tls == "require":
            warn_unverified(self.product, host, "use tls=verify")
        if self.secure:
            return
        if (secret := self._told_in_clear()) and not self.insecure_no_tls:
            raise ConfigError(
                f"the {secret} for {self} would go over the network in clear text; {remedy}, or insecure_no_tls=true "
                "if you trust the network"
            )
        warn_clear(self.product, host, remedy)

    @classmethod
    def parse(cls, url: str, options: Mapping[str, Any]) -> Self:
        return cls(url, **options)

    @cached_property
    def hosts(self) -> Hosts:
        """The servers of the URL."""
        tls_port = [*self.ports.values()][1]
        return Hosts.parse(self.url, dict.fromkeys(self.ports, tls_port) if self._asks_for_tls else self.ports)

    @property
    def secure(self) -> bool:
        """Whether the URL or an option asks for TLS."""
        return self._asks_for_tls or self.hosts.scheme == [*self.ports][1]

    @property
    def _asks_for_tls(self) -> bool:
        return self.tls in ("verify", "require")

    @property
    def account(self) -> tuple[str | None, str | None]:
        """User and password."""
        username = self.hosts.username if self.username is None else self.username
        return username, self.hosts.password if self.password is None else self.password

    @cached_property
    def tls_context(self) -> ssl.SSLContext | None:
        """None: without TLS."""
        return self._tls.context() if self.secure else None

    @property
    def _tls(self) -> Tls:
        return Tls(mode=self.tls, ca_file=self.ca_file, cert_file=self.cert_file, key_file=self.key_file)

    def _told_in_clear(self) -> str | None:
        """What a login without TLS shows to the network."""
        return "password" if self.account[1] else None

    def _for_tls(self) -> dict[str, object]:
        """Options that make no sense without TLS, if they are given."""
        return {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}

    def __str__(self) -> str:
        return str(self.hosts)


def client_context(
    ca_file: Path | str | None, cert_file: Path | str | None, key_file: Path | str | None
) -> ssl.SSLContext:
    """Certificate and host name are verified; `ca_file` None trusts the system's authorities."""
    return Tls(ca_file=ca_file, cert_file=cert_file, key_file=key_file).context()


@contextmanager
def extra(package: str, name: str) -> Iterator[None]:
    """Imports that need a package which only the extra `name` of relaybox brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("relaybox"):
            raise
        raise MissingExtra(package, name) from error
