"""Database URLs: `postgresql://`, `sqlite:///file.db`, `mysql://`, with an optional `+driver`; and `django://alias`,
which is what the settings of Django say."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit, urlunsplit

from ..errors import ConfigError, MissingExtra
from ..redaction import masked
from ..transport import OPTIONS
from ..words import did_you_mean
from .spi import DialectName
from .tls import of_mysql, of_postgres

_UNREADABLE = (
    "cannot read the database URL: expected scheme://user:password@host:port/name?option=value, with the port a number "
    "and / ? # @ in a password written as %2F %3F %23 %40"
)
DJANGO = "django:"
# What people write in URLs for libpq, and ours.
_LIBPQ = {
    "application_name",
    "channel_binding",
    "client_encoding",
    "connect_timeout",
    "dbname",
    "fallback_application_name",
    "gssencmode",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_count",
    "keepalives_idle",
    "keepalives_interval",
    "krbsrvname",
    "load_balance_hosts",
    "options",
    "passfile",
    "password",
    "port",
    "require_auth",
    "service",
    "sslcert",
    "sslcrl",
    "sslcrldir",
    "sslkey",
    "sslmode",
    "sslnegotiation",
    "sslpassword",
    "sslrootcert",
    "sslsni",
    "target_session_attrs",
    "tcp_user_timeout",
    "user",
    *OPTIONS,
}
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
        return f"Url({self.bare if self.dialect == 'sqlite' else masked(self.bare)!r})"


def resolved(url: str) -> str:
    """What it stands for by now."""
    if not url.startswith(DJANGO):
        return url
    try:
        from .django import alias_of, url_of
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "django", "django") from error
    return url_of(alias_of(url))


def parse(url: str) -> Url:
    url = resolved(url)
    try:
        parts = urlsplit(url)
        if not parts.scheme.startswith("sqlite"):
            _ = parts.port  # read lazily, and it may be no number
    except ValueError:
        raise ConfigError(_UNREADABLE) from None
    name, _, driver = parts.scheme.partition("+")
    dialect = _SCHEMES.get(name)
    if dialect is None:
        scheme = f" {parts.scheme!r}" if "://" in url else ""  # else it may be a name, with a password behind it
        raise ConfigError(
            f"unknown database URL scheme{scheme} in {masked(url)!r}{(scheme and did_you_mean(name, _SCHEMES)) or ';'} "
            "expected one of postgresql://, sqlite:///, mysql://"
        )
    if dialect == "sqlite":
        slashes, path = url.partition("://")[1:]
        file = path.removeprefix("/") or ":memory:"
        if not slashes or (path and path != ":memory:" and not path.startswith("/")):
            raise ConfigError(
                f"expected sqlite:///relative.db, sqlite:////absolute.db or sqlite://:memory:, got {masked(url)!r}"
            )
        if "?" in file and not file.startswith("file:"):
            raise ConfigError(
                f"a SQLite URL has no options; expected the name of a file in {url!r} and nothing behind it"
            )
        return Url(dialect, driver or None, file, in_memory=file == ":memory:")
    if not parts.hostname and dialect == "mysql":
        raise ConfigError(f"expected a host in the database URL, got {masked(url)!r}")
    _check_account(parts)
    scheme = "postgresql" if dialect == "postgres" else "mysql"
    bare = urlunsplit(parts._replace(scheme=scheme))
    if dialect == "postgres":
        _check_options(parts)
    (of_postgres if dialect == "postgres" else of_mysql)(bare)  # says what is wrong about TLS
    return Url(dialect, driver or None, bare)


def _check_account(parts: SplitResult) -> None:
    """Client libraries differ in where a password with such a sign ends, and would show the rest of it as a host."""
    behind = parts.path.partition("?")[0]
    if parts.netloc.count("@") > 1 or "@" in behind or "@" in parts.fragment or _is_no_query(parts.query):
        raise ConfigError(_UNREADABLE)


def _check_options(parts: SplitResult) -> None:
    """Those that are nearly ones of libpq. Others are the client library's, and some of them mean something."""
    for name in (pair.partition("=")[0] for pair in parts.query.split("&")):
        if name == "ssl":
            raise ConfigError("PostgreSQL has no option 'ssl' in a URL; did you mean tls=verify, or sslmode=require?")
        if name not in _LIBPQ and not name.startswith(("ssl", "gss")) and (hint := did_you_mean(name, _LIBPQ)):
            raise ConfigError(f"unknown option {name!r} in the database URL{hint}")


def _is_no_query(query: str) -> bool:
    return any("=" not in pair for pair in query.split("&")) if query else False
