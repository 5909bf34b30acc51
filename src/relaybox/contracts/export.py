"""Contracts for others: JSON Schema, and AsyncAPI 3.0 as the relay sends them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

from ..errors import ConfigError
from ..event import GLOBAL
from .contract import VERSION_HEADER, Contract

Form: TypeAlias = Literal["plain", "cloudevents", "cloudevents-structured"]

_TEXT = {"type": "string"}
_MOMENT = {"type": "string", "format": "date-time"}


def json_schema(contracts: Sequence[Contract]) -> dict[str, Any]:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$defs": _schemas(contracts, "#/$defs")}


def asyncapi(
    contracts: Sequence[Contract],
    title: str,
    version: str,
    servers: Mapping[str, Mapping[str, Any]],
    form: Form,
    prefix: str,
) -> dict[str, Any]:
    if form not in get_args(Form):
        raise ConfigError(f"expected form to be one of {', '.join(get_args(Form))}, got {form!r}")
    for name, server in servers.items():
        if not {"host", "protocol"} <= set(server):
            raise ConfigError(
                f"expected server {name!r} to have host and protocol, got {', '.join(server) or 'neither'}"
            )
    names = _keys(contract.name for contract in contracts)
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for to, key in _keys(contract.to for contract in contracts).items():
        sent = [names[contract.name] for contract in contracts if contract.to == to]
        channels[key] = {"address": to, "messages": {name: _ref("components", "messages", name) for name in sent}}
        operations[f"send-{key}"] = {
            "action": "send",
            "channel": _ref("channels", key),
            "messages": [_ref("channels", key, "messages", name) for name in sent],
        }
    document = {
        "asyncapi": "3.0.0",
        "info": {"title": title, "version": version},
        "servers": {name: dict(server) for name, server in servers.items()},
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": {names[c.name]: _message(c, names[c.name], form, prefix) for c in contracts},
            "schemas": _schemas(contracts, "#/components/schemas"),
        },
    }
    return {key: value for key, value in document.items() if value}


def _message(contract: Contract, name: str, form: Form, prefix: str) -> dict[str, Any]:
    payload: dict[str, Any] = _ref("components", "schemas", name)
    content_type = contract.content_type
    headers: dict[str, Any] = {VERSION_HEADER: {"const": str(contract.version)}}
    required = [VERSION_HEADER] if contract.version > 1 else []
    if form == "plain":
        headers |= {
            "event_id": _TEXT,
            "event_type": {"const": contract.type},
            "aggregate_type": {"const": contract.aggregate_type},
            "aggregate_id": _TEXT,
            "created_at": _MOMENT,
            "tenant": _TEXT,
        }
        required += ["event_id", "event_type", "aggregate_type", "created_at"]
        required += ["aggregate_id"] if contract.key_required else []
    elif form == "cloudevents":
        attributes, needed = _attributes(contract)
        headers |= {prefix + attribute: schema for attribute, schema in attributes.items()}
        required += [prefix + attribute for attribute in needed]
    else:
        attributes, needed = _attributes(contract)
        data = "data" if contract.is_json else "data_base64"
        attributes |= {"datacontenttype": {"const": content_type}, data: payload}
        payload = {"type": "object", "properties": attributes, "required": [*needed, "datacontenttype", data]}
        content_type = "application/cloudevents+json"
    return {
        "name": contract.type,
        "title": f"{contract.type} version {contract.version}",
        "contentType": content_type,
        "headers": {"type": "object", "properties": headers, "required": required},
        "payload": payload,
    }


def _attributes(contract: Contract) -> tuple[dict[str, Any], list[str]]:
    """The CloudEvents context attributes of `brokers/formats.py`, and which of them are always there."""
    attributes: dict[str, Any] = {
        "specversion": {"const": "1.0"},
        "id": _TEXT,
        "source": {"type": "string", "format": "uri-reference"},
        "type": {"const": contract.type},
        "time": _MOMENT,
        "subject": _TEXT,
        "partitionkey": _TEXT,
        "tenant": _TEXT,
    }
    required = ["specversion", "id", "source", "type", "time"]
    if contract.key_required:
        required += ["subject", "partitionkey"]
    if contract.aggregate_type != GLOBAL:
        attributes["aggregatetype"] = {"const": contract.aggregate_type}
        required.append("aggregatetype")
    return attributes, required


def _schemas(contracts: Sequence[Contract], root: str) -> dict[str, Any]:
    names = _keys(contract.name for contract in contracts)
    return {
        names[c.name]: {"title": c.name, **_moved(c.model.schema, f"{root}/{names[c.name]}", top=True)}
        for c in contracts
    }


def _moved(part: Any, root: str, *, top: bool = False) -> Any:
    """A schema at another place: its references begin there. Without OpenAPI's discriminators, which are neither
    JSON Schema nor AsyncAPI and say what `anyOf` says already."""
    if isinstance(part, list):
        return [_moved(item, root) for item in part]
    if not isinstance(part, Mapping):
        return part
    moved = {}
    for key, value in part.items():
        if key == "$ref" and isinstance(value, str):
            moved[key] = root + value.removeprefix("#")
        elif not (top and key in ("$schema", "$id")) and not _is_discriminator(key, value):
            moved[key] = _moved(value, root)
    return moved


def _is_discriminator(key: str, value: Any) -> bool:
    return key == "discriminator" and isinstance(value, Mapping) and isinstance(value.get("propertyName"), str)


def _keys(texts: Iterable[str]) -> dict[str, str]:
    """Keys for a document: AsyncAPI allows letters, digits, dot, dash and underscore."""
    keys: dict[str, str] = {}
    for text in dict.fromkeys(texts):
        key = re.sub(r"[^A-Za-z0-9._-]", "_", text)
        while key in keys.values():
            key += "_"
        keys[text] = key
    return keys


def _ref(*path: str) -> dict[str, str]:
    return {"$ref": "#/" + "/".join(path)}
