"""Database operations as generators of statements: one source for sync and async.

An op yields a Statement, is sent its Result, and returns a value:

    def failing(self) -> Op[int]:
        result = yield self.sql["outbox.status.failing"].bind()
        return result.rows[0][0]

Only `run` and `arun` do I/O. Ops never begin, commit or roll back: the owner of the connection does.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

S = TypeVar("S")
T = TypeVar("T")

ParamStyle = Literal["qmark", "format", "percent", "dollar", "named"]  # percent: as format, "%" stands for itself
ResultKind = Literal["rows", "count"]


@dataclass(slots=True, eq=False, repr=False)
class Result:
    """What the database answered: the rows, and how many it returned or changed."""

    rows: Sequence[Any]
    count: int


class Query:
    """One named SQL text, compiled once per parameter style."""

    __slots__ = ("_compiled", "answer", "name", "text")

    def __init__(self, name: str, text: str, answer: ResultKind) -> None:
        self.name = name
        self.text = text
        self.answer: ResultKind = answer
        self._compiled: dict[ParamStyle, tuple[str, tuple[str, ...]]] = {}

    def bind(self, **params: Any) -> Statement:
        return Statement(self, params)

    def compiled(self, style: ParamStyle) -> tuple[str, tuple[str, ...]]:
        """The text in the driver's style, and the parameter names in the order it wants them."""
        found = self._compiled.get(style)
        if found is None:
            found = self._compiled[style] = _compile(self.text, style)
        return found

    def __repr__(self) -> str:
        return f"Query({self.name})"


@dataclass(slots=True, eq=False, repr=False)
class Statement:
    """A query with its values. The repr names the query only: values may be payloads."""

    query: Query
    params: dict[str, Any]

    def positional(self, style: ParamStyle) -> tuple[str, Sequence[Any]]:
        text, names = self.query.compiled(style)
        params = self.params
        return text, [params[name] for name in names]

    def __repr__(self) -> str:
        return f"Statement({self.query.name})"


@dataclass(slots=True, eq=False, repr=False)
class Copy:
    """Rows for PostgreSQL's COPY … FROM STDIN (FORMAT binary), for drivers that have it."""

    table: str
    schema: str | None
    columns: Sequence[str]
    types: Sequence[str]
    rows: Sequence[tuple[Any, ...]]

    def __repr__(self) -> str:
        return f"Copy({self.table}, {len(self.rows)} rows)"


Op = Generator[Statement | Copy, Result, T]


class Executor(Protocol):
    def execute(self, statement: Statement | Copy) -> Result: ...


class AsyncExecutor(Protocol):
    async def execute(self, statement: Statement | Copy) -> Result: ...


def drive(steps: Generator[S, Any, T], answer: Callable[[S], Any]) -> T:
    """Sends a generator the answer to each of its steps, and returns what it returns."""
    try:
        step = next(steps)
        while True:
            try:
                result = answer(step)
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as stop:
        returned: T = stop.value
        return returned


async def adrive(steps: Generator[S, Any, T], answer: Callable[[S], Awaitable[Any]]) -> T:
    """`drive` in an event loop."""
    try:
        step = next(steps)
        while True:
            try:
                result = await answer(step)
            except GeneratorExit:
                raise
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as stop:
        returned: T = stop.value
        return returned


def run(op: Op[T], connection: Executor) -> T:
    return drive(op, connection.execute)


def arun(op: Op[T], connection: AsyncExecutor) -> Coroutine[Any, Any, T]:
    return adrive(op, connection.execute)


_PARAM = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")


def _compile(text: str, style: ParamStyle) -> tuple[str, tuple[str, ...]]:
    names: list[str] = []

    def place(match: re.Match[str]) -> str:
        name, repeated = match[1], style in ("qmark", "format", "percent")
        if repeated or name not in names:
            names.append(name)
        if repeated:
            return "?" if style == "qmark" else "%s"
        return f"${names.index(name) + 1}" if style == "dollar" else f":{name}"

    if style == "format":
        text = text.replace("%", "%%")
    return _PARAM.sub(place, text), tuple(names)
