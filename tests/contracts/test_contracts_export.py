"""What others get: JSON Schema that validates the same payloads, and AsyncAPI 3.0 with the structure of its spec."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jsonschema
import msgspec
import pytest
from pydantic import BaseModel, Field

from relaybox import ConfigError, Contracts, Event
from relaybox.contracts.export import Form
from relaybox.errors import ContractViolation


@dataclass
class Line:
    name: str


@dataclass
class Placed:
    lines: list[Line]


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]
    discriminator: str = "a property of this name is not OpenAPI's"


class Adopted(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")


class Sold(msgspec.Struct):
    cats: list[Line]


FILE = {
    "$id": "https://shop.example/x.json",
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "properties": {"a": {"$ref": "#/$defs/b"}, "self": {"$ref": "#"}},
    "$defs": {"b": {"type": "integer"}},
}


@pytest.fixture
def contracts() -> Contracts:
    made = Contracts()
    made.add("Placed", to="orders", aggregate_type="Order", payload=Placed)
    made.add("Placed", version=2, to="orders", payload=Placed, key_required=False)
    made.add("Adopted", to="pets/all", payload=Adopted)
    made.add("Sold", to="pets all", payload=Sold)
    made.add("From file", to="pets all", payload=FILE)
    made.add("From_file", to="pets all")
    made.add("Printed", to="print", content_type="application/pdf")
    return made


def lookup(document: Any, pointer: str) -> Any:
    assert pointer.startswith("#/")
    for part in pointer[2:].split("/"):
        document = document[part]
    return document


def references(part: Any) -> list[str]:
    if isinstance(part, dict):
        own = [part["$ref"]] if isinstance(part.get("$ref"), str) else []
        return own + [ref for value in part.values() for ref in references(value)]
    return [ref for item in part for ref in references(item)] if isinstance(part, list) else []


PAYLOADS: list[tuple[str, Any, Any]] = [
    ("Placed.v1", {"lines": [{"name": "a"}]}, {"lines": [{"name": 1}]}),
    ("Adopted.v1", {"pet": {"kind": "dog"}}, {"pet": {"kind": "horse"}}),
    ("Sold.v1", {"cats": [{"name": "a"}]}, {"cats": [{}]}),
    ("From_file.v1", {"a": 1, "self": {"a": 2}}, {"a": 1, "self": {"a": "x"}}),
    ("From_file.v1_", {"a": "x"}, None),
]


@pytest.mark.parametrize(("name", "good", "bad"), PAYLOADS)
def test_the_json_schema_says_what_is_checked(contracts: Contracts, name: str, good: Any, bad: Any) -> None:
    document = contracts.json_schema()
    jsonschema.Draft202012Validator.check_schema(document)
    validator = jsonschema.Draft202012Validator({**document, "$ref": f"#/$defs/{name}"})
    assert validator.is_valid(good)
    assert not validator.is_valid(bad)
    contract = dict(zip(document["$defs"], contracts, strict=True))[name]
    contract.read(Event("A", good))
    if bad is not None:  # null is refused before the model is asked
        with pytest.raises(ContractViolation):
            contract.read(Event("A", bad))


def test_one_definition_per_type_and_version(contracts: Contracts) -> None:
    document = contracts.json_schema()
    names = ["Adopted.v1", "From_file.v1", "From_file.v1_", "Placed.v1", "Placed.v2", "Printed.v1", "Sold.v1"]
    assert list(document["$defs"]) == names
    assert document["$defs"]["Placed.v1"]["$ref"] == "#/$defs/Placed.v1/$defs/Placed"
    for reference in references(document):
        lookup(document, reference)
    dog = document["$defs"]["Adopted.v1"]["$defs"]["Dog"]
    assert "discriminator" in dog["properties"]
    assert "discriminator" not in document["$defs"]["Adopted.v1"]["properties"]["pet"]


# -- AsyncAPI ------------------------------------------------------------------------------------------

KEY = r"^[\w.\-]+$"
REFERENCE = {"type": "object", "required": ["$ref"], "properties": {"$ref": {"type": "string"}}, "maxProperties": 1}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def keyed(value: Any) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {KEY: value}, "additionalProperties": False}


# The parts of the AsyncAPI 3.0.0 schema that we write: required fields, and no others than it allows.
ASYNCAPI = closed(
    ["asyncapi", "info", "channels", "operations", "components"],
    asyncapi={"const": "3.0.0"},
    info=closed(["title", "version"], title={"type": "string"}, version={"type": "string"}),
    servers=keyed({"type": "object", "required": ["host", "protocol"]}),
    channels=keyed(closed(["address", "messages"], address={"type": "string"}, messages=keyed(REFERENCE))),
    operations=keyed(
        closed(
            ["action", "channel", "messages"],
            action={"enum": ["send", "receive"]},
            channel=REFERENCE,
            messages={"type": "array", "items": REFERENCE, "minItems": 1},
        )
    ),
    components=closed(
        ["messages", "schemas"],
        messages=keyed(
            closed(
                ["name", "contentType", "headers", "payload"],
                name={"type": "string"},
                title={"type": "string"},
                contentType={"type": "string"},
                headers={"type": "object", "properties": {"type": {"const": "object"}}},
                payload={"type": "object"},
            )
        ),
        schemas=keyed({"type": "object", "properties": {"discriminator": {"type": "string"}}}),
    ),
)


@pytest.mark.parametrize("form", ["plain", "cloudevents", "cloudevents-structured"])
def test_the_asyncapi_document_has_the_structure_of_its_spec(contracts: Contracts, form: Form) -> None:
    servers = {"live": {"host": "kafka.example:9092", "protocol": "kafka"}}
    document = contracts.asyncapi(title="Shop", version="1.2.3", servers=servers, form=form)
    jsonschema.Draft202012Validator(ASYNCAPI).validate(document)
    for reference in references(document):
        lookup(document, reference)
    for operation in document["operations"].values():
        inside = operation["channel"]["$ref"] + "/messages/"
        assert all(message["$ref"].startswith(inside) for message in operation["messages"])
    for message in document["components"]["messages"].values():
        assert set(message["headers"]["required"]) <= set(message["headers"]["properties"])
        jsonschema.Draft202012Validator.check_schema(message["headers"])
    addresses = {channel["address"]: list(channel["messages"]) for channel in document["channels"].values()}
    assert addresses == {
        "orders": ["Placed.v1", "Placed.v2"],
        "pets/all": ["Adopted.v1"],
        "pets all": ["From_file.v1", "From_file.v1_", "Sold.v1"],
        "print": ["Printed.v1"],
    }


@pytest.mark.parametrize("form", ["plain", "cloudevents", "cloudevents-structured"])
def test_the_document_describes_the_messages_that_are_sent(contracts: Contracts, form: Form) -> None:
    """Real messages of the sinks' formats are valid by the exported headers and payload."""
    from relaybox.brokers.formats import renderer
    from relaybox.spi import Features

    document = contracts.asyncapi(title="Shop", version="1", form=form, attribute_prefix="ce_")
    render = renderer(form, "https://shop.example", Features(keyed_order=True, dedup=False, attribute_prefix="ce_"))
    line = {"lines": [{"name": "tea"}]}
    for version in (1, 2):
        event = contracts.make("Placed", line, version=version, key="order-7", tenant="acme")
        message = render(event, "orders")
        described = document["components"]["messages"][f"Placed.v{version}"]
        validate(document, described["headers"], dict(message.attributes))
        validate(document, described["payload"], msgspec.json.decode(message.body))
        with pytest.raises(jsonschema.ValidationError):
            validate(document, described["headers"], {"event-version": "9"})
        assert message.content_type.startswith(described["contentType"])


def validate(document: Any, schema: Any, value: Any) -> None:
    jsonschema.Draft202012Validator({**document, "allOf": [schema]}).validate(value)


def test_only_what_goes_out() -> None:
    contracts = Contracts(publish_as="newest")
    contracts.add("Placed", to="orders")
    contracts.add("Placed", version=2, to="orders")
    document = contracts.asyncapi(title="Shop", version="1")
    assert list(document["channels"]["orders"]["messages"]) == ["Placed.v2"]
    assert list(document["components"]["schemas"]) == ["Placed.v2"]
    assert list(contracts.json_schema()["$defs"]) == ["Placed.v1", "Placed.v2"]


def test_wrong_arguments(contracts: Contracts) -> None:
    with pytest.raises(ConfigError, match="server 'live' to have host and protocol, got host"):
        contracts.asyncapi(title="a", version="1", servers={"live": {"host": "h"}})
    with pytest.raises(ConfigError, match="expected form to be one of plain"):
        contracts.asyncapi(title="a", version="1", form="xml")  # type: ignore[arg-type]


# -- from a file ---------------------------------------------------------------------------------------

TOML = """
[contracts.Placed]
to = "orders"
aggregate_type = "Order"
schema = "schemas/placed.json"

[contracts."shop.paid"]
to = "payments"
content_type = "application/vnd.shop+json"
key_required = false

[[contracts.Shipped]]
to = "shipping"
[[contracts.Shipped]]
version = 2
to = "shipping-2"
schema = "schemas/placed.json"
check_payload = false
"""


def write(folder: Path, text: str, schema: str = '{"required": ["id"], "type": "object"}') -> Path:
    (folder / "schemas").mkdir(exist_ok=True)
    (folder / "schemas" / "placed.json").write_text(schema)
    path = folder / "contracts.toml"
    path.write_text(text)
    return path


def test_contracts_from_a_file(tmp_path: Path) -> None:
    contracts = Contracts.from_toml(write(tmp_path, TOML))
    contracts.verify()
    assert [c.name for c in contracts] == ["Placed.v1", "Shipped.v1", "Shipped.v2", "shop.paid.v1"]
    assert contracts.check(Event("Placed", {"id": 7}, key="k", aggregate_type="Order")).to == "orders"
    with pytest.raises(ContractViolation, match="required"):
        contracts.check(Event("Placed", {}, key="k", aggregate_type="Order"))
    assert contracts.make("shop.paid", 1).content_type == "application/vnd.shop+json"
    assert contracts.make("Shipped", {}, key="k").headers["event-version"] == "2"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[contracts", "contracts.toml is not TOML"),
        ("", r"contracts.toml has no table \[contracts.TYPE\]"),
        ("[contracts]", "has no table"),
        ("contracts = 3", "has no table"),
        ("[contracts]\nA = 3", r"expected \[contracts.A\] in contracts.toml to be a table"),
        ("[contracts.A]\nversion = 1", "the destination"),
        ('[contracts.A]\nto = "a"\ntopic = "b"', "unknown entry 'topic'.*expected to, version"),
        ("[contracts.A]\nto = 3", "expected to of .* to be str, got int"),
        ('[contracts.A]\nto = "a"\nversion = true', "expected version of .* to be int, got bool"),
        ('[contracts.A]\nto = "a"\nversion = 0', "whole number from 1"),
        ('[contracts.A]\nto = "a"\nkey_required = "no"', "to be bool, got str"),
        ('[contracts.A]\nto = "a"\nschema = "none.json"', "cannot read none.json: No such file"),
        ('[contracts.A]\nto = "a"\nschema = "contracts.toml"', "contracts.toml is not JSON"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Contracts.from_toml(write(tmp_path, text))


def test_wrong_schema_files(tmp_path: Path) -> None:
    text = '[contracts.A]\nto = "a"\nschema = "schemas/placed.json"'
    for schema, expected in (("[]", "got a JSON list"), ('{"type": 3}', "not a JSON Schema"), ("{", "is not JSON")):
        with pytest.raises(ConfigError, match=expected):
            Contracts.from_toml(write(tmp_path, text, schema))
    with pytest.raises(ConfigError, match=r"cannot read missing.toml: No such file"):
        Contracts.from_toml(tmp_path / "missing.toml")
