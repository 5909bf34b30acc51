"""MySQL and MariaDB error numbers to our error tree, shared by every client.

Messages may quote values ("Duplicate entry 'x'", "near 'INSERT …'"): only those known to name nothing but
tables, columns and accounts are kept whole, the rest end before the first quote.
"""

from __future__ import annotations

from ..errors import (
    MIGRATE,
    ConnectionLost,
    DuplicateEvent,
    SchemaMissing,
    StoreBusy,
    StoreError,
    StoreFull,
)
from .spi import Translated

_DUPLICATE = frozenset({1062, 1586})
_MISSING = frozenset({1054, 1146})
# Lock wait, deadlock, NOWAIT, changed since last read, statement interrupted or out of time, certification failure.
_BUSY = frozenset({1205, 1213, 3572, 1020, 1317, 1969, 3024, 3101})
# Disk, table, and the server's memory.
_FULL = frozenset({1021, 1114, 1037, 1038, 1041})
_LOST = frozenset(
    {0, 1040, 1042, 1043, 1047, 1053, 1077, 1079, 1080, 1129, 1152, 1158, 1159, 1160, 1161, 1184, 1203, 1226, 1927,
     2002, 2003, 2005, 2006, 2012, 2013, 2014, 2026, 2055, 4031}
)  # fmt: skip
_DENIED = frozenset({1044, 1045, 1049, 1142, 1143, 1227, 1370})
_READ_ONLY = frozenset({1290, 1792, 1836})
_PACKET = 1153
_ENGINE = 1030  # "Got error 28 from storage engine": 28 is the operating system's "no space left"


def unquoted(message: str) -> str:
    cut = min((i for i in (message.find("'"), message.find('"')) if i >= 0), default=-1)
    return message if cut < 0 else message[:cut].rstrip(" :") + " …"


def connection_lost(text: str) -> ConnectionLost:
    return ConnectionLost(f"no connection to MySQL: {text.strip() or 'the connection is closed'}")


def translate_error(code: int, message: str) -> StoreError:
    if code in _DUPLICATE:
        return DuplicateEvent()
    if code in _MISSING:
        return SchemaMissing(f"{message}; {MIGRATE}")
    if code in _BUSY:
        return StoreBusy(f"MySQL gave up on a lock or a conflict ({code}): {unquoted(message)}; retry")
    if code in _FULL or (code == _ENGINE and "28" in message):
        return StoreFull(f"MySQL is out of space or memory ({code}): {unquoted(message)}")
    if code in _LOST:
        return connection_lost(f"{message or 'the connection is closed'} ({code})" if code else message)
    if code in _READ_ONLY:
        return StoreError(f"this MySQL server is read-only ({code}); connect to the primary")
    if code == _PACKET:
        return StoreError("the statement exceeds the server's max_allowed_packet; raise it or write fewer events")
    if code in _DENIED:
        return StoreError(f"MySQL denied access ({code}): {message}")
    return StoreError(f"MySQL refused ({code}): {unquoted(message)}")


def translate_exception(error: Exception) -> StoreError:
    """A client library's exception: `args` is (number, text), or a text alone when the socket is gone. MySQL
    Connector's have `errno`, where -1 is what the server has not said."""
    code, message = (*error.args, "", "")[:2]
    if isinstance(number := getattr(error, "errno", None), int):
        message = str(getattr(error, "msg", ""))
        code = 0 if number == -1 and "onnect" in message else number
    if isinstance(code, int):
        return translate_error(code, str(message))
    return translate_error(0, str(code))


def translated_from(*library: type[Exception]) -> Translated:
    """`library`: the bases of its errors."""

    def translate(error: BaseException) -> StoreError | None:
        if isinstance(error, library):
            return translate_exception(error)
        if isinstance(error, UnicodeEncodeError):
            return StoreError(
                f"this connection speaks {error.encoding}, which cannot carry the text of the statement; "
                "connect with charset='utf8mb4'"
            )
        return connection_lost(f"{type(error).__name__}: {error}") if isinstance(error, OSError | EOFError) else None

    return Translated(translate)
