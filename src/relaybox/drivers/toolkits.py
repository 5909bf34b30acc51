"""What the adapters of layers above the client libraries (SQLAlchemy, Django) share."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError, StoreError
from . import wrap
from .mysql_errors import translate_exception
from .postgres_errors import connection_lost, translate_sqlstate
from .sockets import cut
from .spi import DialectName

# How a transaction begins on an autocommit connection, whatever isolation its owner prefers: after we waited for a
# lock, we look at what its holder has committed. MySQL's first line holds for the next transaction only,
# so a connection goes back to its owner as it was.
BEGIN: dict[DialectName, tuple[str, ...]] = {
    "postgres": ("BEGIN ISOLATION LEVEL READ COMMITTED",),
    "sqlite": ("BEGIN IMMEDIATE",),
    "mysql": ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN"),
}


def abort(driver: Any) -> None:
    """Cut the connection of the client library below; what none of our drivers knows is asked for its socket."""
    try:
        wrap(driver).abort()
    except ConfigError:
        if hasattr(driver, "fileno"):
            cut(driver.fileno())


def translate_cause(cause: Any, *, lost: bool) -> StoreError:
    """Ours for a client library's error, told by its class. `lost`: what an error without a code means."""
    library = type(cause).__module__.partition(".")[0]
    if library == "sqlite3":
        from .sqlite3 import translate

        return translate(cause)
    if library in ("pymysql", "asyncmy", "MySQLdb", "aiomysql", "mysql", "mariadb"):
        return translate_exception(cause)
    sqlstate = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    first_line = str(cause.args[0]).partition("\n")[0] if cause.args else ""
    if sqlstate is None:
        return connection_lost(first_line) if lost else StoreError(f"PostgreSQL refused: {first_line}")
    diagnosis = getattr(cause, "diag", None)
    return translate_sqlstate(sqlstate, getattr(diagnosis, "message_primary", None) or first_line)
