"""How relaybox opens its own MySQL sessions: the same for every client library."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import ConfigError
from .sockets import CONNECT_SECONDS
from .spi import DialectName, Silent
from .urls import redact

# READ COMMITTED: a locking scan then keeps only the rows it returns. STRICT: a value that does not fit is an
# error and never cut. The time zone matters only to people who look: our SQL asks for utc_timestamp().
_LEVEL = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
_MODES = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION',"
    " time_zone = '+00:00', innodb_lock_wait_timeout = 30"
)


def settings(timeout: float | None, pause: float | None) -> tuple[str, str]:
    """With a limit of its ops, a session is never idle in a transaction (that of a handler no longer than `pause`): if
    it seems so, its client is cut off. MariaDB then ends it, and lets go of what it has locked; MySQL has nothing like
    that."""
    longest = timeout if pause is None else pause
    idle = "" if longest is None else f" /*M!100300 , idle_transaction_timeout = {max(1, int(longest))} */"
    return _LEVEL, _MODES + idle


IN_TRANSACTION = 1  # of the status that the server sends with every reply
FOUND_ROWS = 2  # an UPDATE answers how many rows it found; one that was right already is not missing
_OPTIONS = ("unix_socket", "connect_timeout", "ssl", "ssl_ca", "ssl_cert", "ssl_key")


class MysqlAdapter(Silent):
    dialect: DialectName = "mysql"

    def in_transaction(self) -> bool:
        """Without autocommit the next statement opens one."""
        return bool(self.raw.server_status & IN_TRANSACTION or not self.raw.get_autocommit())


def options(url: str) -> dict[str, Any]:
    """Keyword arguments both PyMySQL and asyncmy take."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"expected a port number in the database URL, got {redact(url)!r}") from error
    found: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": port or 3306,
        "user": unquote(parts.username) if parts.username else None,
        "password": unquote(parts.password) if parts.password else "",
        "database": unquote(parts.path.lstrip("/")) or None,
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": CONNECT_SECONDS,
        "client_flag": FOUND_ROWS,
    }
    ssl: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query):
        match name:
            case "unix_socket":
                found["unix_socket"] = value
            case "connect_timeout" if value.isdigit() and int(value) > 0:
                found["connect_timeout"] = int(value)
            case "ssl" if value.lower() in ("true", "1"):
                ssl.setdefault("verify_mode", "none")
            case "ssl_ca" | "ssl_cert" | "ssl_key":
                ssl[name.removeprefix("ssl_")] = value
            case _:
                raise ConfigError(
                    f"cannot use {name}={value[:20]!r} in a MySQL URL; known are {', '.join(_OPTIONS)} "
                    "(connect_timeout in seconds, ssl=true)"
                )
    if "ca" in ssl:
        ssl["verify_mode"] = "required"
    if ssl:
        found["ssl"] = ssl
    return found
