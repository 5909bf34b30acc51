"""Keywords of JSON Schema that a payload can make expensive, with a bound.

`pattern` and `patternProperties` have a limit of time for one payload, which is refused beyond it. Refusing dangerous
patterns instead would not do: no check of a pattern tells how long it takes, and many that are harmless for short texts
are quadratic. `uniqueItems` looks at each item once; jsonschema compares each with all others.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import regex
from jsonschema import ValidationError
from jsonschema.validators import extend

from ..clock import SYSTEM_CLOCK
from .complaints import invalid

SECONDS = 0.25  # for all patterns of one payload
_deadline: ContextVar[float] = ContextVar("deadline")


def limited(kind: Any, schema: Mapping[str, Any], registry: Any) -> Callable[[Any], list[Any]]:
    """All errors of a value. Raises ContractViolation when the patterns take too long."""
    keywords = {"pattern": _pattern, "patternProperties": _pattern_properties, "uniqueItems": _unique_items}
    bounded = extend(kind, keywords)(schema, registry=registry)

    def errors(value: Any) -> list[Any]:
        _deadline.set(SYSTEM_CLOCK.monotonic() + SECONDS)
        try:
            return list(bounded.iter_errors(value))
        except TimeoutError:
            pass  # its text may quote
        raise invalid([f"payload: its texts take more than {SECONDS:g} s to compare with the patterns"])

    return errors


def _found(pattern: str, text: str) -> bool:
    """Raises TimeoutError."""
    left = _deadline.get() - SYSTEM_CLOCK.monotonic()
    return regex.search(pattern, text, timeout=max(left, 0.001)) is not None


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError("it does not match")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, __: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, schema in patterns.items():
            for name, value in instance.items():
                if _found(pattern, name):
                    yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _unique_items(_: Any, wanted: bool, instance: Any, __: Any) -> Iterator[Any]:
    if wanted and isinstance(instance, list) and len({_frozen(item) for item in instance}) < len(instance):
        yield ValidationError("it has an item twice")


def _frozen(value: Any) -> Hashable:
    """Equal for what JSON Schema calls equal: 1 is 1.0, and not true."""
    if isinstance(value, dict):
        return "object", frozenset((name, _frozen(item)) for name, item in value.items())
    if isinstance(value, list):
        return "array", tuple(map(_frozen, value))
    return ("boolean", value) if isinstance(value, bool) else value
