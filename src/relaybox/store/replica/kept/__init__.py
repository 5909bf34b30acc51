"""A replicated table: made, checked, and changed by batches of rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ....errors import FeedError, StoreError
from ....feed import key_number
from ....op import Op, Query
from ...event_rows import as_json
from ...names import Tables, identifier
from ...queries import Names, fill, load, texts
from .. import ReplicaStore
from ..mapping import declared, free_text, holds_json
from ..rows import Cell, KeptColumn, Number, batches, cell_of

PRODUCT = "replica/kept"
_PARAMETER = re.compile(r":[a-z_]")  # which statements would take for one
_BESIDE = ("relaybox_n", "relaybox_gone", "relaybox_snapshot")
_ROWS = ("upsert", "note", "noted", "clear", "delete", "remove", "sweep", "some")


@dataclass(frozen=True, slots=True)
class KeptNames(Tables):
    """Its name, and that of the table beside it."""

    def substitutions(self, quote: str) -> dict[str, str]:
        return self.quoted({"kept": self.event, "beside": f"{self.event}_replica"}, quote) | {
            "namespace": self.schema or ""
        }


class KeptShape:
    """What is known of a table: the feed's columns in it, and how a row becomes cells."""

    def __init__(
        self, key: Sequence[str], types: Mapping[str, str], columns: Sequence[KeptColumn], dialect: str
    ) -> None:
        self.asked = (tuple(key), dict(types))
        self.columns = columns
        self.key = [column for name in key for column in columns if column.name == name]
        self._names = {column.name for column in columns}
        self._json = {column.name for column in columns if column.kind == "json"}
        self._json |= {name for name, type in types.items() if name in self._names and holds_json(type)}
        self._cells: dict[str, Cell] = {
            column.name: cell_of(column, holds_json=column.name in self._json, dialect=dialect) for column in columns
        }
        for column in self.key:
            if column.kind == "text":
                self._cells[column.name] = _spelled(self._cells[column.name])

    def row(self, row: Mapping[str, Any]) -> list[Any]:
        """Of all columns. A feed leaves a column of JSON out that holds the JSON null; None is the NULL of SQL."""
        if row.keys() != self._names:
            self._check(row)
        cells, null = self._cells, None
        try:
            return [
                "null" if (value := row.get(name, cells)) is cells else null if value is None else cell(value)
                for name, cell in cells.items()
            ]
        except RecursionError:
            raise FeedError("a row of the feed has JSON of too many levels", "value") from None

    def key_of(self, row: Mapping[str, Any]) -> list[Any]:
        found = []
        for column in self.key:
            value = row.get(column.name)
            if value is None:
                raise FeedError(f"a row of the feed has no {column.name!r}, which is part of its key", "columns")
            found.append(self._cells[column.name](value))
        return found

    def _check(self, row: Mapping[str, Any]) -> None:
        changed = [f"it has {name!r}, too" for name in row.keys() - self._names]
        changed += [f"it lacks {name!r}" for name in self._names - self._json - row.keys()]
        if changed:
            raise FeedError(
                f"a row of the feed has other columns than the table: {', '.join(sorted(changed))}. Change the table "
                "or drop it, then call migrate() of the replica",
                "columns",
            )


class KeptTable:
    """Ops on one table. `know` comes before those on rows: it reads what columns there are."""

    def __init__(self, store: ReplicaStore, table: str, schema: str | None) -> None:
        self.table = identifier("table name", table)
        self.dialect = store.dialect
        self._quote, self._finish = store.quote, store._dialect.finish
        self._slots = texts("shared", store.dialect).slots | texts(PRODUCT, store.dialect).slots
        self._names = KeptNames(table, schema).substitutions(store.quote)
        self.sql: dict[str, Query] = {}
        self._shape: KeptShape | None = None
        self.stale = False  # the table may be another than it was read

    def _asked(self, name: str, of: str = "kept", **fragments: str) -> Query:
        """A query that is asked before the columns are known, about the table or the one beside it."""
        text, answer = texts(PRODUCT, self.dialect).queries[name]
        fragments |= {} if of == "kept" else {"kept_name": self._names[f"{of}_name"], "kept": self._names[of]}
        finish = str if "definitions" in fragments else self._finish  # a type may look like a call: varying(10)
        return Query(name, finish(fill(text, Names(self._names | fragments, self._slots))), answer)

    # -- what there is ----------------------------------------------------------------------------

    def read_columns(self, of: str = "kept") -> Op[list[KeptColumn]]:
        """Empty: there is no such table."""
        rows = (yield self._asked("kept.columns", of).bind()).rows
        return [KeptColumn._make((*row[:5], bool(row[5]), bool(row[6]), row[7])) for row in rows]

    def check_beside(self) -> Op[None]:
        """Whether what stands beside the table is ours, if anything does."""
        found = {column.name for column in (yield from self.read_columns("beside"))}
        if found and not found.issuperset(_BESIDE):
            name = self._names["beside_name"]
            raise FeedError(
                f"there is a table {name!r} that no replica has made, and the replica of {self.table!r} keeps keys in "
                "one of that name: rename it, or choose another table for the feed",
                "table",
            )

    def create(self, key: Sequence[str], types: Mapping[str, str]) -> Op[None]:
        for wrong in _legible(types):
            raise FeedError(wrong, "types")
        collation = ""
        if self.dialect == "mysql":
            collation = (yield self._asked("kept.collation").bind()).rows[0][0]
        made = [
            " ".join(
                (
                    self._quoted(name),
                    declared(name, type, self.dialect, key=len(key) if name in key else 0, collation=collation),
                    "NOT NULL" if name in key else "",
                )
            )
            for name, type in types.items()
        ]
        yield self._asked("kept.create", definitions=", ".join(made), key=self._list(key)).bind()

    def make_beside(self, key: Sequence[str], columns: Sequence[KeptColumn]) -> Op[None]:
        types = {column.name: column.declared for column in columns}
        made = ", ".join(f"{self._quoted(name)} {types[name]} NOT NULL" for name in key)
        yield self._asked("kept.drop_beside").bind()
        yield self._asked("kept.beside", definitions=made, key=self._list(key)).bind()

    def check(self, columns: Sequence[KeptColumn], key: Sequence[str], types: Mapping[str, str]) -> Op[None]:
        """Whether the table can have the rows of this feed. Says all that is wrong."""
        there, wrong = {column.name: column for column in columns}, list[str]()
        wanted = list(types) or [column.name for column in columns if column.writable]
        if missing := [name for name in dict.fromkeys([*wanted, *key]) if name not in there]:
            wrong.append(f"it has no column {_named(missing)}")
        if fixed := [name for name in wanted if name in there and not there[name].writable]:
            wrong.append(f"nobody can write its column {_named(fixed)}, which is generated")
        if needed := [c.name for c in columns if c.name not in wanted and not c.optional and c.writable]:
            wrong.append(f"it needs a value in {_named(needed)}, which the feed does not have")
        indexes, blurred = dict[str, list[str | None]](), set[str]()
        for index, column, exact in (yield self._asked("kept.unique").bind()).rows:
            indexes.setdefault(index, []).append(column)
            if not exact and column in key and free_text(types.get(column)):
                blurred.add(column)
        found = [name for name, of in indexes.items() if set(of) == set(key)]
        if not found:
            wrong.append(f"it has no unique index on exactly {_named(key)}, the key of the feed")
        if others := sorted(set(indexes) - set(found)):
            wrong.append(f"rows could collide in its unique index {_named(others)}, which is not the feed's key")
        if blurred:
            wrong.append(
                f"its unique index takes texts for equal in {_named(sorted(blurred))} that the feed tells apart: give "
                "it a collation that compares byte by byte, also spaces at the end"
            )
        wrong += _legible(wanted)
        if wrong:
            raise FeedError(
                f"table {self.table!r} cannot follow the feed: {'; '.join(wrong)}. Change it, or drop it and let "
                "migrate() make it",
                "table",
            )

    # -- rows -------------------------------------------------------------------------------------

    def know(self, key: Sequence[str], types: Mapping[str, str]) -> Op[None]:
        """Reads the columns: once, and again when they may be others."""
        if self._shape is not None and not self.stale and self._shape.asked == (tuple(key), dict(types)):
            return
        self.stale = False
        found = {column.name: column for column in (yield from self.read_columns())}
        names = list(types) or [name for name, column in found.items() if column.writable]
        if gone := [name for name in (*names, *key) if name not in found]:
            what = f"column {_named(gone)} of table {self.table!r}" if found else f"table {self.table!r}"
            raise FeedError(f"{what} is not in the target; make it, or call migrate() of the replica", "table")
        shape = KeptShape(key, types, [found[name] for name in names], self.dialect)
        slots = Names(self._names | self._fragments(shape), self._slots)
        wanted = {f"kept.{name}" for name in _ROWS}
        queries = {name: text for name, text in texts(PRODUCT, self.dialect).queries.items() if name in wanted}
        self.sql = load(queries, slots, self._finish)
        self._shape = shape  # last: another thread that finds it uses the queries

    @property
    def _known(self) -> KeptShape:
        assert self._shape is not None, "know() comes first"
        return self._shape

    def upsert(self, rows: Iterable[Mapping[str, Any]]) -> Op[None]:
        try:
            for batch in batches(list(map(self._known.row, rows))):
                yield self.sql["kept.upsert"].bind(**self._sent(batch, self._known.columns))
        except StoreError:
            self.stale = True  # somebody may alter the table for it
            raise

    def note(self, rows: Iterable[Mapping[str, Any]], *, n: int = 0, gone: bool = False, snapshot: int = 0) -> Op[None]:
        """The keys of these rows go beside the table."""
        told = {"n": n, "gone": int(gone), "snapshot": snapshot}
        for batch in batches(list(map(self._known.key_of, rows))):
            yield self.sql["kept.note"].bind(**self._sent(batch, self._known.key), **told)

    def delete(self) -> Op[None]:
        """Those noted as gone."""
        yield self.sql["kept.delete"].bind()

    def noted(self, row: Mapping[str, Any]) -> Op[tuple[int, bool, int]]:
        """Of its key: the version, whether that is gone, and the last snapshot that had it."""
        rows = (yield self.sql["kept.noted"].bind(**self._one(row))).rows
        return (int(rows[0][0]), bool(rows[0][1]), int(rows[0][2])) if rows else (0, False, 0)

    def remove(self, row: Mapping[str, Any]) -> Op[None]:
        yield self.sql["kept.remove"].bind(**self._one(row))

    def clear(self, n: int = 2**62) -> Op[None]:
        """What is beside the table, up to this version."""
        yield self.sql["kept.clear"].bind(n=n)

    def sweep(self, snapshot: int) -> Op[None]:
        yield self.sql["kept.sweep"].bind(snapshot=snapshot)

    def some(self) -> Op[bool]:
        return bool((yield self.sql["kept.some"].bind()).rows)

    # -- as the dialects have it --------------------------------------------------------------------

    def _quoted(self, name: str) -> str:
        return self._quote + name.replace(self._quote, self._quote * 2) + self._quote

    def _list(self, names: Iterable[str]) -> str:
        return ", ".join(map(self._quoted, names))

    def _fragments(self, shape: KeptShape) -> dict[str, str]:
        names, key = ([self._quoted(column.name) for column in some] for some in (shape.columns, shape.key))
        new = "VALUES({})" if self.dialect == "mysql" else "excluded.{}"
        (rows, cells), (key_rows, key_cells) = self._read(shape.columns), self._read(shape.key)
        key_is = (
            f"{name} {column.equals} {self._cast(f':k{i}', column)}"
            for i, (name, column) in enumerate(zip(key, shape.key, strict=True))
        )
        return {
            "columns": ", ".join(names),
            "updates": ", ".join(f"{name} = {new.format(name)}" for name in names),
            "key": ", ".join(key),
            "key_is": " AND ".join(key_is),
            "same": " AND ".join(
                f"v.{name} {column.equals} t.{name}" for name, column in zip(key, shape.key, strict=True)
            ),
            "rows": rows,
            "cells": cells,
            "key_rows": key_rows,
            "key_cells": key_cells,
        }

    def _cast(self, value: str, column: KeptColumn) -> str:
        """What a comparison or an INSERT takes for a text."""
        return f"CAST({value}::text AS {column.type})" if self.dialect == "postgres" else value

    def _read(self, columns: Sequence[KeptColumn]) -> tuple[str, str]:
        """What is sent as an item of FROM, and what each column reads of it."""
        names = [f"c{i}" for i in range(len(columns))]
        if self.dialect == "postgres":
            arrays = ", ".join(f":{name}::text[]" for name in names)
            cells = [self._cast(f"r.{name}", column) for name, column in zip(names, columns, strict=True)]
            return f"unnest({arrays}) AS r({', '.join(names)})", ", ".join(cells)
        if self.dialect == "mysql":
            paths = ", ".join(f"{name} longtext CHARACTER SET utf8mb4 PATH '$[{i}]'" for i, name in enumerate(names))
            cells = [f"unhex(r.c{i})" if column.kind == "bytes" else f"r.c{i}" for i, column in enumerate(columns)]
            return f"JSON_TABLE(CONVERT(:rows USING utf8mb4), '$[*]' COLUMNS ({paths})) r", ", ".join(cells)
        part = "substr(:bytes, json_extract(r.value, '$[{0}][0]'), json_extract(r.value, '$[{0}][1]'))"
        cells = [
            part.format(i) if column.kind == "bytes" else f"json_extract(r.value, '$[{i}]')"
            for i, column in enumerate(columns)
        ]
        return "json_each(:rows) r", ", ".join(cells)

    def _sent(self, batch: Sequence[list[Any]], columns: Sequence[KeptColumn]) -> dict[str, Any]:
        """SQLite reads no hexadecimal digits: bytes travel beside the cells, which say where they are."""
        if self.dialect == "postgres":
            return {f"c{i}": list(cells) for i, cells in enumerate(zip(*batch, strict=True))}
        if self.dialect == "mysql":
            return {"rows": as_json(batch)}
        joined = bytearray()
        for i in [i for i, column in enumerate(columns) if column.kind == "bytes"]:
            for row in batch:
                if row[i] is not None:
                    start = len(joined)
                    joined += bytes.fromhex(row[i])
                    row[i] = [start + 1, len(joined) - start]
        return {"rows": as_json(batch), "bytes": bytes(joined)}

    def _one(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The key of one row. Where texts are not cast, they are numbers and bytes already."""
        cells: list[Any] = self._known.key_of(row)
        if self.dialect != "postgres":
            reads = {"bytes": bytes.fromhex, "number": Decimal if self.dialect == "mysql" else int}
            cells = [
                reads[column.kind](cell) if column.kind in reads else cell
                for column, cell in zip(self._known.key, cells, strict=True)
            ]
        return {f"k{i}": cell for i, cell in enumerate(cells)}


def _spelled(cell: Cell) -> Cell:
    """In a key that is text a number has one spelling."""
    return lambda value: key_number(value) if isinstance(value, Number) else cell(value)


def _legible(names: Iterable[str]) -> Iterator[str]:
    """What statements would take for a parameter."""
    if strange := [name for name in names if _PARAMETER.search(name)]:
        yield f"the name {_named(strange)} cannot be used: give the column another one in the query of the feed"


def _named(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
