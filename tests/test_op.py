"""Ops driven by hand, sync and async; parameters in four styles."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relaybox.op import Copy, Op, ParamStyle, Query, Result, Statement, arun, run

PICK = Query("pick", "SELECT :a, :b, :a", "rows")


def two_steps() -> Op[int]:
    first = yield PICK.bind(a=1, b=2)
    try:
        second = yield PICK.bind(a=first.count, b=0)
    except ValueError:
        return -1
    return first.count + second.count


def test_an_op_can_be_driven_by_hand() -> None:
    op = two_steps()
    statement = next(op)
    assert isinstance(statement, Statement)
    assert statement.params == {"a": 1, "b": 2}
    assert op.send(Result([], 5)).params["a"] == 5  # type: ignore[union-attr]
    with pytest.raises(StopIteration) as stop:
        op.send(Result([], 2))
    assert stop.value.value == 7


class Connection:
    def __init__(self, *answers: Result | BaseException) -> None:
        self.answers = list(answers)
        self.asked: list[Statement | Copy] = []

    def execute(self, statement: Statement | Copy) -> Result:
        self.asked.append(statement)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class AsyncConnection(Connection):
    async def execute(self, statement: Statement | Copy) -> Result:  # type: ignore[override]
        return super().execute(statement)


ANSWERS: list[tuple[list[Any], int | type[BaseException]]] = [
    ([Result([], 1), Result([], 2)], 3),
    ([Result([], 1), ValueError("handled by the op")], -1),
    ([Result([], 1), KeyError("not handled")], KeyError),
    ([KeyboardInterrupt()], KeyboardInterrupt),
]


@pytest.mark.parametrize(("answers", "expected"), ANSWERS)
def test_run(answers: list[Any], expected: int | type[BaseException]) -> None:
    connection = Connection(*answers)
    if isinstance(expected, int):
        assert run(two_steps(), connection) == expected
    else:
        with pytest.raises(expected):
            run(two_steps(), connection)
    assert len(connection.asked) == len(answers)


@pytest.mark.parametrize(("answers", "expected"), ANSWERS)
async def test_arun(answers: list[Any], expected: int | type[BaseException]) -> None:
    connection = AsyncConnection(*answers)
    if isinstance(expected, int):
        assert await arun(two_steps(), connection) == expected
    else:
        with pytest.raises(expected):
            await arun(two_steps(), connection)
    assert len(connection.asked) == len(answers)


def test_an_op_that_asks_nothing() -> None:
    def nothing() -> Op[str]:
        return "answer"
        yield PICK.bind()

    assert run(nothing(), Connection()) == "answer"


@pytest.mark.parametrize(
    ("style", "text", "names"),
    [
        ("qmark", "SELECT ?, ?, ?", ("a", "b", "a")),
        ("format", "SELECT %s, %s, %s", ("a", "b", "a")),
        ("dollar", "SELECT $1, $2, $1", ("a", "b")),
        ("named", "SELECT :a, :b, :a", ("a", "b")),
    ],
)
def test_styles(style: ParamStyle, text: str, names: tuple[str, ...]) -> None:
    assert PICK.compiled(style) == (text, names)
    assert PICK.compiled(style) is PICK.compiled(style)  # compiled once
    values = {"a": 1, "b": 2}
    assert PICK.bind(**values).positional(style) == (text, [values[name] for name in names])


def test_casts_are_not_parameters() -> None:
    query = Query("q", "SELECT :a::bigint[], x::text, '12:30' WHERE y=:a", "rows")
    assert query.compiled("dollar") == ("SELECT $1::bigint[], x::text, '12:30' WHERE y=$1", ("a",))


def test_percent_is_doubled_only_where_it_must_be() -> None:
    query = Query("q", "SELECT :n % :m, 'a%'", "rows")
    assert query.compiled("format")[0] == "SELECT %s %% %s, 'a%%'"
    assert query.compiled("qmark")[0] == "SELECT ? % ?, 'a%'"
    assert query.compiled("dollar")[0] == "SELECT $1 % $2, 'a%'"


@given(st.lists(st.sampled_from(["a", "b_2", "c"]), max_size=8))
def test_every_style_places_every_parameter(names: list[str]) -> None:
    query = Query("q", ", ".join(f":{name}" for name in names), "rows")
    values = {name: n for n, name in enumerate(["a", "b_2", "c"])}
    for style in ("qmark", "format"):
        assert query.bind(**values).positional(style)[1] == [values[name] for name in names]
    text, given_values = query.bind(**values).positional("dollar")
    rebuilt = [given_values[int(part[1:]) - 1] for part in text.split(", ") if part]
    assert rebuilt == [values[name] for name in names]


def test_reprs_show_no_values() -> None:
    statement = PICK.bind(a="secret", b="secret")
    assert (repr(statement), repr(PICK)) == ("Statement(pick)", "Query(pick)")
    assert repr(Copy("t", None, ["a"], ["text"], [("secret",)])) == "Copy(t, 1 rows)"
