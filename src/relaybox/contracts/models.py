"""Payload models: what turns the bytes of a payload into a value, or says why it cannot.

pydantic, msgspec and jsonschema are used only if a model of theirs is registered. All are strict, because the bytes go
out as they are: "7" is no number. Models are looked into when first used, so they may name classes defined later.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, Protocol

from ..errors import ConfigError, ContractViolation
from .complaints import invalid, place, property_names, refused, undecodable
from .encoding import decoded
from .json_schema import JsonSchema
from .patience import within
from .shapes import Shape, shape_of, with_definitions


class Model(Protocol):
    @property
    def schema(self) -> Mapping[str, Any]:
        """A JSON Schema, complete in itself: references begin at its root."""
        ...

    def read(self, body: bytes) -> Any:
        """The decoded payload; ContractViolation if it is not what the model says."""
        ...


def model_of(payload: Any, *, is_json: bool, checked: bool) -> Model:
    if not is_json:
        if payload is not None:
            raise ConfigError("a payload model describes JSON; leave out payload for other content types")
        return Opaque()
    if payload is None:
        return AnyJson()
    if isinstance(payload, Mapping):
        return JsonSchema(payload, checked=checked)
    if isinstance(payload, type):
        if hasattr(payload, "model_validate_json"):
            return Pydantic(payload)
        if hasattr(payload, "__struct_fields__"):
            return Msgspec(payload)
        if dataclasses.is_dataclass(payload):
            return Dataclass(payload)
    raise ConfigError(
        "expected payload to be a dataclass, a pydantic 2 model, a msgspec.Struct, a JSON Schema (dict) or None, "
        f"got {payload.__name__ if isinstance(payload, type) else type(payload).__name__}"
    )


class Opaque:
    """Anything but JSON: bytes that nobody looks into."""

    schema: Mapping[str, Any] = {"type": "string", "format": "binary"}

    def read(self, body: bytes) -> bytes:
        return body


class AnyJson:
    schema: Mapping[str, Any] = {"not": {"type": "null"}}

    def read(self, body: bytes) -> Any:
        return decoded(body)


class Dataclass:
    def __init__(self, kind: type) -> None:
        self._kind = kind

    @cached_property
    def _shape(self) -> Shape:
        return shape_of(self._kind)

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        return with_definitions(self._shape)

    def read(self, body: bytes) -> Any:
        value = decoded(body)
        with suppress(RecursionError):
            return within(body, lambda: self._shape.read(value, None))
        raise undecodable()


class Pydantic:
    def __init__(self, kind: Any) -> None:
        self._kind = kind

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        return _described(self._kind, self._kind.model_json_schema)

    def read(self, body: bytes) -> Any:
        try:
            return self._kind.model_validate_json(body, strict=True)
        except Exception as error:
            problem = self._problem(error)
        raise problem

    def _problem(self, error: Exception) -> ContractViolation:
        if not hasattr(error, "errors"):  # a validator of the model may raise anything
            return refused("payload", self._kind.__name__, error)
        found = error.errors(include_url=False, include_context=False, include_input=False)
        if found[0]["type"] == "json_invalid":
            return undecodable()
        names = set(property_names(self.schema))
        return invalid([f"{place(each['loc'], names)}: {each['type']}" for each in found])


class Msgspec:
    # Only these texts of msgspec are made of the model alone; others quote the value.
    _SAFE = re.compile(r"Expected `[^`]*`( [<>]=? [-+.\de]+)?(, got `[^`]*`)?|Object missing required field `[^`]*`")
    _PLACE = re.compile(r" - at `\$([^`]*)`$")

    def __init__(self, kind: type) -> None:
        self._kind = kind

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        from msgspec.json import schema

        return _described(self._kind, lambda: schema(self._kind))

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        from msgspec.json import Decoder

        return Decoder(self._kind).decode

    def read(self, body: bytes) -> Any:
        decode = self._decode
        try:
            return decode(body)
        except Exception as error:
            problem = self._problem(error)
        raise problem

    def _problem(self, error: Exception) -> ContractViolation:
        from msgspec import ValidationError

        if isinstance(error, (ValueError, RecursionError)) and not isinstance(error, ValidationError):
            return undecodable()
        if error.__cause__ is not None or not isinstance(error, ValidationError):
            return refused("payload", self._kind.__name__, error.__cause__ or error)
        at, safe = self._PLACE.search(str(error)), self._SAFE.match(str(error))
        where = at[1].replace("[...]", "[*]") if at else ""
        return invalid([f"payload{where}: {safe[0] if safe else 'not a value of the model'}"])


def _described(kind: type, describe: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return describe()
    except Exception as error:
        raise ConfigError(f"{kind.__qualname__} cannot be described by a JSON Schema: {error}") from error
