"""A guard's table on PostgreSQL."""

from __future__ import annotations

from ...guard import GuardSchema
from .. import PostgresStore


class PostgresGuardSchema(GuardSchema, PostgresStore):
    pass
