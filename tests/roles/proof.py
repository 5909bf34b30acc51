"""Run by test_as_roles.py under the switch: the library really is the member, and that owns nothing."""

from __future__ import annotations

import psycopg
import pytest

from kit import make_postgres, one, rows
from kit.as_roles import MEMBER
from relaybox import Event, Inbox, Outbox, Topic
from relaybox.errors import StoreError
from relaybox.testing.servers.postgres import USER

OWNED = f"SELECT count(*) FROM pg_class WHERE relowner = '{MEMBER}'::regrole"


def test_the_library_is_the_member_and_the_test_is_the_owner() -> None:
    url = make_postgres()
    assert one(url, "SELECT current_user::text") == USER
    with psycopg.connect(url) as mine:
        assert mine.info.user == USER
    with Outbox(url) as box, Inbox(url) as inbox:
        inbox.migrate()
        box.topics.configure(Topic.pub_sub("orders"))  # as the owner, and then as the member again
        with box.transaction() as tx:
            said = tx.connection.execute("SELECT current_user::text, current_setting('is_superuser')").fetchone()
            box.write(tx, Event("Happened", {}))
            box.write(tx, Event("Happened", {}, topic="orders"))
        assert inbox.accept(None, Event("Happened", {}))
    assert said == (MEMBER, "off")
    assert one(url, OWNED) == 0


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO outbox_event (event_id, event_type, payload, occurred_at) VALUES ('x', 'x', '', now())",
        "UPDATE outbox_event SET payload = ''",
        "DELETE FROM outbox_event_migration",
        "TRUNCATE outbox_event_pending",
        "CREATE TABLE mine (n int)",
    ],
)
def test_it_may_do_what_is_granted_and_no_more(text: str) -> None:
    with Outbox(make_postgres()) as box, pytest.raises((StoreError, psycopg.Error), match="permission denied"):
        with box.transaction() as tx:
            tx.connection.execute(text)


def test_what_a_test_makes_the_member_may_use() -> None:
    url = make_postgres()
    rows(url, "CREATE TABLE theirs (n int)")
    with Outbox(url) as box, box.transaction() as tx:
        tx.connection.execute("INSERT INTO theirs VALUES (1)")
