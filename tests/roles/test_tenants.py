"""Row-level security by tenant: who is bound writes and sees its tenant's rows alone, services deliver everybody's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from kit import make_postgres, until, wait_until
from relaybox import AsyncOutbox, Event, Inbox, Listeners, Maintainer, Outbox, Reject, Settings, Topic
from relaybox.errors import StoreError

from .kit import CALLING, run

SERVING = ("worker", "receiver", "maintainer", "operator", "reader")
TENANTS = ("meier", "schulze")


@dataclass
class House:
    """A database whose tables belong to a role without privileges of its own, under row-level security."""

    url: str
    names: dict[str, str]

    def at(self, who: str) -> str:
        return self.url.replace("relaybox@", f"{self.names[who]}@")

    @contextmanager
    def bound(self, who: str, tenant: str | None = None) -> Iterator[psycopg.Connection[Any]]:
        """A transaction of a role, for a tenant. It is rolled back."""
        with psycopg.connect(self.at(who)) as session:
            if tenant is not None:
                session.execute("SELECT set_config('relaybox.tenant', %s, true)", [tenant])
            yield session
            session.rollback()


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    url = make_postgres(migrated=False)
    names = {who: f"rb_{who}_{uuid4().hex[:8]}" for who in ("owner", "tenant", *SERVING)}
    made = House(url, names)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        for name in names.values():
            admin.execute(f"CREATE ROLE {name} LOGIN".encode())
        admin.execute(f"GRANT CREATE ON SCHEMA public TO {names['owner']}".encode())
    with Outbox(made.at("owner")) as box, Inbox(made.at("owner")) as inbox:
        box.migrate()
        inbox.migrate()
        box.topics.configure(Topic.pub_sub("offset"))
        box.topics.configure(Topic.pub_sub("bitmap", tracking="bitmap"))
        box.topics.configure(Topic.queue("jobs"))
    for who in ("tenant", *SERVING):
        printed(made, who, "--to", names[who])
    serving = [word for who in SERVING for word in ("--to", names[who])]
    printed(made, "--tenants", *serving)
    printed(made, "--tenants", *serving)  # again: nothing changes
    yield made
    with psycopg.connect(url, autocommit=True) as admin:
        for name in reversed(names.values()):
            admin.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}".encode())


def printed(house: House, *words: str) -> str:
    """What the command says, run by the owner of the tables in one transaction."""
    said = run("--url", house.at("owner"), "grants", *words)
    assert said.returncode == 0, said.stderr
    with psycopg.connect(house.at("owner")) as owner:
        owner.execute(said.stdout.encode())
    return said.stdout


def write(house: House, who: str, tenant: str, events: list[Event], settings: Settings = CALLING) -> None:
    with Outbox(house.at(who), settings=settings) as box, psycopg.connect(house.at(who)) as session:
        session.execute("SELECT set_config('relaybox.tenant', %s, true)", [tenant])
        box.write_all(session, events)
        session.commit()


# -- the outbox ----------------------------------------------------------------------------------------


def test_a_tenant_writes_and_reads_its_own_alone_and_workers_deliver_all(house: House) -> None:
    for tenant in TENANTS:
        write(house, "tenant", tenant, [Event("Good" if n else "Bad", n, tenant=tenant) for n in range(300)])
        write(house, "tenant", tenant, [Event("Good", -1, tenant=tenant)])
    seen: list[tuple[str | None, Any]] = []

    def handle(event: Event) -> None:
        seen.append((event.tenant, event.payload))
        if event.type == "Bad":
            raise Reject(f"the text of {event.tenant}")

    with Outbox(house.at("worker")) as worker, worker.deliver(handle) as service:
        wait_until(lambda: len(seen) == 602)
        service.drain()
    assert sorted(seen) == sorted((tenant, n) for tenant in TENANTS for n in range(-1, 300))
    with Outbox(house.at("operator")) as operator:
        assert sorted(letter.event.tenant or "" for letter in operator.dead.list()) == sorted(TENANTS)
    for tenant in TENANTS:
        with house.bound("tenant", tenant) as session:
            rows = session.execute("SELECT DISTINCT tenant_id, count(*) OVER () FROM outbox_event").fetchall()
            assert rows == [(tenant, 301)]
            assert session.execute("SELECT count(*) FROM outbox_event_status").fetchall() == [(301,)]
            errors = session.execute("SELECT last_error FROM outbox_event_dead").fetchall()
            assert len(errors) == 1
            assert f"the text of {tenant}" in errors[0][0]
    with Outbox(house.at("operator")) as operator:
        operator.dead.discard(operator.dead.list()[0].event.id)
        operator.purge(done="0s", dead="0s")


def test_nobody_writes_for_another_tenant_or_for_none(house: House) -> None:
    for given, of in (("meier", "schulze"), ("meier", None), (None, "meier"), ("", "meier"), (None, None)):
        with (
            house.bound("tenant", given) as session,
            Outbox(house.at("tenant"), settings=CALLING) as box,
            pytest.raises(StoreError, match="row-level security"),
        ):
            box.write(session, Event("Forged", 1, tenant=of))


def test_without_a_tenant_nothing_is_seen(house: House) -> None:
    write(house, "tenant", "meier", [Event("Good", 1, tenant="meier", id="seen-by-nobody")])
    for who in ("tenant", "owner"):
        for tenant in (None, "", "schulze"):
            with house.bound(who, tenant) as session:
                assert session.execute("SELECT * FROM outbox_event").fetchall() == []
                assert session.execute("SELECT * FROM outbox_event_status").fetchall() == []
    with Outbox(house.at("worker")) as worker, worker.deliver(lambda event: None) as service:
        service.drain()


def test_the_owner_is_bound_too(house: House) -> None:
    """By its own inserts, single and in batches, which would be a COPY; by what it reads."""
    plain = Settings()
    write(house, "owner", "meier", [Event("Own", 1, tenant="meier", id="own")], plain)
    write(house, "owner", "meier", [Event("Own", n, tenant="meier") for n in range(500)], plain)
    with pytest.raises(StoreError, match="row-level security"):
        write(house, "owner", "meier", [Event("Own", n, tenant="schulze") for n in range(500)], plain)
    with house.bound("owner", "schulze") as session:
        assert session.execute("SELECT count(*) FROM outbox_event").fetchall() == [(0,)]
        assert session.execute("DELETE FROM outbox_event").rowcount == 0
    seen: list[str] = []
    with Outbox(house.at("worker")) as worker, worker.deliver(lambda event: seen.append(event.id)) as service:
        service.drain()
    assert len(seen) == 501


def test_a_text_of_an_error_is_its_tenants(house: House) -> None:
    write(house, "tenant", "meier", [Event("Later", 1, tenant="meier", id="later")])

    def fail(event: Event) -> None:
        raise RuntimeError("what meier did")

    with Outbox(house.at("worker")) as worker, worker.deliver(fail) as service:
        wait_until(lambda: service.counts.failed == 1)
    texts = "SELECT last_error FROM outbox_event_pending WHERE last_error IS NOT NULL"
    with house.bound("tenant", "meier") as session:
        assert len(session.execute(texts).fetchall()) == 1
    with house.bound("tenant", "schulze") as session:
        assert session.execute(texts).fetchall() == []
        assert "what meier did" not in str(session.execute("SELECT * FROM outbox_event_status").fetchall())
    with Outbox(house.at("operator")) as operator:
        operator.events.discard("later")


# -- topics and inboxes ----------------------------------------------------------------------------------


async def test_topics(house: House) -> None:
    seen: list[tuple[str, str | None]] = []

    async def handle(event: Event) -> None:
        seen.append((event.topic or "", event.tenant))
        if event.type == "Bad":
            raise Reject("no")

    topics = ("offset", "bitmap", "jobs")
    async with AsyncOutbox(house.at("worker")) as worker:
        groups = [worker.topics.group(name, "mail") for name in topics[:2]]
        groups.append(worker.topics.group("jobs", "default"))
        async with groups[0].deliver(handle), groups[1].deliver(handle), groups[2].deliver(handle):
            for tenant in TENANTS:
                for topic in topics:
                    for count in (1, 250):
                        types = ["Bad" if n == 7 else "Good" for n in range(count)]
                        events = [Event(type, n, tenant=tenant, topic=topic) for n, type in enumerate(types)]
                        write(house, "tenant", tenant, events)
                    with pytest.raises(StoreError, match="row-level security"):
                        write(house, "tenant", tenant, [Event("Forged", 1, tenant="another", topic=topic)])
            await until(lambda: len(seen) == 2 * 3 * 251)
    with house.bound("tenant", "meier") as session:
        for table in ("outbox_event_log_1", "outbox_event_log_2", "outbox_event_parked"):
            found = session.execute(f"SELECT DISTINCT tenant_id FROM {table}".encode()).fetchall()
            assert found == [("meier",)], table
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("SELECT * FROM outbox_event_log_1_rest")
    async with AsyncOutbox(house.at("operator")) as operator:
        assert (await operator.topics.group("offset", "mail").lag()).dead == 2
    Maintainer(house.at("maintainer")).once()


def test_an_inbox(house: House) -> None:
    with Inbox(house.at("receiver")) as receiver:
        for tenant in TENANTS:
            receiver.accept(None, Event("Paid", 1, id=f"paid-{tenant}", tenant=tenant), sender="shop")
    with psycopg.connect(house.at("reader")) as reader:
        assert reader.execute("SELECT count(*) FROM inbox_status").fetchall() == [(2,)]
    seen: list[str | None] = []
    with Inbox(house.at("worker")) as worker, worker.process(lambda event: seen.append(event.tenant)):
        wait_until(lambda: len(seen) == 2)
    with house.bound("tenant", "meier") as session:
        assert session.execute("SELECT event_id, status FROM inbox_status").fetchall() == [("paid-meier", "processed")]
    with house.bound("owner", "schulze") as session:
        assert session.execute("SELECT event_id FROM inbox").fetchall() == [("paid-schulze",)]


# -- who is bound serves nobody else ------------------------------------------------------------------------


def test_services_of_a_bound_role_do_not_start(house: House) -> None:
    """It would see no event where there is one, and take it for deleted."""
    said = r"bound to one tenant's rows of .* --to rb_owner"
    listeners = Listeners()
    listeners.on("Good")(lambda event: None)
    with Outbox(house.at("owner")) as box, Inbox(house.at("owner")) as inbox:
        services = [
            box.deliver(listeners),
            box.deliver(listeners, ordered=True),
            box.topics.group("offset", "other").deliver(listeners),
            inbox.process(listeners),
            Maintainer(house.at("owner")),
        ]
        for service in services:
            with pytest.raises(StoreError, match=said):
                service.start()
        with pytest.raises(StoreError, match=said):
            box.topics.group("offset", "other").consumer().poll()
        with pytest.raises(StoreError, match=said):
            box.topics.move("offset", tracking="bitmap")
        with pytest.raises(StoreError, match=said):
            box.topics.drop("jobs")


def test_an_owner_that_is_named_sees_all_and_what_others_call_does_not(house: House) -> None:
    serving = [word for who in (*SERVING, "owner") for word in ("--to", house.names[who])]
    try:
        printed(house, "--tenants", *serving)
        with Outbox(house.at("owner")) as box, box.deliver(lambda event: None):
            pass
        with (
            house.bound("tenant", "meier") as session,
            Outbox(house.at("tenant"), settings=CALLING) as box,
            pytest.raises(StoreError, match="row-level security"),
        ):
            box.write(session, Event("Forged", 1, tenant="schulze"))
    finally:
        printed(house, "--tenants", *serving[:-2])


def test_a_worker_pays_nothing_for_it(house: House) -> None:
    """Its policy is known to be true when a statement is planned."""
    plan = "EXPLAIN SELECT * FROM outbox_event e JOIN outbox_event_pending p ON p.seq = e.seq WHERE e.seq = 1"
    with psycopg.connect(house.at("worker")) as session:
        text = str(session.execute(plan).fetchall())
    assert "relaybox.tenant" not in text
    assert "SubPlan" not in text


# -- doctor and command line --------------------------------------------------------------------------------


def test_the_doctor_tells_what_is_missing(house: House) -> None:
    fine = run("--url", house.at("operator"), "doctor", "--role", "operator", "--json")
    assert "each tenant is kept to its own rows" in fine.stdout
    assert '"check": "tenants", "level": "critical"' not in fine.stdout.replace("\n", "")
    assert "rows of every tenant" not in fine.stdout
    with psycopg.connect(house.at("owner"), autocommit=True) as owner:
        owner.execute("ALTER TABLE outbox_event_log_1 NO FORCE ROW LEVEL SECURITY")
        owner.execute("ALTER VIEW inbox_status RESET (security_invoker)")
        try:
            said = run("--url", house.at("operator"), "doctor", "--json")
        finally:
            owner.execute("ALTER TABLE outbox_event_log_1 FORCE ROW LEVEL SECURITY")
            owner.execute("ALTER VIEW inbox_status SET (security_invoker = true)")
    assert said.returncode == 1
    assert "rows of every tenant can be seen or written in outbox_event_log_1" in said.stdout
    assert "rows of every tenant can be seen or written in inbox_status" in said.stdout
    assert "relaybox grants --tenants" in said.stdout
    bound = run("--url", house.at("owner"), "doctor", "--role", "worker", "--json")
    assert bound.returncode == 1
    assert "is bound to one tenant's rows" in bound.stdout


def test_the_doctor_tells_of_an_owner_that_nothing_binds(house: House) -> None:
    name = house.names["owner"]
    with psycopg.connect(house.url, autocommit=True) as admin:
        admin.execute(f"ALTER ROLE {name} BYPASSRLS".encode())
        try:
            said = run("--url", house.at("operator"), "doctor", "--json")
        finally:
            admin.execute(f"ALTER ROLE {name} NOBYPASSRLS".encode())
    assert said.returncode == 1
    assert f"{name} owns the tables and passes row security by" in said.stdout


def test_a_bound_role_has_what_its_job_needs(house: House) -> None:
    said = run("--url", house.at("tenant"), "doctor", "--role", "tenant", "--json")
    assert "has what a tenant needs of outbox_event, and no more" in said.stdout
    assert "has what a tenant needs of inbox, and no more" in said.stdout


def test_the_command_wants_a_role_or_tenants(house: House) -> None:
    for words in ([], ["writer", "--tenants"]):
        said = run("--url", house.at("owner"), "grants", *words, "--to", "somebody")
        assert said.returncode == 1
        assert "expected a ROLE, or --tenants" in said.stderr


@pytest.mark.parametrize("words", [["--tenants"], ["tenant"]])
def test_other_engines_have_none(tmp_path: Any, words: list[str]) -> None:
    with Outbox(f"sqlite:///{tmp_path / 'x.db'}") as box:
        box.migrate()
    said = run("--url", f"sqlite:///{tmp_path / 'x.db'}", "grants", *words, "--to", "somebody")
    assert said.returncode == 1
    assert "row-level security is PostgreSQL's, and this is sqlite" in said.stderr
