"""A migration is rehearsed: what it would send is written down as SQL."""

from __future__ import annotations

import re
from typing import Any

from ..op import Copy, Executor, Result, Statement

_NAMED = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")


class Rehearsal:
    """Lets migrate() look at the database and writes down what it would change, so the plan cannot be wrong.

    Without a connection it plays an empty database.
    """

    def __init__(self, connection: Executor | None) -> None:
        self._connection = connection
        self.texts: list[str] = []

    def execute(self, statement: Statement | Copy) -> Result:
        assert isinstance(statement, Statement)
        query = statement.query
        if query.name in ("schema.lock", "schema.unlock"):
            return Result([(1,)], 1)
        if query.answer == "count":
            self.texts.append(_with_values(statement))
            return Result((), 0)
        return Result([(False,)], 1) if self._connection is None else self._connection.execute(statement)


def _with_values(statement: Statement) -> str:
    """The values are numbers, file names, checksums and statements of ours."""
    text, names = statement.query.compiled("named")
    return _NAMED.sub(lambda name: _literal(statement.params[name[1]]), text) if names else text


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"ARRAY[{', '.join(map(_literal, value))}]"
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"
