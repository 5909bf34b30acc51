"""How relaybox opens its own MySQL sessions: the same for every client library."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import ConfigError
from ..transport import OPTIONS
from ..words import did_you_mean
from .mysql_errors import connection_lost
from .sockets import CONNECT_SECONDS
from .spi import DialectName, Silent
from .tls import Transport, clear_password, of_mysql

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
_SSL = 0x800  # of what a server can do
_PLUGIN_AUTH = 0x80000
_OPTIONS = ("unix_socket", "connect_timeout", *OPTIONS)
# Plugins that tell the password as it is, or in the form that MySQL had before 4.1.
_CLEAR = ("mysql_clear_password", "dialog", "mysql_old_password")


class MysqlAdapter(Silent):
    dialect: DialectName = "mysql"

    def in_transaction(self) -> bool:
        """Without autocommit the next statement opens one."""
        return bool(self.raw.server_status & IN_TRANSACTION or not self.raw.get_autocommit())


class Wary:
    """Our own connections: TLS that is asked for is had. Between the names of a client library."""

    def _request_authentication(self: Any) -> Any:
        able: int = self.server_capabilities
        if able & _SSL == 0 and (getattr(self, "ssl", False) or getattr(self, "_ssl_context", None)):
            raise connection_lost("the server offers no TLS, which the database URL asks for")
        return super()._request_authentication()  # type: ignore[misc]


class Reticent(Wary):
    """Without TLS, to a remote host: a password goes out as an answer to a challenge only. The server's public key is
    as good as clear text: it is that of who answers."""

    def _request_authentication(self: Any) -> Any:
        if self.server_capabilities & _PLUGIN_AUTH == 0:
            raise clear_password("MySQL")
        return super()._request_authentication()

    def _process_auth(self, plugin_name: bytes, *rest: Any) -> Any:
        if plugin_name.decode("ascii", "replace") in _CLEAR:
            raise clear_password("MySQL")
        return super()._process_auth(plugin_name, *rest)  # type: ignore[misc]

    @property
    def server_public_key(self) -> None:
        raise clear_password("MySQL")

    @server_public_key.setter
    def server_public_key(self, key: object) -> None:
        if key is not None:
            raise clear_password("MySQL")

    _server_public_key = server_public_key  # in asyncmy


def reached(url: str) -> Transport:
    """Says what is wrong with the transport, aloud if it is no error."""
    transport = of_mysql(url)
    transport.warn("MySQL")
    return transport


def options(url: str) -> dict[str, Any]:
    """Keyword arguments both PyMySQL and asyncmy take."""
    transport = of_mysql(url)
    parts = urlsplit(transport.url)
    try:
        port = parts.port
    except ValueError:
        raise ConfigError("expected a port number in the database URL") from None
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
    for name, value in parse_qsl(parts.query):
        match name:
            case "unix_socket":
                found["unix_socket"] = value
            case "connect_timeout" if value.isdigit() and int(value) > 0:
                found["connect_timeout"] = int(value)
            case _:
                hint = "" if name in _OPTIONS else did_you_mean(name, _OPTIONS)
                raise ConfigError(
                    f"cannot use this value or the option {name!r} in a MySQL URL{hint or ';'} known are "
                    f"{', '.join(_OPTIONS)} (connect_timeout in seconds)"
                )
    if transport.tls.mode in ("verify", "require"):
        found["ssl"] = transport.tls.context()
    return found
