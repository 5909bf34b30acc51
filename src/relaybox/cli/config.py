"""`relaybox config`: every setting in force, and where it came from."""

from __future__ import annotations

from datetime import timedelta

import typer

from ..durations import format_duration
from ..redaction import masked
from ..settings import explained
from .connect import target_of
from .options import Json
from .output import console, emit, table

_ABOUT = {
    "url": "the database",
    "table": "the event table; the others are named after it",
    "schema": "where the tables are; none: the connection's own",
}


def config(context: typer.Context, json: Json = False) -> None:
    """The effective settings: argument before environment before file before default."""
    target = target_of(context)
    rows: list[tuple[str, object, str, str]] = []
    for name, given in (("url", target.url), ("table", target.table), ("schema", target.schema)):
        value = masked(given.value) if name == "url" and given.value else given.value
        rows.append((name, value, given.origin, _ABOUT[name]))
    rows += explained(target.config).origins
    if json:
        names = ("name", "value", "origin", "about")
        emit({"settings": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    shown_rows = [
        (name, "none" if value is None else format_duration(value) if isinstance(value, timedelta) else value, *rest)
        for name, value, *rest in rows
    ]
    console().print(table(None, ("setting", "value", "origin", "about"), shown_rows))
