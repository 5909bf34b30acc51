"""Loads named SQL blocks from `store/<product>/<dialect>/sql/*.sql`.

A block starts with `-- name: outbox.claim.pick -> rows` (or `-> count`, when only the number of changed
rows matters). Comments stay in the file; `{event}`, `{pending}` … become quoted table names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import cast, get_args

from ..op import Answer, Query

Block = tuple[str, Answer]

_HEADER = re.compile(r"^-- name: (?P<name>[a-z_.]+) -> (?P<answer>[a-z]+)$", re.MULTILINE)
_SLOT = re.compile(r"\{([a-z_]+)\}")


@cache
def blocks(folder: str) -> dict[str, Block]:
    """Every block of a folder as (text, answer), by name. Comments are stripped once, here."""
    found: dict[str, Block] = {}
    for file in sorted(files("relaybox.store").joinpath(folder, "sql").iterdir(), key=lambda f: f.name):
        if not file.name.endswith(".sql"):
            continue
        text = file.read_text(encoding="utf-8")
        heads = list(_HEADER.finditer(text))
        for head, following in zip(heads, [*heads[1:], None], strict=True):
            body = text[head.end() : following.start() if following else len(text)]
            answer = cast(Answer, head["answer"])
            if answer not in get_args(Answer):
                raise ValueError(f"{folder}/{file.name}: {head['name']} answers {answer!r}, not rows or count")
            if head["name"] in found:
                raise ValueError(f"{folder}/{file.name}: {head['name']} is defined twice")
            found[head["name"]] = (without_comments(body), answer)
    return found


def without_comments(sql: str) -> str:
    lines = [line for line in sql.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(line for line in lines if line.strip()).strip().rstrip(";")


def fill(text: str, names: Mapping[str, str]) -> str:
    return _SLOT.sub(lambda slot: names[slot[1]], text)


def load(found: Mapping[str, Block], names: Mapping[str, str]) -> dict[str, Query]:
    """`names`: what stands for each slot."""
    return {name: Query(name, fill(text, names), answer) for name, (text, answer) in found.items()}
