"""Everything under least-privilege roles: what each may do works, and what it may not do is refused by the server."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from kit import make_postgres, until, wait_until
from relaybox import ALL, AsyncOutbox, Event, Guard, Inbox, Outbox, Reject
from relaybox.errors import ConfigError, SchemaMissing, StoreError
from relaybox.store.grants import ROLES, DatabaseRole

from .kit import CALLING, Estate, in_secret, run

# -- what works ------------------------------------------------------------------------------------


def test_an_outbox(estate: Estate) -> None:
    seen: list[Any] = []

    def handle(event: Event) -> None:
        seen.append(event.id)
        if event.type == "Bad":
            raise Reject("no")

    with Outbox(estate.at("writer"), settings=CALLING) as writer, psycopg.connect(estate.at("writer")) as session:
        assert isinstance(writer.write(session, Event("Good", 1, id="w1", key="a")), int)
        numbers = writer.write_all(session, [Event("Good" if n else "Bad", n, id=f"m{n}") for n in range(300)])
        assert numbers == sorted(n for n in numbers if n is not None)
        session.commit()
        assert writer.resolve(["w1", "nothing"]) == {"w1": True, "nothing": False}
    with Outbox(estate.at("worker")) as worker:
        with worker.deliver(handle):
            wait_until(lambda: len(seen) >= 302)
        with worker.deliver(handle, ordered=True):
            pass
        worker.verify()
    with Outbox(estate.at("operator")) as operator:
        assert [letter.event.id for letter in operator.dead.list()] == ["m0"]
        assert operator.dead.replay(ALL) == 1
        assert operator.status().due == 1
        assert operator.events.replay("w1") == 1
        operator.purge(done="0s")
        assert operator.audit()
    for role in ("reader", "dashboard"):
        with Outbox(estate.at(role)) as looking:
            assert looking.status().due == 2
            assert looking.instances() == []
            looking.health()


async def test_topics(estate: Estate) -> None:
    called: list[Any] = []
    done: list[Any] = []

    async def handle(event: Event) -> None:
        called.append(event.payload)
        if event.payload == 1 and len(called) < 6:
            raise RuntimeError("once")
        done.append(event.payload)

    async with AsyncOutbox(estate.at("worker")) as worker:
        groups = [worker.topics.group(of, "mail") for of in ("offset", "bitmap")]
        jobs = worker.topics.group("jobs", "default")
        async with groups[0].deliver(handle), groups[1].deliver(handle), jobs.deliver(handle):
            async with AsyncOutbox(estate.at("writer"), settings=CALLING) as writer, writer.transaction() as tx:
                for topic in ("offset", "bitmap", "jobs"):
                    await writer.write_all(tx, [Event("Happened", n, topic=topic) for n in range(3)])
            await until(lambda: sorted(done) == [0, 0, 0, 1, 1, 1, 2, 2, 2])
        for group in groups:
            assert (await group.lag()).events == 0
    async with AsyncOutbox(estate.at("operator")) as operator:
        await operator.topics.group("offset", "mail").pause(reason="look")
        await operator.topics.group("offset", "mail").resume(reason="done")
    async with AsyncOutbox(estate.at("reader")) as reader:
        assert len(await reader.topics.list()) == 3


def test_an_inbox(estate: Estate) -> None:
    seen: list[str] = []

    def handle(event: Event) -> None:
        seen.append(event.id)
        if event.id == "bad":
            raise Reject("no")

    with Inbox(estate.at("receiver")) as receiver:
        assert receiver.accept(None, Event("Paid", 1, id="one"), sender="shop")
        assert not receiver.accept(None, Event("Paid", 1, id="one"), sender="shop")
        assert receiver.accept_all(None, [Event("Paid", 2, id="two"), Event("Paid", 2, id="bad")]) == [True, True]
    with Inbox(estate.at("worker")) as worker, worker.process(handle):
        wait_until(lambda: len(seen) == 3)
    with Inbox(estate.at("operator")) as operator:
        assert [letter.event.id for letter in operator.dead.list()] == ["bad"]
        assert operator.dead.discard(ALL) == 1
        assert operator.purge() is not None
    for role in ("reader", "dashboard"):
        with Inbox(estate.at(role)) as looking:
            assert looking.status().pending == 0


def test_a_vault_and_an_inbox_that_stores_in_secret(estate: Estate) -> None:
    in_secret(estate.at)


def test_a_guard(estate: Estate) -> None:
    with Guard.sql(estate.at("worker"), consumer="billing", mode="setnx") as guard:
        assert [guard.try_mark("m1"), guard.try_mark("m1")] == [True, False]
        guard.purge()


# -- what is refused ---------------------------------------------------------------------------------

EVENT = "INSERT INTO outbox_event (event_id, event_type, payload, occurred_at) VALUES ('x', 'x', '', now())"
MATRIX = [
    # writer: reads no payload, schedules nothing, deletes nothing
    ("writer", "SELECT payload FROM outbox_event", True),
    ("writer", "SELECT headers FROM outbox_event", True),
    ("writer", "SELECT * FROM outbox_event_status", True),
    ("writer", EVENT, True),
    (
        "writer",
        "INSERT INTO outbox_event_pending (seq, due, key_hash, attempts) VALUES (1, now(), 1, 2147483647)",
        True,
    ),
    ("writer", "UPDATE outbox_event_pending SET attempts = 0", True),
    ("writer", "INSERT INTO outbox_event_claim (token, until, items) VALUES (1, now(), '{1}')", True),
    ("writer", "DELETE FROM outbox_event", True),
    ("writer", "SELECT nextval('outbox_event_seq')", True),
    ("writer", "SELECT payload FROM outbox_event_log_1", True),
    ("writer", "SELECT payload FROM outbox_event_parked", True),
    ("writer", "UPDATE outbox_event_topic SET version = 9", True),
    ("writer", "DELETE FROM outbox_event_log_1", True),
    ("writer", "SELECT payload FROM inbox", True),
    ("writer", "SELECT seq, event_id FROM outbox_event", False),
    # worker: takes nothing in under another's name, leaves no trace undone
    ("worker", EVENT, True),
    ("worker", "UPDATE outbox_event SET payload = ''", True),
    ("worker", "DELETE FROM outbox_event_audit", True),
    ("worker", "DELETE FROM outbox_event_migration", True),
    ("worker", "BEGIN; LOCK TABLE outbox_event_migration IN SHARE ROW EXCLUSIVE MODE", True),
    ("worker", "DROP TABLE outbox_event", True),
    ("worker", "SELECT payload FROM outbox_event", False),
    # receiver: puts in, and that is all
    ("receiver", "SELECT payload FROM inbox", True),
    ("receiver", "UPDATE inbox_pending SET due = now()", True),
    ("receiver", "DELETE FROM inbox", True),
    ("receiver", "INSERT INTO inbox_done VALUES (1, now(), 1, 0)", True),
    ("receiver", "SELECT payload FROM outbox_event", True),
    ("receiver", "DELETE FROM relaybox_data_key", True),
    ("receiver", "UPDATE relaybox_data_key SET wrapped = NULL", True),
    ("maintainer", "SELECT wrapped FROM relaybox_data_key", True),
    ("tenant", "SELECT wrapped FROM relaybox_data_key", True),
    # operator
    ("operator", "INSERT INTO relaybox_data_key (id, created_at) VALUES ('x', now())", True),
    ("operator", "UPDATE outbox_event SET payload = ''", True),
    ("operator", "UPDATE outbox_event_migration SET checksum = ''", True),
    ("operator", "DROP TABLE outbox_event_dead", True),
    # reader, dashboard: write nothing; a dashboard sees no payload
    ("reader", "SELECT payload FROM outbox_event", False),
    ("reader", "UPDATE outbox_event_pending SET attempts = 0", True),
    ("reader", "DELETE FROM outbox_event_dead", True),
    ("reader", "SELECT * FROM outbox_event_pending FOR UPDATE", True),
    ("reader", "SELECT outbox_event_write('{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}')", True),
    ("dashboard", "SELECT payload FROM outbox_event", True),
    ("dashboard", "SELECT * FROM outbox_event_status", True),
    ("dashboard", "SELECT headers FROM outbox_event_log_1", True),
    ("dashboard", "SELECT payload FROM outbox_event_parked", True),
    ("dashboard", "SELECT payload FROM inbox", True),
    ("dashboard", "SELECT wrapped FROM relaybox_data_key", True),
    ("dashboard", "SELECT subject FROM relaybox_data_key", True),
    ("dashboard", "SELECT event_id, event_type FROM outbox_event", False),
    ("dashboard", "UPDATE outbox_event_instance SET name = ''", True),
]


@pytest.mark.parametrize(("role", "text", "refused"), MATRIX)
def test_matrix(estate: Estate, role: DatabaseRole, text: str, refused: bool) -> None:
    assert estate.refused(role, text) is refused


def test_a_writer_decides_neither_time_nor_claim(estate: Estate) -> None:
    with Outbox(estate.at("writer")) as writer, psycopg.connect(estate.at("writer")) as session:
        with pytest.raises(StoreError, match="permission denied"):
            writer.write(session, Event("Good", 1))
    with psycopg.connect(estate.url) as owner:
        found = owner.execute(
            "SELECT prosecdef, proconfig FROM pg_proc WHERE proname = 'outbox_event_write'"
        ).fetchone()
        assert found == (True, ["search_path=pg_catalog, pg_temp"])


def test_a_function_that_is_not_there_says_who_makes_it() -> None:
    with Outbox(make_postgres(), settings=CALLING) as box:
        with pytest.raises(SchemaMissing, match="run what `relaybox grants writer` prints"), box.transaction() as tx:
            box.write(tx, Event("Good", 1))


# -- doctor and command line -------------------------------------------------------------------------


@pytest.mark.parametrize("role", [role for role in ROLES if role not in ("relay", "tenant")])
def test_the_doctor_is_content_with_what_was_granted(estate: Estate, role: DatabaseRole) -> None:
    from relaybox.cli.connect import Given, Target
    from relaybox.cli.grants import examined
    from relaybox.drivers import open_sync

    none = Given(None, "default")
    target, database = Target(Given(estate.at(role), "argument"), none, none, None), open_sync(estate.at(role))
    found = [f for f in examined(target, database, role) if f.level != "ok"]
    database.close()
    assert found == []


def test_the_doctor_says_what_is_missing_and_what_is_too_much(estate: Estate) -> None:
    name = estate.names["worker"]
    with psycopg.connect(estate.url, autocommit=True) as owner:
        owner.execute(f"REVOKE DELETE ON outbox_event_claim FROM {name}".encode())
        owner.execute(f"GRANT UPDATE ON outbox_event TO {name}".encode())
        try:
            said = run("--url", estate.at("worker"), "doctor", "--role", "worker", "--json")
            assert said.returncode == 1, said.stderr
            assert f"{name} lacks DELETE on outbox_event_claim" in said.stdout
            assert f"{name} has UPDATE on outbox_event, which it does not need" in said.stdout
            lines = said.stdout.replace('\\\\"', "").replace('\\"', '"')
            assert f'REVOKE UPDATE ON TABLE "public"."outbox_event" FROM "{name}"' in lines
            owner.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON "public"."outbox_event_claim" TO "{name}"'.encode())
        finally:
            owner.execute(f"REVOKE UPDATE ON outbox_event FROM {name}".encode())


@pytest.mark.parametrize(
    ("role", "taken", "given", "missing", "extra"),
    [
        (
            "receiver",
            "USAGE ON SEQUENCE inbox_seq",
            "UPDATE ON SEQUENCE inbox_seq",
            "lacks USAGE on inbox_seq",
            "has UPDATE on inbox_seq, which it does not need",
        ),
        (
            "writer",
            "EXECUTE ON FUNCTION outbox_event_write",
            "SELECT ON outbox_event",
            "may not call outbox_event_write, or it is not there",
            "has SELECT on outbox_event, which it does not need",
        ),
        (
            "reader",
            "SELECT ON inbox_status",
            "EXECUTE ON FUNCTION outbox_event_write",
            "lacks SELECT on inbox_status",
            "may call outbox_event_write, which it does not need",
        ),
        (
            "worker",
            "UPDATE (processed_at) ON adopted_theirs",
            "DELETE ON adopted_theirs",
            "lacks UPDATE (processed_at) on adopted_theirs",
            "has DELETE on adopted_theirs, which it does not need",
        ),
        (
            "maintainer",
            "DELETE ON outbox_event_log_1_rest",
            "INSERT ON outbox_event_log_1",
            "lacks DELETE on outbox_event_log_1_rest",
            "has INSERT on outbox_event_log_1, which it does not need",
        ),
    ],
)
def test_the_doctor_sees_sequences_functions_views_and_partitions(
    estate: Estate, role: DatabaseRole, taken: str, given: str, missing: str, extra: str
) -> None:
    name = estate.names[role]
    with psycopg.connect(estate.url, autocommit=True) as owner:
        owner.execute(f"REVOKE {taken} FROM {name}".encode())
        owner.execute(f"GRANT {given} TO {name}".encode())
        try:
            said = run("--url", estate.at(role), "doctor", "--role", role, "--json")
        finally:
            owner.execute(f"GRANT {taken} TO {name}".encode())
            owner.execute(f"REVOKE {given} FROM {name}".encode())
            for line in granted_again(estate, role):
                owner.execute(line.encode())
    assert said.returncode == 1
    assert f"{name} {missing}" in said.stdout
    assert f"{name} {extra}" in said.stdout


def granted_again(estate: Estate, role: DatabaseRole) -> list[str]:
    """A REVOKE on a table takes the rights on its columns too."""
    with Outbox(estate.url) as box:
        return box.grants(role, to=estate.names[role])


def test_the_doctor_tells_a_tenants_role_of_tables_that_keep_no_tenants_apart(estate: Estate) -> None:
    said = run("--url", estate.at("tenant"), "doctor", "--role", "tenant", "--json")
    assert said.returncode == 1
    assert "this role sees the rows of every tenant" in said.stdout


def test_the_doctor_tells_of_schemas_that_are_open_to_all(estate: Estate) -> None:
    with psycopg.connect(estate.url, autocommit=True) as owner:
        owner.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
        try:
            said = run("--url", estate.at("reader"), "doctor", "--role", "reader", "--json")
        finally:
            owner.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    assert "REVOKE CREATE ON SCHEMA public FROM PUBLIC" in said.stdout


def test_the_doctor_tells_of_databases_in_which_all_may_make_schemas(estate: Estate) -> None:
    """A stranger makes a schema of a worker's name, in which its tables would be found first: unless they are named."""
    name = estate.url.rpartition("/")[2].partition("?")[0]
    with psycopg.connect(estate.url, autocommit=True) as owner:
        owner.execute(f"GRANT CREATE ON DATABASE {name} TO PUBLIC".encode())
        try:
            said = run("--url", estate.at("worker"), "doctor", "--role", "worker", "--json")
            named = run("--url", estate.at("worker"), "--schema", "public", "doctor", "--role", "worker", "--json")
            with psycopg.connect(estate.at("reader"), autocommit=True) as stranger:
                worker = estate.names["worker"]
                stranger.execute(
                    f"CREATE SCHEMA {worker}; GRANT USAGE ON SCHEMA {worker} TO PUBLIC;"
                    f"CREATE TABLE {worker}.outbox_event (event_id text);"
                    f"GRANT ALL ON {worker}.outbox_event TO PUBLIC".encode()
                )
                try:
                    with (
                        Outbox(estate.at("worker"), schema="public") as box,
                        box.deliver(lambda event: None) as service,
                    ):
                        service.drain(timeout="20s")
                finally:
                    stranger.execute(f"DROP SCHEMA {worker} CASCADE".encode())
        finally:
            owner.execute(f"REVOKE CREATE ON DATABASE {name} FROM PUBLIC".encode())
    assert f"any role may make schemas in database {name}" in said.stdout
    assert "any role may make schemas" not in named.stdout


def test_the_command_prints_what_can_be_run(estate: Estate) -> None:
    said = run("--url", estate.url, "grants", "writer", "--to", estate.names["writer"])
    assert said.returncode == 0, said.stderr
    assert "SECURITY DEFINER SET search_path = pg_catalog, pg_temp" in said.stdout
    with psycopg.connect(estate.url, autocommit=True) as owner:
        owner.execute(said.stdout.encode())


def test_names_are_checked(estate: Estate) -> None:
    with Outbox(estate.url) as box:
        with pytest.raises(ConfigError, match="role name"):
            box.grants("reader", to='x"; DROP TABLE outbox_event; --')
        with pytest.raises(ConfigError, match="expected a role to be one of writer, worker"):
            box.grants("boss", to="x")  # type: ignore[arg-type]


def test_files_have_no_roles(tmp_path: Any) -> None:
    with Outbox(f"sqlite:///{tmp_path / 'x.db'}") as box:
        box.migrate()
        with pytest.raises(ConfigError, match="SQLite has no roles"):
            box.grants("reader", to="x")
