"""Dataclasses as payload models: type hints become shapes, which read a JSON value or describe it.

    str int float bool None Any · datetime date Decimal UUID · Enum Literal · X | Y, Optional
    list tuple[X, ...] set frozenset Sequence · dict[str, X] Mapping[str, X] · other dataclasses, also recursive

Other hints are refused when the model is first used or verified. Fields that the model does not name are ignored.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, Protocol, TypeAlias, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from ..errors import ConfigError, ContractViolation
from .complaints import invalid, place, refused
from .patience import go_on

Path: TypeAlias = "tuple[Path, str | int] | None"  # linked, so that the way to a value costs nothing until it is told
Definitions: TypeAlias = dict[str, dict[str, Any]]

_JSON_NAMES = {
    dict: "object",
    list: "array",
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
}


class Shape(Protocol):
    @property
    def name(self) -> str: ...

    def read(self, value: Any, path: Path) -> Any: ...

    def schema(self, known: Definitions) -> dict[str, Any]: ...


def _where(path: Path) -> str:
    parts: list[str | int] = []
    while path is not None:
        path, part = path
        parts.append(part)
    return place(reversed(parts))


def _wrong(path: Path, text: str) -> ContractViolation:
    return invalid([f"{_where(path)}: {text}"])


def _unexpected(path: Path, expected: str, value: Any) -> ContractViolation:
    return _wrong(path, f"expected {expected}, got {_JSON_NAMES[type(value)]}")


@dataclasses.dataclass(frozen=True, slots=True)
class Anything:
    name: str = "anything"

    def read(self, value: Any, path: Path) -> Any:
        return value

    def schema(self, known: Definitions) -> dict[str, Any]:
        return {}


@dataclasses.dataclass(frozen=True, slots=True)
class Scalar:
    name: str
    types: tuple[type, ...]  # of the JSON value, exactly: a boolean is no integer
    parse: Callable[[Any], Any] | None
    json: Mapping[str, Any]

    def read(self, value: Any, path: Path) -> Any:
        if type(value) in self.types:
            if self.parse is None:
                return value
            with suppress(ValueError, ArithmeticError):
                return self.parse(value)
            raise _wrong(path, f"not {self.name}")
        raise _unexpected(path, self.name, value)

    def schema(self, known: Definitions) -> dict[str, Any]:
        return dict(self.json)


class Choice:
    """The values of an Enum or a Literal."""

    name = "one of the values of the model"

    def __init__(self, values: Iterable[tuple[Any, Any]]) -> None:
        self._values = {(type(value), value): meant for value, meant in values}  # to Python, True and 1 are equal

    def read(self, value: Any, path: Path) -> Any:
        if isinstance(value, (dict, list)):
            raise _unexpected(path, self.name, value)
        with suppress(KeyError):
            return self._values[type(value), value]
        raise _wrong(path, f"not {self.name}")

    def schema(self, known: Definitions) -> dict[str, Any]:
        return {"enum": [value for _, value in self._values]}


@dataclasses.dataclass(frozen=True, slots=True)
class Items:
    item: Shape
    make: Callable[[Iterable[Any]], Any]
    name: str = "array"

    def read(self, value: Any, path: Path) -> Any:
        if type(value) is not list:
            raise _unexpected(path, self.name, value)
        return self.make([self.item.read(item, (path, number)) for number, item in enumerate(value)])

    def schema(self, known: Definitions) -> dict[str, Any]:
        return {"type": "array", "items": self.item.schema(known)}


@dataclasses.dataclass(frozen=True, slots=True)
class Entries:
    item: Shape
    name: str = "object"

    def read(self, value: Any, path: Path) -> Any:
        if type(value) is not dict:
            raise _unexpected(path, self.name, value)
        return {key: self.item.read(item, (path, "*")) for key, item in value.items()}

    def schema(self, known: Definitions) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.item.schema(known)}


@dataclasses.dataclass(frozen=True, slots=True)
class OneOf:
    shapes: Sequence[Shape]

    @property
    def name(self) -> str:
        return " or ".join(shape.name for shape in self.shapes)

    def read(self, value: Any, path: Path) -> Any:
        go_on()
        for shape in self.shapes:
            with suppress(ContractViolation):
                return shape.read(value, path)
        raise _unexpected(path, self.name, value)

    def schema(self, known: Definitions) -> dict[str, Any]:
        return {"anyOf": [shape.schema(known) for shape in self.shapes]}


@dataclasses.dataclass(frozen=True, slots=True)
class Nullable:
    """Apart from OneOf, so that an error inside the one other shape keeps its path."""

    shape: Shape

    @property
    def name(self) -> str:
        return f"{self.shape.name} or null"

    def read(self, value: Any, path: Path) -> Any:
        return None if value is None else self.shape.read(value, path)

    def schema(self, known: Definitions) -> dict[str, Any]:
        return {"anyOf": [self.shape.schema(known), {"type": "null"}]}


class Record:
    """A dataclass; `fields` is filled after it is made, because it may contain itself."""

    def __init__(self, kind: type, name: str) -> None:
        self.kind = kind
        self.name = name
        self.fields: list[tuple[str, Shape, bool]] = []

    def read(self, value: Any, path: Path) -> Any:
        if type(value) is not dict:
            raise _unexpected(path, self.name, value)
        given = {}
        for name, shape, required in self.fields:
            if name in value:
                given[name] = shape.read(value[name], (path, name))
            elif required:
                raise _wrong((path, name), "missing")
        try:
            return self.kind(**given)
        except Exception as error:
            problem = refused(_where(path), self.name, error)
        raise problem

    def schema(self, known: Definitions) -> dict[str, Any]:
        if self.name not in known:
            described: dict[str, Any] = {"title": self.kind.__name__, "type": "object"}
            known[self.name] = described
            described["properties"] = {name: shape.schema(known) for name, shape, _ in self.fields}
            if needed := [name for name, _, required in self.fields if required]:
                described["required"] = needed
        return {"$ref": f"#/$defs/{self.name}"}


def shape_of(kind: type) -> Shape:
    return _record(kind, {})


def with_definitions(shape: Shape) -> dict[str, Any]:
    known: Definitions = {}
    return {**shape.schema(known), "$defs": known}


def _record(kind: type, records: dict[type, Record]) -> Record:
    if kind in records:
        return records[kind]
    name = kind.__name__
    while name in {record.name for record in records.values()}:
        name += "_"
    made = records[kind] = Record(kind, name)
    try:
        hints = get_type_hints(kind)
    except NameError as error:
        raise ConfigError(
            f"cannot read the type hints of {kind.__qualname__}: {error}; define what it names in its module"
        ) from error
    for field in dataclasses.fields(kind):
        if field.init:
            shape = _shape(hints[field.name], records, f"{kind.__qualname__}.{field.name}")
            required = field.default is field.default_factory is dataclasses.MISSING
            made.fields.append((field.name, shape, required))
    return made


def _shape(hint: Any, records: dict[type, Record], where: str) -> Shape:
    while (meant := getattr(hint, "__supertype__", None) or getattr(hint, "__value__", None)) is not None:
        hint = meant  # NewType, and the type statement of Python 3.12
    origin, args = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, UnionType):
        others = [_shape(arg, records, where) for arg in args if arg is not NoneType]
        shape = others[0] if len(others) == 1 else OneOf(others)
        return Nullable(shape) if NoneType in args else shape
    if origin is Literal:
        return Choice((value, value) for value in args)
    if origin in _SEQUENCES and (origin is not tuple or args[1:] == (...,) or not args):
        item = _shape(args[0] if args else Any, records, where)
        if origin not in (set, frozenset) or isinstance(item, (Scalar, Choice)):
            return Items(item, _SEQUENCES[origin])
    if origin in (dict, Mapping) and args[:1] in ((), (str,)):
        return Entries(_shape(args[1] if args else Any, records, where))
    if hint in _SCALARS:
        return _SCALARS[hint]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _record(hint, records)
    members = list(hint) if isinstance(hint, type) and issubclass(hint, Enum) else []
    if members and all(isinstance(member.value, (str, int, float)) for member in members):
        return Choice((member.value, member) for member in members)
    raise ConfigError(f"{where} has the type {hint!r}, which no JSON value is checked against; see the guide")


def _decimal(value: str | float) -> Decimal:
    made = Decimal(str(value))
    if not made.is_finite():
        raise ValueError
    return made


def _matching(pattern: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Reads what JSON Schema's formats allow; the parsers of Python take more."""
    allowed = re.compile(pattern)

    def read(text: str) -> Any:
        if not allowed.fullmatch(text):
            raise ValueError
        return parse(text)

    return read


_moment = _matching(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})", datetime.fromisoformat
)
_day = _matching(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", date.fromisoformat)
_uuid = _matching(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", UUID)

_SEQUENCES: dict[Any, Callable[[Iterable[Any]], Any]] = {
    list: list,
    Sequence: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
}
_SCALARS: dict[Any, Shape] = {
    Any: Anything(),
    object: Anything(),
    str: Scalar("string", (str,), None, {"type": "string"}),
    bool: Scalar("boolean", (bool,), None, {"type": "boolean"}),
    int: Scalar("integer", (int,), None, {"type": "integer"}),
    float: Scalar("number", (int, float), float, {"type": "number"}),
    NoneType: Scalar("null", (NoneType,), None, {"type": "null"}),
    datetime: Scalar("a date and time with an offset", (str,), _moment, {"type": "string", "format": "date-time"}),
    date: Scalar("a date", (str,), _day, {"type": "string", "format": "date"}),
    UUID: Scalar("a UUID", (str,), _uuid, {"type": "string", "format": "uuid"}),
    Decimal: Scalar("a decimal number", (str, int, float), _decimal, {"type": ["string", "number"]}),
}
