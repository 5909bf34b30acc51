"""How long one payload may be compared with a model that looks at parts of it again and again.

Each way to read a value may ask for all ways to read what is in it, as in models that contain themselves: a payload of
a hundred bytes can ask for more than anybody waits for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from ..clock import SYSTEM_CLOCK
from .complaints import invalid

SECONDS, PER_BYTE = 0.25, 50e-6
_end: ContextVar[float] = ContextVar("end", default=math.inf)
T = TypeVar("T")


class Enough(Exception):
    """Passes everything between `go_on` and `within`."""


def within(body: bytes, read: Callable[[], T]) -> T:
    """What `read` returns. ContractViolation when it takes too long."""
    limit = SECONDS + PER_BYTE * len(body)
    before = _end.set(SYSTEM_CLOCK.monotonic() + limit)
    try:
        return read()
    except Enough:
        pass
    finally:
        _end.reset(before)
    raise invalid([f"payload: it takes more than {limit:.3g} s to compare with the model"])


def go_on() -> None:
    """Raises Enough."""
    if SYSTEM_CLOCK.monotonic() > _end.get():
        raise Enough
