"""Keywords of JSON Schema that a payload can make expensive, with a bound.

`pattern` and `patternProperties` have a limit of time for one payload, which is refused beyond it. Refusing dangerous
patterns instead would not do: no check of a pattern tells how long it takes, and many that are harmless for short texts
are quadratic. `additionalProperties` and `unevaluatedProperties` ask for the same patterns. `uniqueItems` looks at each
item once; jsonschema compares each with all others. References have the limit of models that contain themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextvars import ContextVar
from fractions import Fraction
from typing import Any, TypeAlias

import regex
from jsonschema import ValidationError
from jsonschema.validators import extend

from ..clock import SYSTEM_CLOCK
from .complaints import invalid
from .evaluated import REFERENCES, Evaluated
from .patience import go_on

Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Iterator[Any]]
SECONDS, PER_BYTE = 0.25, 5e-6  # for all patterns of one payload, and more for a large one
_left: ContextVar[list[float]] = ContextVar("left")


def limited(
    kind: Any, schema: Mapping[str, Any], registry: Any, look: Callable[[str], Any]
) -> Callable[[Any, int], list[Any]]:
    """All errors of a value of so many bytes. ContractViolation when the patterns take too long, Enough for the rest.

    look  what a reference refers to
    """
    keywords = {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
        "uniqueItems": _unique_items,
        "multipleOf": _multiple_of(kind.VALIDATORS.get("multipleOf")),
        **{word: _unevaluated(Evaluated(look, _found)) for word in ("unevaluatedProperties", "unevaluatedItems")},
        **{word: _patient(kind.VALIDATORS.get(word)) for word in REFERENCES},
    }
    known = {word: check for word, check in keywords.items() if word in kind.VALIDATORS}
    bounded = extend(kind, known)(schema, registry=registry)

    def errors(value: Any, size: int) -> list[Any]:
        limit = SECONDS + PER_BYTE * size
        _left.set([limit])
        try:
            return list(bounded.iter_errors(value))
        except TimeoutError:
            pass  # its text may quote
        raise invalid([f"payload: its texts take more than {limit:.2g} s to compare with the patterns"])

    return errors


def _found(pattern: str, text: str) -> bool:
    """Raises TimeoutError."""
    left = _left.get()
    if left[0] <= 0:
        raise TimeoutError
    began = SYSTEM_CLOCK.monotonic()
    found = regex.search(pattern, text, timeout=left[0]) is not None
    left[0] -= SYSTEM_CLOCK.monotonic() - began
    return found


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[Any]:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError("it does not match")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, __: Any) -> Iterator[Any]:
    if isinstance(instance, dict):
        for pattern, schema in patterns.items():
            for name, value in instance.items():
                if _found(pattern, name):
                    yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, wanted: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    if isinstance(instance, dict):
        named, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, value in instance.items():
            if name in named or any(_found(pattern, name) for pattern in patterns):
                continue
            if wanted is False:
                yield ValidationError("it has others")
                return
            yield from validator.descend(value, wanted, path=name)


def _unevaluated(evaluated: Evaluated) -> Keyword:
    def check(validator: Any, wanted: Any, instance: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
        if isinstance(instance, dict if "unevaluatedProperties" in schema else list):
            for entry in evaluated.others(validator, instance, schema):
                if next(validator.descend(instance[entry], wanted), None) is not None:
                    yield ValidationError("it has others")
                    return

    return check


def _multiple_of(check: Keyword) -> Keyword:
    """Numbers may be larger than a float; jsonschema says so by an OverflowError."""

    def multiple_of(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
        try:
            yield from list(check(validator, wanted, instance, schema))
        except OverflowError:
            if isinstance(instance, float) or Fraction(instance) % Fraction(wanted):
                yield ValidationError("it is no multiple")

    return multiple_of


def _patient(check: Keyword) -> Keyword:
    def patient(validator: Any, reference: Any, instance: Any, schema: Any) -> Iterator[Any]:
        go_on()
        yield from check(validator, reference, instance, schema)

    return patient


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
