"""What may be said about a payload that is wrong: which field, and which kind of error. Never a value.

Names that are not in the model, such as the keys of a mapping, are values too: they are shown as `*`. The errors of
model libraries hold values, so ours are made in their handlers but raised outside, and have no cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import ContractViolation

SHOWN = 3  # of the complaints about one payload


def place(parts: Iterable[Any], names: Collection[str] | None = None) -> str:
    """`payload.items[2].price`; without `names` the parts are known to be from the model."""
    text = "payload"
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += "[*]" if part == "*" or (names is not None and part not in names) else f".{part}"
    return text


def property_names(schema: Any) -> Iterator[str]:
    """Every name of a property in a JSON Schema, at any depth."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            yield from properties
    for part in parts_of(schema):
        yield from property_names(part)


def parts_of(schema: Any) -> Iterable[Any]:
    if isinstance(schema, Mapping):
        return schema.values()
    return schema if isinstance(schema, list) else ()


def invalid(found: Sequence[str]) -> ContractViolation:
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ContractViolation("; ".join(found[:SHOWN]) + more, "invalid_payload")


def refused(where: str, by: str, error: BaseException) -> ContractViolation:
    """Code of the model raised: its text may quote anything."""
    return invalid([f"{where}: refused by {by} ({type(error).__name__})"])


def undecodable() -> ContractViolation:
    return ContractViolation("the payload is not JSON, or nested too deeply", "undecodable")
