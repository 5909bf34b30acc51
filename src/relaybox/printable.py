"""Text from outside as a log or a terminal may show it: without line breaks and without signs that command a terminal.

Every line of the logger "relaybox" goes through `Escaped`. A type or an id that came past our checks, written into a
table by another program, and the text of a stranger's error cannot forge a line.
"""

from __future__ import annotations

import logging
import traceback


class Lines(str):
    """Text of our own making that takes several lines of a log, such as a stack."""

    __slots__ = ()


FRAMES = 20  # of a stack, the innermost


def stack_of(error: BaseException, *, below: tuple[str, ...] = ()) -> Lines:
    """Where it was raised, cause first, as Python prints it but for the texts of the exceptions: values may be in them.
    `below`: without the outer frames of these folders."""
    parts, seen = [], set[int]()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        frames = traceback.extract_tb(cause.__traceback__)
        while below and len(frames) > 1 and frames[0].filename.startswith(below):
            del frames[0]
        if frames:
            kind = type(cause)
            lines = "".join(traceback.StackSummary.from_list(frames[-FRAMES:]).format())
            parts.append(f"{lines}{kind.__module__}.{kind.__qualname__}")
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return Lines("".join(f"\n{part}" for part in reversed(parts)))


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
