"""Database URLs: `postgresql://`, `sqlite:///file.db`, `mysql://`, with an optional `+driver`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from ..errors import ConfigError
from .spi import DialectName

_QUERY_PASSWORD = re.compile(r"([?&]password=)[^&#]*", re.IGNORECASE)
_SCHEMES: dict[str, DialectName] = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "sqlite": "sqlite",
    "mysql": "mysql",
    "mariadb": "mysql",
}


@dataclass(frozen=True, slots=True)
class Url:
    dialect: DialectName
    driver: str | None
    bare: str  # without the +driver, as the client libraries want it
    in_memory: bool = False

    def pool_size(self, wanted: int) -> int:
        """An in-memory SQLite database lives in one connection."""
        return 1 if self.in_memory else wanted

    def __repr__(self) -> str:
        return f"Url({redact(self.bare)!r})"


def parse(url: str) -> Url:
    try:
        parts = urlsplit(url)
        if not parts.scheme.startswith("sqlite"):
            _ = parts.port  # read lazily, and it may be no number
    except ValueError:
        raise ConfigError(
            "cannot read the database URL: expected scheme://user:password@host:port/name, with the port a number and "
            "/ ? # @ in a password written as %2F %3F %23 %40"
        ) from None
    name, _, driver = parts.scheme.partition("+")
    dialect = _SCHEMES.get(name)
    if dialect is None:
        raise ConfigError(
            f"unknown database URL scheme {parts.scheme!r} in {redact(url)!r}; expected one of "
            "postgresql://, sqlite:///, mysql://"
        )
    if dialect == "sqlite":
        slashes, path = url.partition("://")[1:]
        file = path.removeprefix("/") or ":memory:"
        if not slashes or (path and path != ":memory:" and not path.startswith("/")):
            raise ConfigError(
                f"expected sqlite:///relative.db, sqlite:////absolute.db or sqlite://:memory:, got {redact(url)!r}"
            )
        return Url(dialect, driver or None, file, in_memory=file == ":memory:")
    if not parts.hostname and dialect == "mysql":
        raise ConfigError(f"expected a host in the database URL, got {redact(url)!r}")
    scheme = "postgresql" if dialect == "postgres" else "mysql"
    return Url(dialect, driver or None, urlunsplit(parts._replace(scheme=scheme)))


def redact(url: str) -> str:
    """The URL with its password hidden, for messages."""
    try:
        parts = urlsplit(url)
        if parts.password is not None:
            url = url.replace(f":{parts.password}@", ":***@", 1)
        return _QUERY_PASSWORD.sub(r"\1***", url)
    except ValueError:
        return "<unreadable URL>"
