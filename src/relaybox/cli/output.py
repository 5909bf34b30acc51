"""What commands print: tables for people, one JSON document for programs.

Stored text (types, keys, errors, headers) was written by others: it is shown as text, never as markup, and
its control characters are spelled out, so that it cannot play with the terminal.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..printable import escaped
from ..values import Progress as HowFar
from .logs import in_json, json_line

EXACT = 10_000  # where counting more would be slow, stores estimate
PIPE_WIDTH = 200  # when nobody sets a width, wide enough that ids and names are not cut


def console(*, stderr: bool = False) -> Console:
    """Made per use: a test or a pipe may have replaced the stream."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = PIPE_WIDTH
    return made


def plain(value: object) -> Text:
    if value is None:
        return Text("–", style="dim")
    if isinstance(value, datetime):
        return Text(value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ"))
    return Text(visible(str(value)))


def first_line(error: str | None) -> str | None:
    """An error as a cell of a table has room for it."""
    return error and (error.splitlines() or [""])[0][:120]


def visible(text: str) -> str:
    return escaped(text, but="\n")


def table(title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Without a header where no column has a name."""
    made = Table(
        title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", show_header=any(columns)
    )
    for number, name in enumerate(columns):
        made.add_column(name, no_wrap=number == 0, overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else plain(cell) for cell in row))
    return made


def say(text: str) -> None:
    """One line for people, unless this process speaks JSON."""
    if in_json():
        sys.stdout.write(json_line(text))
        return
    console().print(plain(text), soft_wrap=True)


def answer(json: bool, document: Any, text: str, *, schema: str | None = None) -> None:
    """The document for programs, or one line for people."""
    emit(document, schema=schema) if json else say(text)


def emit(document: Any, *, schema: str | None = None) -> None:
    """One JSON document. ASCII only, so that no locale and no terminal can stumble over it. `schema` names what is in
    it: within 1.x fields are only added."""
    if schema is not None:
        document = {"schema": schema, **document}
    sys.stdout.write(json.dumps(document, default=encode, indent=2) + "\n")


def emit_list(key: str, items: Iterable[Any], *, schema: str | None = None) -> None:
    """`emit` for a list of any length, written as it comes."""
    sys.stdout.write((f'{{"schema": "{schema}", ' if schema else "{") + f'"{key}": [')
    for number, item in enumerate(items):
        sys.stdout.write((",\n  " if number else "\n  ") + json.dumps(item, default=encode))
    sys.stdout.write("\n]}\n")


def encode(value: object) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case timedelta():
            return value.total_seconds()
        case time():
            return value.isoformat("minutes")
        case _ if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
    raise TypeError(f"cannot print a {type(value).__name__}")


def about(count: int) -> str:
    """A count that is an estimate where there is much to count."""
    return f"~{count:,}" if count > EXACT else f"{count:,}"


def age(value: timedelta) -> str:
    seconds = value.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


def fail(text: str) -> None:
    """The one line an error gets."""
    _told("error", logging.ERROR, " ".join(text.split()))


def warn(text: str) -> None:
    _told("warning", logging.WARNING, text)


def _told(word: str, level: int, text: str) -> None:
    sys.stderr.write(json_line(text, level) if in_json() else f"{word}: {visible(text)}\n")


def confirm(question: str) -> None:
    """Ask on stderr, so that stdout stays what was asked for; without an answer nothing happens."""
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        sys.stderr.write("\n")
        fail("nobody answered; add --yes to go ahead without a question")
        raise typer.Exit(1) from None
    if not agreed:
        fail("nothing was changed")
        raise typer.Exit(1)


@contextmanager
def moving(what: str, total: int | None = None) -> Iterator[Callable[[HowFar], None]]:
    """A bar on stderr, if that is a terminal, which moves as a long job says how far it is."""
    with progress(total=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda at: bar.update(task, description=at.what, completed=at.done, total=at.total or total)


def progress(*, total: bool) -> Progress:
    count = MofNCompleteColumn() if total else TextColumn("{task.completed}")
    bar: list[Any] = [BarColumn()] if total else []
    columns = [SpinnerColumn(), TextColumn("{task.description}"), *bar, count, TimeElapsedColumn()]
    out = console(stderr=True)
    return Progress(*columns, console=out, transient=True, disable=not out.is_terminal)  # else it ends with a line
