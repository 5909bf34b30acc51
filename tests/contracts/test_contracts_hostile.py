"""What a hostile payload can make of the check of a model: time is bounded, and no number stops it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field
from test_contracts_models import complaint, contract

from relaybox import Event
from relaybox.errors import ContractViolation

DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
SLOW_NAMES = {"patternProperties": {"^(a|a)*$": {}}}
SLOW = {"type": "object", "properties": {"name": {"pattern": "^(a|a)*$"}, "more": {"pattern": "^(a+)+$"}}}


def test_a_pattern_has_a_limit_of_time() -> None:
    """The payload is refused, and the next one is read."""
    started = perf_counter()
    long = "a" * 40 + "!"
    assert "take more than 0.25 s" in complaint(SLOW, {"name": long, "more": long})
    assert perf_counter() - started < 2
    assert 'payload.name: pattern "^(a|a)*$"' in complaint(SLOW, {"name": "b"})
    assert contract(SLOW).read(Event("Order", {"name": "aaa"})) == {"name": "aaa"}
    names = {"patternProperties": {"^(a|a)*$": {"type": "integer"}}}
    assert "take more than 0.25 s" in complaint(names, {long: 1})


@pytest.mark.parametrize(
    "schema",
    [
        {"additionalProperties": False, "patternProperties": {"^(a|a)*$": {}}},
        {"unevaluatedProperties": False, "patternProperties": {"^(a|a)*$": {}}},
        {"unevaluatedProperties": False, "allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": SLOW_NAMES}},
    ],
)
def test_words_about_other_names_ask_for_patterns_within_the_same_limit(schema: Any) -> None:
    started = perf_counter()
    assert "take more than 0.25 s" in complaint(schema, {"a" * 40 + "!": 1})
    assert perf_counter() - started < 2
    assert contract(schema).read(Event("Order", {"aaa": 1})) == {"aaa": 1}


@pytest.mark.parametrize(
    ("schema", "many"),
    [
        ({"patternProperties": {"^x": {}}, "unevaluatedProperties": False}, {f"x{n}": n for n in range(60_000)}),
        ({"allOf": [{"items": {}}], "unevaluatedItems": False}, list(range(60_000))),
        ({"$schema": DRAFT_2019, "allOf": [{"items": {}}], "unevaluatedItems": False}, list(range(60_000))),
    ],
)
def test_what_nothing_has_looked_at_is_found_in_no_time(schema: Any, many: Any) -> None:
    started = perf_counter()
    contract(schema).read(Event("Order", many))
    assert perf_counter() - started < 4


UNEVALUATED: list[dict[str, Any]] = [
    {"properties": {"a": {}}, "unevaluatedProperties": False},
    {"patternProperties": {"^b": {}}, "properties": {"a": {}}, "unevaluatedProperties": {"type": "integer"}},
    {"allOf": [{"properties": {"a": {"type": "integer"}}}, {"required": ["a"]}], "unevaluatedProperties": False},
    {"anyOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {}}}], "unevaluatedProperties": False},
    {"oneOf": [{"required": ["a"], "properties": {"a": {}}}, {"required": ["b"]}], "unevaluatedProperties": False},
    {"if": {"required": ["a"]}, "then": {"properties": {"a": {}}}, "else": {"properties": {"b": {}}}}
    | {"unevaluatedProperties": False},
    {"dependentSchemas": {"a": {"properties": {"b": {}, "a": {}}}}, "unevaluatedProperties": {"type": "string"}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"a": {}}}}, "unevaluatedProperties": False},
    {"allOf": [{"additionalProperties": {"type": "integer"}}], "unevaluatedProperties": False},
    {"properties": {"a": {}}, "patternProperties": {"^b": {}}, "additionalProperties": False},
    {"properties": {"a": {}}, "additionalProperties": {"type": "string"}},
    {"prefixItems": [{}], "unevaluatedItems": False},
    {"contains": {"type": "string"}, "unevaluatedItems": {"type": "integer", "minimum": 2}},
    {"allOf": [{"prefixItems": [{}, {}]}], "unevaluatedItems": False},
    {"anyOf": [{"items": {"type": "integer"}}, {"prefixItems": [{"type": "string"}]}], "unevaluatedItems": False},
    {"$schema": DRAFT_2019, "allOf": [{"items": [{}, {}]}], "unevaluatedItems": False},
    {"$schema": DRAFT_2019, "items": [{}], "additionalItems": {"type": "integer"}, "unevaluatedItems": False},
    {"multipleOf": 0.5},
    {"multipleOf": 3},
]
VALUES: list[Any] = [
    *({}, {"a": 1}, {"b": 1}, {"a": "x", "b": 2}, {"a": 1, "bb": "x"}, {"c": 1}, {"a": 1, "c": "x"}, {"b": 1, "a": 2}),
    *([], [1], ["x"], [1, 2], [1, "x"], ["x", 1], [1, 2, 3], ["x", 2, 3], [1, 2, "x"], 1, 1.5, 0.7, 3, "x", None),
]


@pytest.mark.parametrize("schema", UNEVALUATED, ids=str)
def test_what_is_bounded_means_the_same(schema: Any) -> None:
    """As jsonschema itself has it."""
    theirs, ours = (
        jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)(schema),
        contract(schema),
    )
    for value in VALUES:
        event = Event("Order", payload_bytes=json.dumps(value).encode(), content_type="application/json")
        try:
            ours.read(event)
            kept = True
        except ContractViolation:
            kept = False
        assert kept is theirs.is_valid(value), value


@pytest.mark.parametrize(("number", "kept"), [("1e999", False), ("1" + "0" * 400, True), ("-1e999", False)])
def test_a_number_beyond_all_floats_is_no_reason_to_stop(number: str, kept: bool) -> None:
    event = Event("Order", payload_bytes=number.encode(), content_type="application/json")
    made = contract({"multipleOf": 0.5})
    if kept:
        made.read(event)
        return
    with pytest.raises(ContractViolation, match=r"multipleOf 0\.5"):
        made.read(event)


@dataclass
class Not:
    of: Not | And | None
    left: int


@dataclass
class And:
    of: Not | And | None
    right: int


EXPRESSION: dict[str, Any] = {
    "$ref": "#/$defs/e",
    "$defs": {
        "e": {
            "anyOf": [{"properties": {"of": {"$ref": "#/$defs/e"}}, "required": [name]} for name in ("left", "right")]
        }
    },
}


@pytest.mark.parametrize("model", [Not, EXPRESSION])
def test_a_model_that_contains_itself_in_several_ways_has_a_limit_of_time(model: Any) -> None:
    """Each level is read twice."""
    nested: Any = None if model is Not else {"right": 1}
    for _ in range(60):
        nested = {"of": nested, "right": 1}
    started = perf_counter()
    assert "s to compare with the model" in complaint(model, {"of": nested, "left": 1})
    assert perf_counter() - started < 3
    contract(model).read(Event("Order", {"of": {"of": None, "right": 1} if model is Not else {"right": 2}, "left": 1}))


class Minus(BaseModel):
    kind: Literal["minus"]
    of: Annotated[Minus | Plus, Field(discriminator="kind")] | None


class Plus(BaseModel):
    kind: Literal["plus"]
    of: Annotated[Minus | Plus, Field(discriminator="kind")] | None


def test_pydantic_reads_each_value_once_where_a_union_has_a_discriminator() -> None:
    """What the guide advises: pydantic itself has no limit of time."""
    nested: Any = 1
    for _ in range(60):
        nested = {"kind": "plus", "of": nested}
    started = perf_counter()
    assert "payload" in complaint(Minus, {"kind": "minus", "of": nested})
    assert perf_counter() - started < 1


def test_unique_items_are_compared_in_no_time() -> None:
    made = contract({"uniqueItems": True})
    many = [{"n": n} for n in range(30_000)]
    started = perf_counter()
    made.read(Event("Order", many))
    assert perf_counter() - started < 2
    for twice in ([1, 1.0], [{"a": [1]}, {"a": [1]}], ["x", "x"]):
        assert "uniqueItems" in complaint({"uniqueItems": True}, twice)
    assert made.read(Event("Order", [1, True, "1", [1], {"1": 1}, None, False, 0])) is not None
