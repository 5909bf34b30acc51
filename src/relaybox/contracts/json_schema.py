"""A JSON Schema as a payload model; checking needs the extra `jsonschema`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from ..errors import ConfigError, MissingExtra
from .complaints import invalid, parts_of, place, property_names, undecodable
from .encoding import decoded
from .patience import within

_LONGEST = 80  # part of a schema in a complaint


class JsonSchema:
    """Formats are not checked: JSON Schema calls them annotations.

    What a payload can make expensive is bounded, see schema_limits.py and patience.py."""

    def __init__(self, schema: Mapping[str, Any], *, checked: bool) -> None:
        self.schema = schema
        for reference in references(schema):
            if reference != "#" and not reference.startswith("#/"):
                raise ConfigError(f"the JSON Schema refers to {reference!r}; only references inside of it are followed")
        self._errors = _validator(schema) if checked else None
        self._names = set(property_names(schema))

    def read(self, body: bytes) -> Any:
        value = decoded(body)
        if self._errors is None:
            return value
        errors = self._errors
        with suppress(RecursionError):
            wrong = within(body, lambda: errors(value, len(body)))
            if not wrong:
                return value
            raise invalid([f"{place(error.absolute_path, self._names)}: {_rule(error)}" for error in wrong])
        raise undecodable()


def _rule(error: Any) -> str:
    """The part of the schema that was broken, such as `type "string"`."""
    rule = json.dumps(error.validator_value)
    return f"{error.validator} {rule}" if len(rule) <= _LONGEST else str(error.validator)


def references(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        yield from (schema[key] for key in ("$ref", "$dynamicRef") if isinstance(schema.get(key), str))
    for part in parts_of(schema):
        yield from references(part)


def _validator(schema: Mapping[str, Any]) -> Callable[[Any, int], list[Any]]:
    try:
        from jsonschema import Draft202012Validator, SchemaError
        from jsonschema.validators import validator_for
        from referencing import Registry
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import DRAFT202012

        from .schema_limits import limited
    except ImportError as error:
        raise MissingExtra("jsonschema", "jsonschema") from error
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
        inside = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
        for reference in references(schema):
            inside.lookup(reference)
    except SchemaError as error:
        raise ConfigError(f"this is not a JSON Schema: {error.message}") from error
    except Unresolvable as error:
        raise ConfigError(f"the JSON Schema refers to {error.ref!r}, which is not in it") from error
    return limited(kind, schema, Registry(), lambda reference: inside.lookup(reference).contents)
