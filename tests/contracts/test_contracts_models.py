"""Payload models of each kind: what they accept, how they complain, and that no complaint quotes the payload (S5)."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, Literal, NewType, Optional, Union
from uuid import UUID

import jsonschema
import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from relaybox import ConfigError, Contracts, Event
from relaybox.contracts import Contract
from relaybox.errors import ContractViolation, MissingExtra

CANARY = "canary-7f3a"
MOMENT = "2026-01-31T12:00:00.5+01:00"


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    SMALL = 1


class Unit(StrEnum):
    KG = "kg"


Name = NewType("Name", str)


@dataclass
class Line:
    name: Name
    price: Decimal
    tags: list[str] = field(default_factory=list)


@dataclass
class Other:
    size: Literal[1, "big"]


@dataclass(kw_only=True)
class Order:
    id: int
    lines: list[Line]
    at: datetime
    day: date
    uuid: UUID
    colour: Colour
    size: Size
    unit: Unit
    weight: float
    paid: bool
    note: Optional[str] = None  # noqa: UP045 - both spellings are read
    first: Line | None = None
    either: Union[Line, Other, None] = None  # noqa: UP007
    number: int | str = 0
    counts: dict[str, int] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    pair: tuple[int, ...] = ()
    seen: set[int] = field(default_factory=set)
    kinds: frozenset[Colour] = frozenset()
    rest: Sequence[Any] = field(default_factory=list)
    bare: list = field(default_factory=list)  # type: ignore[type-arg]
    choice: Literal[1, "a"] | None = None
    limited: Annotated[int, "ignored"] = 1
    derived: str = field(init=False, default="")
    parent: Order | None = None


GOOD: dict[str, Any] = {
    "id": 7,
    "lines": [{"name": "tea", "price": "1.10"}, {"name": "jam", "price": 2, "tags": ["x"]}],
    "at": MOMENT,
    "day": "2026-01-31",
    "uuid": "2c1a3b6e-8f39-4f2b-9a68-1d2d3c4b5a69",
    "colour": "red",
    "size": 1,
    "unit": "kg",
    "weight": 3,
    "paid": True,
}


def contract(model: Any) -> Contract:
    return Contracts().add("Order", to="orders", key_required=False, payload=model)


def complaint(model: Any, value: Any) -> str:
    """What is said about a payload; checked to have neither the canary nor a cause that might."""
    made = contract(model)
    event = Event("Order", payload_json=value) if isinstance(value, str) else Event("Order", value)
    with pytest.raises(ContractViolation) as caught:
        made.check(event)
    error = caught.value
    assert CANARY not in "".join(traceback.format_exception(error))
    seen: BaseException | None = error
    while seen is not None:
        assert isinstance(seen, ContractViolation)
        seen = seen.__cause__ or seen.__context__
    return str(error).split("): ", 1)[1]


# -- dataclasses ---------------------------------------------------------------------------------------


def test_a_dataclass_is_read_with_all_its_types() -> None:
    order = contract(Order).read(
        Event(
            "Order",
            GOOD
            | {
                "first": {"name": "tea", "price": 1.5},
                "either": {"size": "big"},
                "number": "n",
                "counts": {"a": 1},
                "more": {"b": None},
                "pair": [1, 2],
                "seen": [1, 1],
                "kinds": ["red"],
                "rest": [1, "a", None],
                "bare": [{}],
                "choice": "a",
                "parent": GOOD,
                "unknown": "ignored",
            },
        )
    )
    assert order.lines == [Line(Name("tea"), Decimal("1.10")), Line(Name("jam"), Decimal(2), ["x"])]
    assert order.at == datetime(2026, 1, 31, 11, 0, 0, 500_000, tzinfo=UTC)
    assert (order.day, order.uuid) == (date(2026, 1, 31), UUID(GOOD["uuid"]))
    assert (order.colour, order.size, order.unit) == (Colour.RED, Size.SMALL, Unit.KG)
    assert order.weight == 3.0
    assert type(order.weight) is float
    assert order.first == Line(Name("tea"), Decimal("1.5"))
    assert (order.either, order.number, order.choice) == (Other("big"), "n", "a")
    assert (order.pair, order.seen, order.kinds) == ((1, 2), {1}, frozenset({Colour.RED}))
    assert order.parent.id == 7


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"id": "7"}, "payload.id: expected integer, got string"),
        ({"id": True}, "payload.id: expected integer, got boolean"),
        ({"id": 7.0}, "payload.id: expected integer, got number"),
        ({"id": None}, "payload.id: expected integer, got null"),
        ({"paid": 1}, "payload.paid: expected boolean, got integer"),
        ({"weight": True}, "payload.weight: expected number, got boolean"),
        ({"lines": {}}, "payload.lines: expected array, got object"),
        ({"lines": [1]}, "payload.lines[0]: expected Line, got integer"),
        ({"lines": [{"price": "1"}]}, "payload.lines[0].name: missing"),
        ({"lines": [{"name": "a", "price": CANARY}]}, "payload.lines[0].price: not a decimal number"),
        ({"lines": [{"name": "a", "price": "NaN"}]}, "payload.lines[0].price: not a decimal number"),
        ({"at": CANARY}, "payload.at: not a date and time with an offset"),
        ({"at": "2026-01-31T12:00:00"}, "payload.at: not a date and time with an offset"),
        ({"at": "2026-13-31T12:00:00Z"}, "payload.at: not a date and time with an offset"),
        ({"at": 1}, "payload.at: expected a date and time with an offset, got integer"),
        ({"day": "20260131"}, "payload.day: not a date"),
        ({"uuid": CANARY}, "payload.uuid: not a UUID"),
        ({"colour": CANARY}, "payload.colour: not one of the values of the model"),
        ({"colour": [CANARY]}, "payload.colour: expected one of the values of the model, got array"),
        ({"size": True}, "payload.size: not one of the values of the model"),
        ({"first": {"name": CANARY}}, "payload.first.price: missing"),
        ({"either": {CANARY: 1}}, "payload.either: expected Line or Other, got object"),
        ({"number": []}, "payload.number: expected integer or string, got array"),
        ({"counts": {CANARY: "x"}}, "payload.counts[*]: expected integer, got string"),
        ({"counts": [CANARY]}, "payload.counts: expected object, got array"),
        ({"pair": [1, CANARY]}, "payload.pair[1]: expected integer, got string"),
        ({"parent": {**GOOD, "id": CANARY}}, "payload.parent.id: expected integer, got string"),
    ],
)
def test_complaints_about_a_dataclass(change: dict[str, Any], text: str) -> None:
    assert complaint(Order, GOOD | change) == text


def test_a_payload_that_is_no_object() -> None:
    assert complaint(Order, [CANARY]) == "payload: expected Order, got array"
    assert complaint(Order, {}) == "payload.id: missing"


def test_what_post_init_refuses() -> None:
    assert complaint(Positive, {"n": -1}) == "payload: refused by Positive (ValueError)"


@dataclass
class Positive:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError(f"{CANARY} {self.n}")


@dataclass
class Tree:
    children: list[Tree]


def test_recursive_models_and_their_depth() -> None:
    made = contract(Tree)
    assert made.read(Event("Order", {"children": [{"children": []}]})) == Tree([Tree([])])
    deep = '{"children":[' * 245 + '{"children":[]}' + "]}" * 245  # as deep as an event may be
    assert isinstance(made.read(Event("Order", payload_json=deep)), Tree)


@dataclass
class WithBytes:
    data: bytes


@dataclass
class WithIntKeys:
    by_number: dict[int, str]


@dataclass
class WithPair:
    pair: tuple[int, str]


@dataclass
class WithOne:
    one: tuple[int]


@dataclass
class WithSetOfLists:
    rows: set[list[int]]  # type: ignore[type-var]


class ObjectValues(Enum):
    A = object()


@dataclass
class WithObjects:
    kind: ObjectValues


@dataclass
class Unresolved:
    later: Nowhere  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (WithBytes, "WithBytes.data has the type <class 'bytes'>"),
        (WithIntKeys, "WithIntKeys.by_number"),
        (WithPair, "WithPair.pair"),
        (WithOne, "WithOne.one"),
        (WithSetOfLists, "WithSetOfLists.rows"),
        (WithObjects, "WithObjects.kind"),
        (Unresolved, "name 'Nowhere' is not defined"),
    ],
)
def test_models_that_cannot_be_checked_are_found_by_verify(model: type, text: str) -> None:
    contracts = Contracts()
    contracts.add("A", to="a", payload=model)
    with pytest.raises(ConfigError, match=text):
        contracts.verify()


# -- pydantic ------------------------------------------------------------------------------------------


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    total: Decimal = Field(alias="totalAmount", ge=0)


class PydanticOrder(BaseModel):
    id: int
    inner: list[Inner] = []
    by_mail: dict[str, int] = {}
    either: int | str = 0
    at: datetime | None = None
    code: str = "x"

    @field_validator("code")
    @classmethod
    def known(cls, value: str) -> str:
        if value == "bug":
            raise KeyError(CANARY)
        if value != "x":
            raise ValueError(f"{value} is unknown")
        return value


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"id": "7"}, "payload.id: int_type"),
        ({}, "payload.id: missing"),
        ({"id": 7, "inner": [{"totalAmount": -1}]}, "payload.inner[0].totalAmount: greater_than_equal"),
        ({"id": 7, "inner": [{"totalAmount": 1, CANARY: 1}]}, "payload.inner[0][*]: extra_forbidden"),
        ({"id": 7, "by_mail": {CANARY: CANARY}}, "payload.by_mail[*]: int_type"),
        ({"id": 7, "either": [CANARY]}, "payload.either[*]: int_type; payload.either[*]: string_type"),
        ({"id": 7, "code": CANARY}, "payload.code: value_error"),
        ({"id": 7, "code": "bug"}, "payload: refused by PydanticOrder (KeyError)"),
        ("{", "the payload is not JSON, or nested too deeply"),
        ([CANARY], "payload: model_type"),
    ],
)
def test_complaints_about_a_pydantic_model(payload: Any, text: str) -> None:
    assert complaint(PydanticOrder, payload) == text


def test_many_complaints_are_cut_short() -> None:
    payload = {"id": 7, "inner": [{"totalAmount": -1}] * 9}
    assert complaint(PydanticOrder, payload).endswith("payload.inner[2].totalAmount: greater_than_equal; and 6 more")


def test_pydantic_models_are_written_by_their_aliases() -> None:
    contracts = Contracts()
    contracts.add("Order", to="orders", key_required=False, payload=PydanticOrder)
    order = PydanticOrder(id=7, inner=[Inner(totalAmount=Decimal("1.10"))], at=datetime(2026, 1, 31, tzinfo=UTC))
    event = contracts.make("Order", order)
    assert event.payload["inner"] == [{"totalAmount": "1.10"}]
    assert contracts.read(event) == order


# -- msgspec -------------------------------------------------------------------------------------------


class Item(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    unit_price: Annotated[int, msgspec.Meta(ge=0)]


class StructOrder(msgspec.Struct):
    id: int
    items: list[Item] = []
    colour: Colour = Colour.RED
    by_mail: dict[str, int] = {}
    code: str = "x"

    def __post_init__(self) -> None:
        if self.code == "bug":
            raise KeyError(CANARY)
        if self.code != "x":
            raise ValueError(f"Expected `{self.code}`, got `{self.code}`")


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"id": "7"}, "payload.id: Expected `int`, got `str`"),
        ({}, "payload: Object missing required field `id`"),
        ({"id": 7, "items": [{"unitPrice": -1}]}, "payload.items[0].unitPrice: Expected `int` >= 0"),
        ({"id": 7, "items": [{"unitPrice": 1, CANARY: 1}]}, "payload.items[0]: not a value of the model"),
        ({"id": 7, "colour": CANARY}, "payload.colour: not a value of the model"),
        ({"id": 7, "by_mail": {CANARY: CANARY}}, "payload.by_mail[*]: Expected `int`, got `str`"),
        ({"id": 7, "code": CANARY}, "payload: refused by StructOrder (ValueError)"),
        ({"id": 7, "code": "bug"}, "payload: refused by StructOrder (KeyError)"),
        ("{", "the payload is not JSON, or nested too deeply"),
    ],
)
def test_complaints_about_a_struct(payload: Any, text: str) -> None:
    assert complaint(StructOrder, payload) == text


def test_broken_utf8_in_a_struct() -> None:
    with pytest.raises(ContractViolation, match="not JSON"):
        contract(StructOrder).check(
            Event("Order", payload_bytes=b'{"id":1,"code":"\xff"}', content_type="application/json")
        )


def test_structs_are_written_as_they_are_read() -> None:
    contracts = Contracts()
    contracts.add("Order", to="orders", key_required=False, payload=StructOrder)
    order = StructOrder(7, [Item(3)])
    event = contracts.make("Order", order)
    assert event.payload["items"] == [{"unitPrice": 3}]
    assert contracts.read(event) == order


# -- JSON Schema ---------------------------------------------------------------------------------------

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "self": {"$ref": "#"}, "line": {"$ref": "#/$defs/line"}},
    "required": ["id"],
    "additionalProperties": {"type": "integer"},
    "$defs": {"line": {"type": "object", "properties": {"name": {"enum": ["tea", "jam"]}}}},
}


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"id": CANARY}, 'payload.id: type "integer"'),
        ({"id": 1, "self": {}}, 'payload.self: required ["id"]'),
        ({"id": 1, "line": {"name": CANARY}}, 'payload.line.name: enum ["tea", "jam"]'),
        ({"id": 1, CANARY: "x"}, 'payload[*]: type "integer"'),
    ],
)
def test_complaints_about_a_json_schema(payload: Any, text: str) -> None:
    assert complaint(SCHEMA, payload) == text


def test_without_jsonschema_a_schema_is_refused_and_not_ignored() -> None:
    code = (
        "import sys; sys.modules['jsonschema'] = None\n"
        "from relaybox import Contracts\n"
        "from relaybox.errors import MissingExtra\n"
        "Contracts().add('A', to='a', payload={'type': 'object'}, check_payload=False)\n"
        "try: Contracts().add('A', to='a', payload={'type': 'object'})\n"
        "except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "relaybox[jsonschema]" in done.stdout
    assert issubclass(MissingExtra, ImportError)


# -- what is written is what is read -------------------------------------------------------------------


def test_dataclasses_are_written_as_they_are_read() -> None:
    contracts = Contracts()
    contracts.add("Order", to="orders", key_required=False, payload=Order)
    order = contracts.read(contracts.make("Order", GOOD | {"kinds": ["red"], "seen": [1], "parent": GOOD}))
    assert contracts.read(contracts.make("Order", order)) == order
    assert contracts.make("Order", dataclasses.asdict(order)).payload["at"] == order.at.isoformat()


@pytest.mark.parametrize(
    ("model", "good", "bad"),
    [
        (Order, GOOD, GOOD | {"lines": [{"name": 1, "price": 1}]}),
        (PydanticOrder, {"id": 7}, {"id": "7"}),
        (StructOrder, {"id": 7}, {"id": "7"}),
        (SCHEMA, {"id": 7}, {"id": "7"}),
        (Tree, {"children": []}, {"children": [1]}),
    ],
)
def test_the_exported_schema_agrees_with_the_check(model: Any, good: Any, bad: Any) -> None:
    made = contract(model)
    validator = jsonschema.Draft202012Validator(dict(made.model.schema))
    made.check(Event("Order", good))
    assert validator.is_valid(good)
    assert not validator.is_valid(bad)
    complaint(model, bad)
