"""A guard's table on SQLite."""

from __future__ import annotations

from ...guard import GuardSchema
from .. import SqliteStore


class SqliteGuardSchema(GuardSchema, SqliteStore):
    pass
