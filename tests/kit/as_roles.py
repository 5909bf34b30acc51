"""The suites under roles of the database that own nothing: `TEST_ROLES=1 pytest tests/outbox`.

Every URL of a private PostgreSQL server names a role, the member, that was granted what `relaybox grants` prints for
the roles asked for, and no more: `1` means each of them (without tenant, who is bound to rows), `worker,operator` means
those two. No test knows of it.

- What the library does, it does as the member: in its own sessions, in those of SQLAlchemy and Django, in child
  processes, and in every handle of `kit.handles`.
- What is for the owner of the tables (OWNED) it does as the owner, in the same transaction; then the member is granted
  what is new.
- Writes call the function that a writer is granted. It goes by the clock of the database: where a test has a clock of
  its own, or a cap needs an insert, the owner writes.
- What a test does by itself (`kit.rows`, `psycopg.connect`), it does as the owner. What it makes, the member may use.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import psycopg
import pytest

from relaybox.audit import Change
from relaybox.errors import StoreError
from relaybox.op import Op, Query
from relaybox.store.grants import ROLES, Statements
from relaybox.store.grants.ops import _of_topics, home_of, statements
from relaybox.store.outbox.postgres import PostgresStore
from relaybox.store.schema import Schema
from relaybox.store.topics.store import TopicStore
from relaybox.testing.servers import PostgresPair, pgbouncer
from relaybox.testing.servers.postgres import USER, PostgresServer, connect

SWITCH = "TEST_ROLES"
MEMBER = "rb_member"
TESTS = Path(__file__).parent.parent
SESSIONS = TESTS / "kit" / "handles.py"  # callers of the library, rather than a test that looks past it

# What is for the owner of the tables, as docs/operate/roles.md says: to make tables and to change them.
OWNED: tuple[tuple[type[Any], Sequence[str]], ...] = (
    (Schema, ["locked"]),  # every migration, what fair claims need, and adopting and dropping an inbox
    (
        TopicStore,
        ["migrate", "configure", "make_log", "drop", "begin_move", "move_step", "rename_semantics", "cancel_move"],
    ),
    (TopicStore, ["ahead", "make_part", "verdict", "unmark", "lost_with", "drop_part", "make_fair"]),
    (TopicStore, ["stamp", "place_again", "go_on", "note_incarnation"]),  # of a restored cluster: doctor --repair
)

# The traces of that in the audit table.
OWNERS_TRACES = ("configure topic ", "drop topic ", "move topic ", "cancel move topic ", "adopt table ")

DAMAGE = "tables are changed through a session of the library"
COPIED = "large batches come by COPY, which the function of a writer does not"
INSERTS = "a writer inserts by itself, which is for roles of one's own"
UNSEEN = "times of other roles' sessions are for members of pg_read_all_stats"
CALLED = "the statement is compared by its name, and a writer calls the function instead"
HANDED = "what the function writes is claimed by nobody, so nothing is handed over in memory"
# What is about something that only an owner can do or see, and why: a folder, a file (with ::) or a test.
LEFT_OUT = {
    "inbox/test_doctor.py::test_the_tables_of_every_inbox_are_looked_at": DAMAGE,
    "inbox/test_sender_migration.py::": "grants are for the tables of this release, not of one before",
    "maintenance/test_incarnation.py::": "a cluster is dumped and restored, which its owner does",
    "maintenance/test_maintainer.py::test_the_horizon_is_the_oldest_writer": UNSEEN,
    "outbox/test_caps.py::test_batches_are_counted": COPIED,
    "outbox/test_delivering.py::test_hot_and_cold": HANDED,
    "outbox/test_doctor.py::test_durable_postgres_is_well_and_idle_transactions_are_seen": UNSEEN,
    "outbox/test_fair.py::test_a_writer_of_its_own_need_not_know_of_it": INSERTS,
    "outbox/test_fair.py::test_batches_of_several_tenants_are_taken_apart": COPIED,
    "outbox/test_fair.py::test_batches_take_turns_too": COPIED,
    "outbox/test_two_sessions.py::test_a_large_refused_batch_is_given_back_in_time": HANDED,
    "outbox/test_two_sessions.py::test_settling_one_part_of_a_claim_while_another_part_is_given_back": HANDED,
    "outbox/test_unreadable.py::test_one_row_that_cannot_be_read_is_a_dead_letter_and_its_key_goes_on": DAMAGE,
    "outbox/test_write_hooks.py::test_manual_transaction_async": HANDED,
    "outbox/test_write_hooks.py::test_transaction_on_the_callers_connection": HANDED,
    "topics/test_route.py::test_one_statement_per_topic_once_it_is_known": CALLED,
    "topics/test_route.py::test_only_events_of_the_outbox_are_handed_over_after_the_commit": HANDED,
    "topics/test_catalog.py::test_migrating_upgrades_the_queues_too": DAMAGE,
    "outbox/cdc/": "a connector has a role of its own, which replicates; its check says what that role lacks",
}

_OTHERS = re.compile(r"[\[-](sqlite|mariadb|mysql|aiosqlite|pymysql|asyncmy|Sqlite3|DjangoSqlite|Sa\w*(ysql|lite))\b")
_SETUP = f"""
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
CREATE SCHEMA lent;
CREATE FUNCTION lent.lend() RETURNS event_trigger LANGUAGE plpgsql AS $lend$
DECLARE made record;
BEGIN
  IF session_user <> '{USER}' THEN RETURN; END IF;
  FOR made IN SELECT * FROM pg_event_trigger_ddl_commands() LOOP
    IF made.object_type IN ('table', 'view') THEN
      EXECUTE format('GRANT ALL ON TABLE %s TO {MEMBER}', made.object_identity);
    ELSIF made.object_type = 'sequence' THEN
      EXECUTE format('GRANT ALL ON SEQUENCE %s TO {MEMBER}', made.object_identity);
    ELSIF made.object_type = 'schema' THEN
      EXECUTE format('GRANT USAGE ON SCHEMA %s TO {MEMBER}', made.object_identity);
    END IF;
  END LOOP;
END $lend$;
CREATE EVENT TRIGGER lend ON ddl_command_end
  WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'CREATE VIEW', 'CREATE SEQUENCE', 'CREATE SCHEMA')
  EXECUTE FUNCTION lent.lend();
"""
# Which tables there are in this database, and what of them is granted.
_THERE = f"""
SELECT current_database()::text, md5(string_agg(oid::text || coalesce(relacl::text, ''), ',' ORDER BY oid))
FROM pg_class WHERE relowner = '{USER}'::regrole AND oid >= 16384 AND relkind IN ('r', 'p', 'v', 'S')
""".strip()
_granted: set[tuple[Any, ...]] = set()


def asked() -> list[str]:
    wanted = os.environ.get(SWITCH, "")
    return [role for role in ROLES if role != "tenant"] if wanted == "1" else wanted.split(",")


# -- databases and sessions -----------------------------------------------------------------------------


def _lent(url: str) -> str:
    return url.replace(f"//{USER}@", f"//{MEMBER}@")


def _lend_databases() -> None:
    made = PostgresServer.create_database

    def create(server: PostgresServer, template: str | None = None) -> str:
        with connect(server.url()) as admin:
            if not admin.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (MEMBER,)).fetchone():
                admin.execute(f"CREATE ROLE {MEMBER} LOGIN NOINHERIT IN ROLE {USER}")
        url = made(server, template)
        if template is None:
            with connect(url) as admin:
                admin.execute(_SETUP)
        return _lent(url)

    PostgresServer.create_database = create  # type: ignore[method-assign]
    pgbouncer.USER = MEMBER  # whom it lets in, and what it is towards the server
    through = PostgresPair.url
    PostgresPair.url = lambda *args: _lent(through(*args))  # type: ignore[method-assign]


def _by_a_test() -> bool:
    """Whether a test opens the session, for itself."""
    frame = sys._getframe(2)
    file = Path(frame.f_code.co_filename)
    return file != SESSIONS and TESTS in file.parents


def _lend_sessions() -> None:
    def owned(address: Any) -> Any:
        return address.replace(f"//{MEMBER}@", f"//{USER}@") if isinstance(address, str) else address

    def opening(open_: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(open_)
        def opened(address: Any = "", *args: Any, **options: Any) -> Any:
            return open_(owned(address) if _by_a_test() else address, *args, **options)

        return opened

    psycopg.connect = opening(psycopg.connect)
    inner = psycopg.AsyncConnection.connect.__func__  # type: ignore[attr-defined]

    def aopened(cls: type[Any], address: str = "", **options: Any) -> Any:
        return inner(cls, owned(address) if _by_a_test() else address, **options)

    psycopg.AsyncConnection.connect = classmethod(aopened)  # type: ignore[method-assign, assignment]
    import asyncpg

    asyncpg.connect = opening(asyncpg.connect)


# -- what the owner does --------------------------------------------------------------------------------


def _said(text: str) -> Any:
    return Query("as_roles", text, "rows" if text.startswith("SELECT") else "count").bind()


def as_owner(op: Op[Any], store: Schema | None = None) -> Op[Any]:
    """In the same transaction, if there is one. Inside of another such op nothing has to be done."""
    me = (yield _said("SELECT current_user::text")).rows[0][0]
    if me != MEMBER:
        return (yield from op)
    yield _said(f"SET ROLE {USER}")
    try:
        result = yield from op
        if store is not None:
            yield from _grant(store)
    except Exception:
        with suppress(StoreError):  # what has failed is rolled back, and this with it
            yield _said("RESET ROLE")
        raise
    yield _said("RESET ROLE")
    return result


def _grant(store: Schema) -> Op[None]:
    """What of this product is new. GRANT fails if another transaction grants the same meanwhile."""
    if (yield from _state(store)) in _granted:
        return
    yield _said("SELECT pg_advisory_xact_lock(1)")
    for line in (yield from _lines(store)):
        yield _said(line)
    _granted.add((yield from _state(store)))


def _state(store: Schema) -> Op[tuple[Any, ...]]:
    """Which tables there are, what of them is granted, and how topics are tracked."""
    there = (yield _said(_THERE)).rows[0]
    if not isinstance(store, TopicStore) or not (yield from store.applied()):
        return (store._product, store.tables, *there)
    topics = yield from store.topics()
    return ("topics", store.tables, *there, *((row.id, row.topic.tracking) for row in topics))


def _lines(store: Schema) -> Op[list[str]]:
    found: dict[str, None] = {}
    if not (yield from store.applied()):
        return []
    if isinstance(store, TopicStore):
        home, _ = yield from home_of(store)
        words = Statements("postgres", MEMBER, '"')
        for role in asked():
            for grant, names in (yield from _of_topics(store, role, home)):
                found |= dict.fromkeys(words.grant([grant], names))
    elif not _queue(store):  # which belongs to the topics
        for role in asked():
            found |= dict.fromkeys((yield from statements(store._product, store, None, role, MEMBER)))
    return list(found)


def _queue(store: Schema) -> bool:
    return re.search(r"_queue_\d+$", store.tables.event) is not None


def _own(cls: type[Any], name: str) -> None:
    method = getattr(cls, name)

    @wraps(method)
    def owned(self: Any, *args: Any, **options: Any) -> Op[Any]:
        op = method(self, *args, **options)
        return as_owner(op, self) if self.dialect == "postgres" else op

    setattr(cls, name, owned)


def _call_the_function() -> None:
    insert, plain = PostgresStore.write, PostgresStore.write_plain

    @wraps(insert)
    def write(self: PostgresStore, events: Any, claim: Any, now: Any, **options: Any) -> Op[list[int]]:
        if now is None and self._product == "outbox" and "writer" in asked() and not _queue(self):
            return self.write_called(events)
        return as_owner(insert(self, events, claim, now, **options))

    PostgresStore.write = write  # type: ignore[method-assign]
    PostgresStore.write_plain = wraps(plain)(lambda *args: as_owner(plain(*args)))  # type: ignore[method-assign]


def _leave_traces() -> None:
    written = Change.written

    def traced(self: Change, op: Op[Any]) -> Op[Any]:
        owners = f"{self.verb} {self.what}".startswith(OWNERS_TRACES) and self._auditor.store.dialect == "postgres"
        return as_owner(written(self, op), self._auditor.store) if owners else written(self, op)

    Change.written = traced  # type: ignore[method-assign]


def install_in_a_child() -> None:
    _leave_traces()
    for cls, names in OWNED:
        for name in names:
            _own(cls, name)
    _call_the_function()


def install() -> None:
    install_in_a_child()
    _lend_databases()
    _lend_sessions()
    path = [str(TESTS / "kit" / "children"), str(TESTS), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))


# -- the run --------------------------------------------------------------------------------------------


def pytest_report_header() -> str:
    return f"PostgreSQL as {MEMBER}, who was granted: {', '.join(asked())}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What is about other databases stays away, and what is for owners."""
    left = [item for item in items if _OTHERS.search(item.name) or _left_out(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]
    config.stash[_LEFT] = sorted({line for item in left if (line := _left_out(item))})


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for line in config.stash.get(_LEFT, []):
        terminalreporter.write_line(f"left out: {line}: {LEFT_OUT[line]}")


def _name(item: pytest.Item) -> str:
    return f"{item.path.relative_to(TESTS).as_posix()}::{item.originalname}"  # type: ignore[attr-defined]


def _left_out(item: pytest.Item) -> str | None:
    """The line of LEFT_OUT that is about it: its folder, its file or itself."""
    name = _name(item)
    return next(
        (line for line in LEFT_OUT if name == line or (line.endswith(("/", "::")) and name.startswith(line))), None
    )


_LEFT = pytest.StashKey[list[str]]()
