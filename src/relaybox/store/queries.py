"""Loads named SQL from `.sql` files.

    -- name: outbox.claim.pick -> rows     a query; `-> count` when only the number of changed rows matters
    -- slot: clock                         what `{clock}` stands for in queries and in other slots

`{event}`, `{pending}` … are quoted table names. Comments stay in the file.

What every dialect has in common is in `store/<product>/sql`, what MySQL and SQLite have in common in
`store/<product>/stepped/sql`, the rest in `store/<product>/<dialect>/sql`; the narrower text wins. Where PostgreSQL
must be told a parameter's type the common text does so (`:limit::integer`), and others get it without.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple, cast, get_args

from ..op import Query, ResultKind

Block = tuple[str, ResultKind]

FOLDERS = {"postgres": ("", "postgres"), "mysql": ("", "stepped", "mysql"), "sqlite": ("", "stepped", "sqlite")}
_HEADER = re.compile(r"^-- (?:name: (?P<name>[a-z_.]+) -> (?P<answer>[a-z]+)|slot: (?P<slot>[a-z_]+))$", re.MULTILINE)
_SLOT = re.compile(r"\{([a-z_]+)\}")
_TYPE = re.compile(r"(:[a-z_]+)::[a-z0-9]+(?:\[\])?")
# Literals and quoted names, and calls: in our texts keywords are in capitals.
_CALL = re.compile(r"""'[^']*'|"[^"]*"|(?<![\w.:"])([a-z_]+)\(""")
_NO_CALL = {"coalesce", "extract", "greatest", "least", "nullif"}


class Texts(NamedTuple):
    queries: dict[str, Block]
    slots: dict[str, str]


@cache
def texts(product: str, dialect: str) -> Texts:
    """What a product asks a dialect, by name."""
    found = Texts({}, {})
    for folder in FOLDERS[dialect]:
        own = read(f"{product}/{folder}")
        found.queries.update(own.queries)
        found.slots.update(own.slots)
    if dialect == "postgres":
        return found
    queries = {name: (_TYPE.sub(r"\1", text), answer) for name, (text, answer) in found.queries.items()}
    return Texts(queries, {name: _TYPE.sub(r"\1", text) for name, text in found.slots.items()})


@cache
def read(path: str) -> Texts:
    """The files of one folder. Comments are stripped once, here."""
    found = Texts({}, {})
    folder = files("relaybox.store").joinpath(path, "sql")
    for file in sorted(folder.iterdir(), key=lambda f: f.name) if folder.is_dir() else ():
        text = file.read_text(encoding="utf-8")
        heads = list(_HEADER.finditer(text))
        for head, following in zip(heads, [*heads[1:], None], strict=True):
            body = without_comments(text[head.end() : following.start() if following else len(text)])
            name, answer = head["name"] or head["slot"], cast(ResultKind, head["answer"])
            if name in found.queries or name in found.slots:
                raise ValueError(f"{path}/{file.name}: {name} is defined twice")
            if head["slot"]:
                found.slots[name] = body
            elif answer in get_args(ResultKind):
                found.queries[name] = (body, answer)
            else:
                raise ValueError(f"{path}/{file.name}: {name} answers {answer!r}, not rows or count")
    return found


def without_comments(sql: str) -> str:
    lines = [line for line in sql.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(line for line in lines if line.strip()).strip().rstrip(";")


def fill(text: str, names: Mapping[str, str]) -> str:
    return _SLOT.sub(lambda slot: names[slot[1]], text)


@lru_cache(maxsize=4096)  # the next outbox has the same texts
def qualified(text: str) -> str:
    """Functions by their full names, for PostgreSQL: where strangers may create some in a schema of the `search_path`,
    one of theirs that fits better would be taken. Operators have no such names that keep their precedence: in our texts
    the types on their two sides are those of an operator of the server's own."""

    def named(call: re.Match[str]) -> str:
        if call[1] is None or call[1] in _NO_CALL or text.endswith("AS ", 0, call.start()):
            return call[0]
        if call[1] == "unnest" and _arguments(text, call.end()) > 1:
            return call[0]  # of several arrays it is syntax, and the server's own
        return f"pg_catalog.{call[0]}"

    return _CALL.sub(named, text)


def _arguments(text: str, start: int) -> int:
    """How many there are in the parentheses that begin here."""
    depth, count = 1, 1
    for sign in text[start:]:
        depth += (sign in "([") - (sign in ")]")
        count += sign == "," and depth == 1
        if depth == 0:
            break
    return count


class Names(dict[str, str]):
    """What stands for each slot: the names of tables, and texts that are filled when they are asked for."""

    def __init__(self, tables: Mapping[str, str], slots: Mapping[str, str]) -> None:
        super().__init__(tables)
        self._slots = slots

    def __missing__(self, slot: str) -> str:
        self[slot] = text = fill(self._slots[slot], self)
        return text


def load(found: Mapping[str, Block], names: Mapping[str, str], finish: Callable[[str], str] = str) -> dict[str, Query]:
    """`finish`: what a dialect does to a text that is filled."""
    return {name: Query(name, finish(fill(text, names)), answer) for name, (text, answer) in found.items()}
