"""`relaybox contracts`: check and export, from a module and from a file."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from .conftest import Command

SHOP = """
from dataclasses import dataclass
from relaybox import Contracts

@dataclass
class Placed:
    id: int

contracts = Contracts()
contracts.add("Placed", to="orders", aggregate_type="Order", payload=Placed)
contracts.add("Placed", version=2, to="orders", aggregate_type="Order", payload=Placed, key_required=False)

chained = Contracts()
chained.add("Placed", to="orders")
chained.add("Placed", version=2, to="orders")
chained.add("Placed", version=3, to="orders")
chained.upcast("Placed", from_version=2)(lambda old: old)
"""


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """A module of a new name per test: Python keeps what it has imported."""
    name = f"shop_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(SHOP)
    return name


def test_check_lists_every_contract(relaybox: Command, shop: str) -> None:
    text = relaybox("contracts", "check", f"{shop}:contracts").stdout
    assert "aggregate type" in text
    assert "2 contract(s), all in order" in text
    listed = relaybox.json("contracts", "check", f"{shop}:contracts")["contracts"]
    assert [(row["type"], row["version"], row["to"], row["key_required"]) for row in listed] == [
        ("Placed", 1, "orders", True),
        ("Placed", 2, "orders", False),
    ]


def test_check_finds_what_is_missing(relaybox: Command, shop: str) -> None:
    said = relaybox("contracts", "check", f"{shop}:chained", exit_code=1).stderr
    assert said == "error: there is no upcaster from version 1 of 'Placed'\n"
    assert "a Contracts registry, got type" in relaybox("contracts", "check", f"{shop}:Placed", exit_code=1).stderr
    assert "cannot read none.toml" in relaybox("contracts", "check", "none.toml", exit_code=1).stderr


def test_export(relaybox: Command, shop: str, tmp_path: Path) -> None:
    schema = json.loads(relaybox("contracts", "export", f"{shop}:contracts").stdout)
    assert list(schema["$defs"]) == ["Placed.v1", "Placed.v2"]
    arguments = ["--title", "Shop", "--document-version", "3", "--form", "cloudevents", "--attribute-prefix", "ce-"]
    done = relaybox(
        "contracts", "export", f"{shop}:contracts", "--format", "asyncapi", *arguments, "--output", "shop.json"
    )
    assert done.stdout == "wrote shop.json\n"
    document = json.loads((tmp_path / "shop.json").read_text())
    assert document["info"] == {"title": "Shop", "version": "3"}
    assert "ce-id" in document["components"]["messages"]["Placed.v1"]["headers"]["properties"]


def test_what_is_not_in_order_is_not_exported(relaybox: Command, shop: str) -> None:
    assert "no upcaster from version 1" in relaybox("contracts", "export", f"{shop}:chained", exit_code=1).stderr


def test_a_file(relaybox: Command, tmp_path: Path) -> None:
    (tmp_path / "contracts.toml").write_text('[contracts.Placed]\nto = "orders"\n')
    assert relaybox.json("contracts", "check", "contracts.toml")["contracts"][0]["to"] == "orders"
    document = json.loads(relaybox("contracts", "export", "contracts.toml", "--format", "asyncapi").stdout)
    assert document["info"] == {"title": "Events", "version": "1.0.0"}


def test_wrong_usage(relaybox: Command, shop: str) -> None:
    relaybox("contracts", "export", f"{shop}:contracts", "--format", "xml", exit_code=2)
    relaybox("contracts", "export", f"{shop}:contracts", "--title", "ignored?", exit_code=2)
    relaybox("contracts", "export", f"{shop}:contracts", "--format", "asyncapi", "--form", "xml", exit_code=1)
    said = relaybox("contracts", "export", f"{shop}:contracts", "--output", "no/where.json", exit_code=1).stderr
    assert "cannot write no/where.json" in said
