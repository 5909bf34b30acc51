"""Contracts from a TOML file, for a relay without Python models.

[contracts.OrderPlaced]              [[contracts.OrderPaid]]       several versions
to = "orders"                        version = 1
aggregate_type = "Order"             to = "payments"
schema = "schemas/order.json"        [[contracts.OrderPaid]]
                                     version = 2 …
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ConfigError

_KINDS = {
    "to": str,
    "version": int,
    "aggregate_type": str,
    "content_type": str,
    "key_required": bool,
    "check_payload": bool,
    "schema": str,
}


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The arguments of `Contracts.add` for each table."""
    try:
        tables = tomllib.loads(_text(path)).get("contracts")
    except ValueError as error:
        raise ConfigError(f"{path.name} is not TOML: {error}") from error
    if not isinstance(tables, dict) or not tables:
        raise ConfigError(f"{path.name} has no table [contracts.TYPE]")
    for name, given in tables.items():
        for table in given if isinstance(given, list) else [given]:
            yield {"type": name, **_checked(table, f"[contracts.{name}] in {path.name}", path.parent)}


def _checked(table: Any, where: str, folder: Path) -> dict[str, Any]:
    if not isinstance(table, dict) or "to" not in table:
        raise ConfigError(f'expected {where} to be a table with the destination: to = "…"')
    for name, value in table.items():
        if name not in _KINDS:
            raise ConfigError(f"unknown entry {name!r} of {where}; expected {', '.join(_KINDS)}")
        if type(value) is not _KINDS[name]:
            raise ConfigError(f"expected {name} of {where} to be {_KINDS[name].__name__}, got {type(value).__name__}")
    options = dict(table)
    if (file := options.pop("schema", None)) is not None:
        options["payload"] = _schema(folder / file)
    return options


def _schema(path: Path) -> dict[str, Any]:
    try:
        schema = json.loads(_text(path))
    except ValueError as error:
        raise ConfigError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConfigError(f"expected {path.name} to be a JSON Schema, got a JSON {type(schema).__name__}")
    return schema


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path.name}: {error.strerror}") from error
