"""Which entries of a value some keyword of a JSON Schema has looked at, for what it says of the others.

jsonschema asks so too, but of Python's `re`, which has no limit of time, and finds each entry in a list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_OTHERS = {"additionalProperties", "unevaluatedProperties"}  # they look at all that are left


class Evaluated:
    def __init__(self, look: Callable[[str], Any], found: Callable[[str, str], bool]) -> None:
        self._look, self._found = look, found

    def others(self, validator: Any, value: Any, schema: Mapping[str, Any]) -> list[Any]:
        """The names or indexes that nothing in the schema has looked at, but for its own word about them."""
        bare = {key: word for key, word in schema.items() if key not in ("unevaluatedProperties", "unevaluatedItems")}
        seen = self._seen(validator, value, bare)
        return [entry for entry in (value if isinstance(value, dict) else range(len(value))) if entry not in seen]

    def _seen(self, validator: Any, value: Any, schema: Any) -> set[Any]:
        if not isinstance(schema, Mapping):
            return set()
        seen = self._names(value, schema) if isinstance(value, dict) else _indexes(validator, value, schema)
        for part in self._beside(validator, value, schema):
            seen |= self._seen(validator, value, part)
        return seen

    def _names(self, value: Mapping[str, Any], schema: Mapping[str, Any]) -> set[str]:
        if schema.keys() & _OTHERS:
            return set(value)
        seen = set(value).intersection(schema.get("properties", ()))
        for pattern in schema.get("patternProperties", {}):
            seen |= {name for name in value if name not in seen and self._found(pattern, name)}
        return seen

    def _beside(self, validator: Any, value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
        """Schemas of the same value that it keeps."""
        yield from (self._look(schema[word]) for word in REFERENCES if word in schema)
        for word in ("allOf", "anyOf", "oneOf"):
            yield from (part for part in schema.get(word, ()) if _kept(validator, value, part))
        if "if" in schema:
            kept = _kept(validator, value, schema["if"])
            yield from (schema[word] for word in (("if", "then") if kept else ("else",)) if word in schema)
        if isinstance(value, dict):
            yield from (part for name, part in schema.get("dependentSchemas", {}).items() if name in value)


def _kept(validator: Any, value: Any, schema: Any) -> bool:
    return next(validator.descend(value, schema), None) is None


def _indexes(validator: Any, value: list[Any], schema: Mapping[str, Any]) -> set[int]:
    items = schema.get("items")
    if schema.keys() & {"additionalItems", "unevaluatedItems"} or (items is not None and not isinstance(items, list)):
        return set(range(len(value)))
    seen = set(range(len(schema.get("prefixItems", items or ()))))
    if "contains" in schema:
        seen |= {index for index, item in enumerate(value) if _kept(validator, item, schema["contains"])}
    return seen
