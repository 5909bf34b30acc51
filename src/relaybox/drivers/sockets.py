"""How a connection notices that the network is gone: probes while it is idle, a limit for what it sent and nobody
confirmed, and one for connecting. Without them a kernel waits for a quarter of an hour, or for ever.

What a URL says wins; its names are libpq's, for every PostgreSQL client.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ..errors import ConfigError

CONNECT_SECONDS = 10
UNCONFIRMED_SECONDS = 30.0
_SOCKET = ("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout")
_NAMES = ("connect_timeout", *_SOCKET)


def libpq_options(given: Mapping[str, Any], timeout: float | None) -> dict[str, int]:
    """Keepalive options that `given` leaves open. A silent peer of an idle connection is found out within a minute."""
    unconfirmed = UNCONFIRMED_SECONDS if timeout is None else min(timeout, UNCONFIRMED_SECONDS)
    ours = {
        "connect_timeout": CONNECT_SECONDS,
        "keepalives": 1,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": max(1, int(unconfirmed * 1000)),
    }
    if os.environ.get("PGCONNECT_TIMEOUT"):
        del ours["connect_timeout"]
    return {name: value for name, value in ours.items() if given.get(name) is None}


def split(url: str, timeout: float | None) -> tuple[str, dict[str, int]]:
    """The URL without what its client does not know, and all options: those of the URL, then ours."""
    parts = urlsplit(url)
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    given = {name: _number(name, value) for name, value in pairs if name in _NAMES}
    if given:
        url = urlunsplit(parts._replace(query=urlencode([pair for pair in pairs if pair[0] not in _NAMES])))
    return url, {**libpq_options(given, timeout), **given}


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"expected {name} in the database URL to be a whole number, got {value[:20]!r}") from None


def cut(descriptor: int) -> None:
    """End a connection under a thread or a loop that waits for it: its next read finds the end of the stream."""
    with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def set_keepalive(connection: socket.socket | None, options: Mapping[str, int]) -> None:
    """Sets the options that the kernel has; a Unix socket needs none."""
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(options["keepalives"] != 0))
    for option, name in (
        ("TCP_KEEPIDLE", "keepalives_idle"),
        ("TCP_KEEPINTVL", "keepalives_interval"),
        ("TCP_KEEPCNT", "keepalives_count"),
        ("TCP_USER_TIMEOUT", "tcp_user_timeout"),
    ):
        with suppress(OSError):
            if hasattr(socket, option) and options[name] > 0:
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), options[name])
