"""A PostgreSQL database in which a stranger may create objects in `public`, and has: an operator for every pair of
types for which the server has none of its own, and functions that fit a call better than the server's.

Who calls one of them gets the error "hijacked".
"""

from __future__ import annotations

import re
from typing import Any, LiteralString

import psycopg
from psycopg import sql

TYPES = (
    *("smallint", "integer", "bigint", "float8", "numeric", "text", "varchar", "name", "bytea", "boolean"),
    *("timestamptz", "interval", "oid", "xid8", "json", "integer[]", "bigint[]", "smallint[]", "text[]", "xid8[]"),
)
OPERATORS = ("=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "||", "~~", "&", "->>", "<@")
FUNCTIONS = (
    "now",
    "clock_timestamp",
    "md5",
    "nextval",
    "count",
    "random",
    "set_config",
    "pg_notify",
    "substr",
    "unnest",
)

_PLANT: LiteralString = """
DO $$
DECLARE a text; b text; o text;
BEGIN
  FOREACH a IN ARRAY {types}::text[] LOOP
    FOREACH b IN ARRAY {types}::text[] LOOP
      EXECUTE format('CREATE FUNCTION public.hostile(%s, %s) RETURNS boolean LANGUAGE plpgsql AS '
                     '''BEGIN RAISE ''''hijacked: %s, %s''''; END''', a, b, a, b);
      FOREACH o IN ARRAY {operators}::text[] LOOP
        IF NOT EXISTS (SELECT FROM pg_operator WHERE oprname = o
                       AND oprleft = a::regtype AND oprright = b::regtype) THEN
          EXECUTE format('CREATE OPERATOR public.%s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = public.hostile)', o, a, b);
        END IF;
      END LOOP;
    END LOOP;
    FOREACH o IN ARRAY {functions}::text[] LOOP
      EXECUTE format('CREATE FUNCTION public.%I(%s) RETURNS %s LANGUAGE plpgsql AS '
                     '''BEGIN RAISE ''''hijacked: %s''''; END''', o, a, a, o);
    END LOOP;
  END LOOP;
END $$
"""
_LOOK = """
SELECT oid, oprname || ' of ' || oprleft::regtype || ' and ' || oprright::regtype FROM pg_operator
WHERE oprnamespace = 'public'::regnamespace
UNION ALL
SELECT oid, oid::regprocedure::text FROM pg_proc
WHERE pronamespace = 'public'::regnamespace AND prosrc LIKE '%hijacked%'
"""
_OIDS = re.compile(r":(?:opno|funcid|opfuncid|aggfnoid|winfnoid) (\d+)")


def plant(url: str) -> None:
    words = {"types": list(TYPES), "operators": list(OPERATORS), "functions": list(FUNCTIONS)}
    with psycopg.connect(url, autocommit=True) as stranger:
        stranger.execute(sql.SQL(_PLANT).format(**{name: sql.Literal(word) for name, word in words.items()}))


class Parsed:
    """Statements as the server understands them on a session that looks into `public`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._trees: list[str] = []
        connection.add_notice_handler(lambda notice: self._trees.append(notice.message_detail or ""))
        with connection.transaction():
            connection.execute("SET LOCAL search_path = pg_catalog")
            self.hostile: dict[int, str] = dict(connection.execute(_LOOK).fetchall())
        connection.execute("SET debug_print_parse = on; SET client_min_messages = log")

    def strangers(self, text: str) -> set[str]:
        """What of the stranger's the statement would call, and the error of one that cannot be understood."""
        self._trees.clear()
        try:
            self._connection.execute(f"PREPARE looked_at AS {text}".encode())
        except psycopg.Error as error:
            return {str(error).splitlines()[0]}
        self._connection.execute("DEALLOCATE looked_at")
        oids = {int(oid) for tree in self._trees for oid in _OIDS.findall(tree)}
        return {self.hostile[oid] for oid in oids & self.hostile.keys()}

    def depending(self) -> list[str]:
        """Views, defaults, indexes and functions that call the stranger's."""
        text = """SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend WHERE refobjid = ANY(%s)
                  AND classid <> 'pg_operator'::regclass"""
        with self._connection.transaction():
            self._connection.execute("SET LOCAL search_path = pg_catalog")
            return [row[0] for row in self._connection.execute(text, [list(self.hostile)])]
