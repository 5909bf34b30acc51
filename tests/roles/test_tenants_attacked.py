"""What somebody who is bound to one tenant tries to have of another's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from kit import wait_until
from relaybox import Event, Outbox, Settings
from relaybox.types import DeliverySettings

from .kit import run
from .test_tenants import SERVING, House, house, printed, write

__all__ = ["house"]

# What a tenant's role may look into that no policy guards: numbers, times, processes, and how topics are set up.
NUMBERS = {
    *("outbox_event_instance", "outbox_event_migration", "outbox_event_topic", "outbox_event_feed_migration"),
    *("outbox_event_topic_migration", "outbox_event_member", "inbox_instance", "inbox_meta", "inbox_migration"),
    "inbox_done",
    *(f"outbox_event_queue_3_{part}" for part in ("instance", "migration")),
}
TELLING = {"tenant_id", "payload", "headers", "last_error", "event_id", "event_type", "aggregate_id", "reason"}
PARTS = ("outbox_event", "outbox_event_log_1", "outbox_event_log_2", "outbox_event_pending", "outbox_event_dead")


@pytest.fixture
def theirs(house: House) -> Iterator[str]:
    """An event of schulze in the outbox and in each topic; its payload is the secret."""
    secret = "c4nary-payload"
    for topic in (None, "offset", "bitmap", "jobs"):
        write(house, "tenant", "schulze", [Event("Theirs", secret, tenant="schulze", topic=topic, key="c4nary-key")])
    yield secret
    with Outbox(house.at("worker")) as worker, worker.deliver(lambda event: None) as service:
        service.drain()


def test_whatever_it_may_read_is_guarded(house: House) -> None:
    """Each table of which it may read a column has forced row security and our policy, each view asks as it does."""
    with psycopg.connect(house.at("tenant")) as session:
        readable = session.execute(
            "SELECT c.relname, c.relkind, c.relrowsecurity AND c.relforcerowsecurity AND EXISTS ("
            "  SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname = 'relaybox_tenant'),"
            "  coalesce(c.reloptions::text LIKE '%security_invoker=true%', false)"
            " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p', 'v', 'm')"
            " AND has_any_column_privilege(c.oid, 'SELECT')"
        ).fetchall()
        columns = session.execute(
            "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relname = ANY(%s) AND has_column_privilege(c.oid, a.attnum, 'SELECT')",
            [list(NUMBERS)],
        ).fetchall()
    assert {name for name, kind, guarded, asks in readable if not (asks if kind == "v" else guarded)} == NUMBERS
    assert [found for found in columns if found[1] in TELLING] == []
    assert len(columns) > 40


def test_nothing_else_runs_with_the_owners_rights(house: House) -> None:
    with psycopg.connect(house.url) as admin:
        found = admin.execute(
            "SELECT p.proname, p.proconfig, has_function_privilege('public', p.oid, 'EXECUTE') FROM pg_proc p"
            " JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'public' AND p.prosecdef"
        ).fetchall()
    assert found == [("outbox_event_write", ["search_path=pg_catalog, pg_temp"], False)]


@pytest.mark.parametrize(
    "text",
    [
        *(f"UPDATE {part} SET tenant_id = 'schulze'" for part in PARTS[:3]),
        *(f"DELETE FROM {part}" for part in PARTS),
        *(f"TRUNCATE {part}" for part in PARTS),
        *(f"ALTER TABLE {part} DISABLE ROW LEVEL SECURITY" for part in PARTS),
        *(f"CREATE POLICY mine ON {part} USING (true)" for part in PARTS),
        "ALTER VIEW outbox_event_status RESET (security_invoker)",
        "CREATE OR REPLACE FUNCTION outbox_event_write() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "INSERT INTO outbox_event_pending (seq, due, key_hash, attempts) VALUES (1, now(), 1, 0)",
        "INSERT INTO outbox_event_dead (seq, attempts, dead_at) VALUES (1, 1, now())",
        "UPDATE outbox_event_pending SET attempts = 9",
        "SET ROLE {owner}",
        "SET ROLE {worker}",
        "SELECT payload FROM outbox_event_log_1_rest",
        "SELECT * FROM outbox_event_audit",
        "LOCK TABLE outbox_event IN ACCESS EXCLUSIVE MODE",
        "CREATE TRIGGER t BEFORE INSERT ON outbox_event EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    ],
)
def test_it_changes_nothing(house: House, text: str) -> None:
    with house.bound("tenant", "meier") as session:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(text.format(**house.names).encode())
        session.rollback()


@pytest.mark.parametrize("part", [*PARTS[:3], "outbox_event_status"])
def test_a_function_of_its_own_sees_no_row_of_another(house: House, theirs: str, part: str) -> None:
    """A condition that costs nothing and tells what it is asked about."""
    column = "event_id" if part.endswith("status") else "payload"
    said: list[str] = []
    with house.bound("tenant", "meier") as session:
        session.add_notice_handler(lambda notice: said.append(str(notice.message_primary)))
        session.execute("SET client_min_messages = notice")
        session.execute(
            "CREATE FUNCTION pg_temp.tell(x anyelement) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS"
            " 'BEGIN RAISE NOTICE ''%'', x; RETURN true; END'"
        )
        rows = session.execute(f"SELECT {column} FROM {part} WHERE pg_temp.tell({column})".encode()).fetchall()
    assert len(said) == len(rows)
    assert theirs.encode().hex() not in "".join(said)


def test_row_security_cannot_be_turned_off(house: House, theirs: str) -> None:
    with house.bound("tenant", "meier") as session:
        session.execute("SET row_security = off")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            session.execute("SELECT * FROM outbox_event")


def test_statistics_tell_nothing(house: House, theirs: str) -> None:
    with psycopg.connect(house.url, autocommit=True) as admin:
        admin.execute("ANALYZE")
    with house.bound("tenant", "meier") as session:
        seen = session.execute("SELECT tablename FROM pg_stats WHERE tablename LIKE 'outbox%'").fetchall()
        names = {name for (name,) in seen}
    assert names & {"outbox_event", "outbox_event_log_1", "outbox_event_log_2", "outbox_event_pending"} == set()


def test_an_error_does_not_quote_another_row(house: House) -> None:
    """That an id is taken can be noticed; nothing else of the row."""
    write(house, "tenant", "schulze", [Event("Theirs", "c4nary", tenant="schulze", id="taken", key="c4nary-key")])
    with pytest.raises(Exception, match="this id is stored already") as caught:
        write(house, "tenant", "meier", [Event("Mine", 1, tenant="meier", id="taken")])
    assert "c4nary" not in str(caught.value)


def test_who_is_bound_while_it_works_loses_nothing(house: House) -> None:
    """A service that was running when the recipe was: it sees numbers, and not the events that they belong to."""
    everybody = [word for who in (*SERVING, "owner") for word in ("--to", house.names[who])]
    seen: list[Any] = []
    printed(house, "--tenants", *everybody)
    with Outbox(house.at("worker")) as worker, worker.deliver(lambda event: None) as service:
        service.drain()
    quick = Settings(delivery=DeliverySettings(poll="20ms"))
    with (
        Outbox(house.at("owner"), settings=quick) as box,
        box.deliver(lambda event: seen.append(("owner", event.payload))) as bound,
    ):
        wait_until(lambda: bound.health().ready)
        printed(house, "--tenants", *everybody[:-2])
        write(house, "tenant", "meier", [Event("Kept", n, tenant="meier") for n in range(20)])
        write(house, "owner", "meier", [Event("Kept", 20, tenant="meier")], Settings())
        with psycopg.connect(house.url, autocommit=True) as admin:  # it has looked for them
            asked = (
                "SELECT 1 FROM pg_stat_activity WHERE usename = %s AND query_start > %s AND state = 'idle'"
                " AND query LIKE '%%outbox_event_pending%%'"
            )
            for _ in range(2):
                now = admin.execute("SELECT clock_timestamp()").fetchone()
                assert now is not None
                wait_until(lambda: admin.execute(asked, [house.names["owner"], now[0]]).fetchone())  # noqa: B023
        with Outbox(house.at("worker")) as worker, worker.deliver(lambda event: seen.append(event.payload)) as service:
            service.drain(timeout="30s")
    assert sorted(seen) == list(range(21))


def test_the_doctor_tells_of_policies_that_open_a_table(house: House) -> None:
    with psycopg.connect(house.at("owner"), autocommit=True) as owner:
        owner.execute("CREATE POLICY for_the_night ON outbox_event USING (true)")
        try:
            said = run("--url", house.at("operator"), "doctor", "--json")
        finally:
            owner.execute("DROP POLICY for_the_night ON outbox_event")
    assert "outbox_event has policies that are not ours, which let more be seen: for_the_night" in said.stdout
    fine = run("--url", house.at("operator"), "doctor", "--json")
    assert "policies that are not ours" not in fine.stdout
