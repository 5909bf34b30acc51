"""A guard's table on MySQL and MariaDB."""

from __future__ import annotations

from ...guard import GuardSchema
from .. import MysqlStore


class MysqlGuardSchema(GuardSchema, MysqlStore):
    def text(self, value: str) -> bytes:
        """Binary columns: every text collation that both servers know takes 'a' and 'a ' for the same key."""
        return value.encode()
