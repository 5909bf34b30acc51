"""Which URLs a webhook may go to, when strangers name them: nothing inside our own network, whatever the trick.

    rules = AddressRules(allow_networks=["10.8.0.0/16"])
    target = rules.target("https://hooks.example/in")        # scheme, host, port, path; ConfigError if refused
    addresses = await rules.addresses(target.host, target.port)   # resolved once, every one checked: dial these

Grammar and address table are our own. Parsers that disagree about a URL are how such checks are walked around, and
the standard library has been wrong about both brackets (CVE-2024-11168) and global addresses (CVE-2024-4032). What
the grammar does not know is refused.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple, TypeAlias

from ...errors import ConfigError, DeliveryError

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

PORTS = frozenset({443, 8443})
HTTP_PORTS = frozenset({80, 8080})  # besides those, where http is allowed at all
_LOOKUPS = 32  # at a time; a name server that hangs holds one until it gives up

# From the IANA special-purpose registries, and what clouds add to them.
_REFUSED: dict[str, str] = {
    "0.0.0.0/8": "unspecified",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "carrier-grade NAT",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "cloud metadata",  # Azure's, in the middle of public space
    "169.254.0.0/16": "link-local",  # and cloud metadata
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "protocol assignment",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "AS112",
    "192.52.193.0/24": "multicast tunnel",
    "192.88.99.0/24": "6to4 relay",
    "192.168.0.0/16": "private",
    "192.175.48.0/24": "AS112",
    "198.18.0.0/15": "benchmarking",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    # Of IPv6 only 2000::/3 is given out; what is outside has names for the sake of the message.
    "::/128": "unspecified",
    "::1/128": "loopback",
    "::ffff:0:0/96": "IPv4-mapped",
    "64:ff9b::/96": "NAT64",
    "64:ff9b:1::/48": "NAT64",
    "2001::/32": "Teredo",
    "2001::/23": "protocol assignment",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4",
    "2620:4f:8000::/48": "AS112",
    "3fff::/20": "documentation",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local",
    "ff00::/8": "multicast",
}
_TABLE = [(ip_network(network), kind) for network, kind in _REFUSED.items()]
_GLOBAL_V6 = IPv6Network("2000::/3")

_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?(?P<path>[/?][!-\"$-~]*)?",
    re.IGNORECASE | re.ASCII,
)
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_QUAD = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}", re.ASCII)


class CheckedUrl(NamedTuple):
    """A URL that passed the grammar, in parts, so that nobody has to parse it again."""

    scheme: str
    host: str  # lower case; an IPv6 address without its brackets
    port: int
    path: str  # with the query; may hold a token, so keep it out of messages

    @property
    def authority(self) -> str:
        """For the Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.scheme == "https" else 80) else f"{host}:{self.port}"

    def __repr__(self) -> str:
        return f"Target({self.scheme}://{self.authority}/…)"


def refusal(address: Address) -> str | None:
    """The kind of network that makes this address forbidden, or None."""
    for network, kind in _TABLE:
        if address in network:
            return kind
    return None if address.version == 4 or address in _GLOBAL_V6 else "unassigned"


class AddressRules:
    """The rules of one sink, and its name lookups."""

    def __init__(
        self,
        *,
        http: bool = False,
        ports: Collection[int] | None = None,
        allow_networks: Iterable[str] = (),
        resolver: Resolver | None = None,
    ) -> None:
        self._http = http
        self._ports = frozenset(ports) if ports is not None else PORTS | HTTP_PORTS if http else PORTS
        self._allowed = [_network(text) for text in allow_networks]
        self._resolve = resolver or self._look_up
        self._threads: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = None

    def target(self, url: str) -> CheckedUrl:
        """The parts of an allowed URL. Messages never quote more than scheme, host and port of it."""
        match = _URL.fullmatch(url)
        if match is None:
            raise ConfigError(
                "expected a webhook URL such as https://hooks.example/in: ASCII (hosts in their xn-- form), "
                "no user or password, no fragment, no spaces or backslashes"
            )
        scheme, host, path = match["scheme"].lower(), match["host"].lower(), match["path"] or "/"
        if scheme == "http" and not self._http:
            raise ConfigError(f"expected https for the webhook host {host!r}; plain http needs insecure_http")
        port = int(match["port"] or (443 if scheme == "https" else 80))
        if port not in self._ports:
            allowed = ", ".join(map(str, sorted(self._ports)))
            raise ConfigError(f"port {port} of the webhook host {host!r} is not one of the allowed: {allowed}")
        address = _literal(host)
        if address is not None:
            if (problem := self._problem(host, address)) is not None:
                raise ConfigError(problem)
            host = str(address)
        return CheckedUrl(scheme, host, port, path if path.startswith("/") else "/" + path)

    async def addresses(self, host: str, port: int) -> list[Address]:
        """Where to connect: all addresses of the host, resolved once. One forbidden address forbids the host: a name
        that points inside and outside is up to no good."""
        literal = _literal(f"[{host}]" if ":" in host else host)
        found = [literal] if literal is not None else [_parsed(text) for text in await self._resolve(host, port)]
        for address in found:
            if (problem := self._problem(host, address)) is not None:
                raise DeliveryError(problem)
        if not found:
            raise OSError(f"the webhook host {host!r} has no address")
        return found

    def _problem(self, host: str, address: Address) -> str | None:
        kind = refusal(address)
        if kind is None or any(address in network for network in self._allowed):
            return None
        return f"the webhook host {host!r} is at {address} ({kind}); webhooks go there only if allow_networks has it"

    async def _look_up(self, host: str, port: int) -> list[str]:
        """In threads of our own: names that do not resolve must not stop other users of the loop's."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="relaybox-lookup")
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _literal(host: str) -> Address | None:
    """The address that a host is, None for a name. Every other way to write a number is refused."""
    try:
        if host.startswith("["):
            return IPv6Address(host[1:-1])
        labels = host.split(".")
        if _NUMBER.fullmatch(labels[-1]):  # some resolvers read 0x7f.1, 017700000001 and 2130706433 as addresses
            if _QUAD.fullmatch(host):
                return IPv4Address(host)
        elif len(host) <= 253 and all(_LABEL.fullmatch(label) for label in labels):
            return None
    except ValueError:
        pass
    raise ConfigError(f"the webhook host {host!r} is neither a name nor an address in its usual form")


def _parsed(text: str) -> Address:
    try:
        return ip_address(text)
    except ValueError:
        raise DeliveryError(f"the resolver answered {text!r}, which is no address") from None


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ConfigError(f"expected allow_networks to name networks such as 10.8.0.0/16: {error}") from None
