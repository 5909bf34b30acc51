from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from kit import make_postgres
from relaybox import Event, Guard, Inbox, Outbox, Topic, Vault
from relaybox.store.grants import ROLES

from .kit import Estate

THEIRS = (
    "CREATE TABLE theirs (event_id text PRIMARY KEY, event_type text, aggregate_id text, payload json, error text,"
    " processed_at timestamptz, received_at timestamptz NOT NULL DEFAULT now(), retry_count integer NOT NULL DEFAULT 0)"
)


@pytest.fixture(scope="module")
def estate() -> Iterator[Estate]:
    url = make_postgres()
    names = {role: f"rb_{role}_{uuid4().hex[:8]}" for role in ROLES}
    guarding = Guard.sql(url, consumer="billing")
    with Outbox(url) as box, Inbox(url) as inbox, guarding as guard, Vault(url) as vault:
        inbox.migrate()
        guard.migrate()
        vault.migrate()
        box.topics.configure(Topic.pub_sub("offset"))
        box.topics.configure(Topic.pub_sub("bitmap", tracking="bitmap"))
        box.topics.configure(Topic.queue("jobs"))
        with psycopg.connect(url) as owner:
            owner.execute(THEIRS)
        adopted = Inbox(url, "adopted")
        adopted.adopt("theirs")
        with psycopg.connect(url, autocommit=True) as owner:
            owner.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
            for role, name in names.items():
                owner.execute(f"CREATE ROLE {name} LOGIN".encode())
                for part in (box, inbox, adopted, guard, vault):
                    for line in part.grants(role, to=name):
                        owner.execute(line.encode())
            adopted.close()
            with box.transaction() as tx:
                box.write(tx, Event("Kept", {"secret": 1}, id="kept"))
    yield Estate(url, names)
    with psycopg.connect(url, autocommit=True) as owner:
        for name in names.values():
            owner.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())
