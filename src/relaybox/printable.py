"""Text from outside as a log or a terminal may show it: without line breaks and without signs that command a terminal.

Every line of the logger "relaybox" goes through `Escaped`. A type or an id that came past our checks, written into a
table by another program, and the text of a stranger's error cannot forge a line.
"""

from __future__ import annotations

import logging


class Lines(str):
    """Text of our own making that takes several lines of a log, such as a stack."""

    __slots__ = ()


def escaped(text: str, but: str = "") -> str:
    """Signs that cannot be printed as Python writes them in a literal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in but else c.encode("unicode_escape").decode() for c in text)


class Escaped(logging.Filter):
    """Escapes what a line shows of strings, errors and all else that has a text."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_shown, record.args))
        return True


def _shown(value: object) -> object:
    if value is None or isinstance(value, (int, float, Lines)):
        return value
    if isinstance(value, (str, BaseException)):
        return escaped(str(value))
    return value  # shown by its repr, which is ours


log = logging.getLogger("relaybox")
log.addFilter(Escaped())
