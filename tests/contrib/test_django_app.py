"""relaybox as an app of a Django project: tables, settings, commands, tests; in processes of their own."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django_project import SHOP, Django, database

from kit import make_database
from relaybox.contrib.tables import ProductName, stores
from relaybox.store.names import Tables

each_engine = pytest.mark.parametrize("engine", ["postgres", "mariadb", "sqlite"])


@pytest.fixture
def engine() -> str:
    return "sqlite"


@pytest.fixture
def project(engine: str, tmp_path: Path) -> Django:
    return Django(tmp_path, {"default": database(engine, tmp_path)})


@each_engine
def test_the_shops_own_tests(project: Django, engine: str) -> None:
    """By Django's runner and by pytest, one after the other, beside a database that is in use."""
    project.do("""
        from django.core.management import call_command
        from django.db import connection, transaction
        from relaybox import Event
        from relaybox.contrib.django import outbox

        call_command("migrate", verbosity=0)
        with transaction.atomic():
            outbox().write(connection, Event("OrderPlaced", {"id": 1}))
    """)
    assert "Ran 7 tests" in project.manage("test", "shop")
    if engine != "mariadb":
        assert "3 passed" in project.pytest(SHOP / "test_shop.py")
    assert project.do("from relaybox.contrib.django import outbox; print(outbox().status().due)") == "1\n"


def test_the_oldest_django(tmp_path: Path, older_django: str) -> None:
    project = Django(tmp_path, {"default": database("sqlite", tmp_path)}, site=older_django)
    said = project.do("""
        import django
        from django.core.management import call_command

        print(django.__version__)
        call_command("makemigrations", check=True)
        call_command("test", "shop")
    """)
    assert said.startswith("4.2")
    assert "No changes detected" in said
    assert "Ran 7 tests" in said


# -- tables -------------------------------------------------------------------------------------------


def test_tables_are_made_by_migrate(project: Django) -> None:
    said = project.do("""
        from django.core.management import call_command
        from relaybox.contrib.django import inbox, outbox

        call_command("migrate", plan=True)
        call_command("migrate", verbosity=1)
        outbox().verify()
        inbox("payments").verify()
        call_command("makemigrations", check=True)
        call_command("migrate", verbosity=0)
    """)
    assert "relaybox.0001_tables\n    Create or upgrade the tables of relaybox: outbox 0" in said
    assert "Applying relaybox.0001_tables... OK" in said
    assert "No changes detected" in said


def test_what_is_added_to_the_settings_is_made_by_the_next_migrate(project: Django) -> None:
    said = project.do("""
        from django.core.management import call_command
        from django.test import override_settings
        from relaybox.contrib.django import inbox
        from relaybox.contrib.django.config import configured

        call_command("migrate", verbosity=0)
        with override_settings(RELAYBOX={"inboxes": ["payments", "letters"], "guard": "marks", "vault": "data_keys"}):
            call_command("migrate", verbosity=1)
            inbox("letters").verify()
    """)
    assert "Applied letters 001 inbox" in said
    assert "Applied marks 001 guard" in said
    assert "Applied data_keys 001 vault" in said
    assert "Applied payments" not in said


def test_nothing_is_made_before_the_migration_and_all_without_migrations(project: Django) -> None:
    said = project.do("""
        from django.core.management import call_command
        from django.db import connection
        from django.test import override_settings

        call_command("migrate", "contenttypes", verbosity=0)
        print("outbox_event" in connection.introspection.table_names())
        with override_settings(MIGRATION_MODULES={app: None for app in ("relaybox", "shop")}):
            call_command("migrate", run_syncdb=True, verbosity=0)
        print("outbox_event" in connection.introspection.table_names())
    """)
    assert said == "False\nTrue\n"


ROUTERS = """
class Routers:
    def allow_migrate(self, db, app_label, product=None, **hints):
        if product is not None:
            return product == ("inbox" if db == "billing" else "outbox")
"""


def test_several_databases_and_a_router(tmp_path: Path) -> None:
    (tmp_path / "routers.py").write_text(ROUTERS)
    databases = {}
    for name in ("default", "billing", "archive"):
        (tmp_path / name).mkdir()
        databases[name] = database("sqlite", tmp_path / name)
    settings: dict[str, Any] = {"databases": ["default", "billing"], "inboxes": ["payments"]}
    project = Django(tmp_path, databases, RELAYBOX=settings, DATABASE_ROUTERS=["routers.Routers"])
    project.do("""
        from django.core.management import call_command
        from relaybox.contrib.django import inbox, outbox
        from relaybox.errors import ConfigError

        for name in ("default", "billing", "archive"):
            call_command("migrate", database=name, verbosity=0)
        outbox().verify()
        inbox("payments", "billing").verify()
        call_command("relaybox", "--database", "billing", "inbox", "list")
        try:
            outbox("archive")
        except ConfigError as error:
            assert "no 'archive' in databases" in str(error), error
        else:
            raise AssertionError
    """)
    made = {name: tables(databases[name]["NAME"]) for name in databases}
    assert ("outbox_event" in made["default"], "payments" in made["default"]) == (True, False)
    assert ("outbox_event" in made["billing"], "payments" in made["billing"]) == (False, True)
    assert [name for name in made["archive"] if name.startswith(("outbox", "payments"))] == []


def tables(path: str) -> set[str]:
    with sqlite3.connect(path) as connection:
        found = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    return found


def test_sqlmigrate_writes_a_script_that_works(tmp_path: Path) -> None:
    project = Django(tmp_path, {"default": database("postgres", tmp_path)})
    script = project.manage("sqlmigrate", "relaybox", "0001")
    url = make_database("postgres", tmp_path, migrated=False)
    with psycopg.connect(url) as connection:
        for _ in range(2):  # it asks what there is
            connection.execute(script)
        assert connection.execute("SELECT count(*) FROM outbox_event, payments").fetchone() == (0,)


PRODUCTS: tuple[ProductName, ...] = ("outbox", "inbox", "guard", "vault")


def test_the_newest_migration_of_django_names_the_newest_of_ours() -> None:
    """A release with a new numbered file needs another migration, for `migrate --plan` and `--check` to show it."""
    folder = Path(__file__).parents[2] / "src" / "relaybox" / "contrib" / "django" / "migrations"
    newest = max(folder.glob("[0-9]*.py")).read_text()
    named = {product: int(version) for product, version in re.findall(r"(\w+)=(\d+)", newest)}
    found: dict[str, int] = {}
    for product in PRODUCTS:
        for dialect in ("postgres", "mysql", "sqlite"):
            for store in stores(product, dialect, Tables("a")):
                name = type(store)._product
                found[name] = max(found.get(name, 0), store.migrations()[-1].version)
    assert named == found


@each_engine
def test_flush_deletes_events_and_messages(project: Django, engine: str) -> None:
    project.do(f"""
        from django.core.management import call_command
        from django.db import connection, transaction
        from relaybox import Event, StartFrom, Topic
        from relaybox.contrib.django import inbox, outbox

        call_command("migrate", verbosity=0)
        box = outbox()
        if {engine == "postgres"}:
            box.topics.configure(Topic.pub_sub("orders"))
            box.topics.group("orders", "mail", start=StartFrom.earliest()).create()
            with transaction.atomic():
                box.write(connection, Event("A", 1, topic="orders"))
        with transaction.atomic():
            box.write(connection, Event("A", 1))
            inbox("payments").accept(connection, Event("A", 1, id="a"))
        call_command("flush", interactive=False, verbosity=0)
        assert box.status().events == 0 and not ({engine == "postgres"} and box.topics.list())
        with transaction.atomic():
            assert inbox("payments").accept(connection, Event("A", 1, id="a"))
        inbox("payments").process(print).once()
        box.verify()
    """)


# -- settings -----------------------------------------------------------------------------------------


def test_settings_of_the_project_are_the_defaults_of_the_program(project: Django, tmp_path: Path) -> None:
    said = project.do("""
        import os
        from datetime import timedelta
        from django.core.management import call_command
        from django.test import override_settings
        from relaybox import Outbox, Settings

        second = timedelta(seconds=1)
        with override_settings(RELAYBOX={"delivery": {"workers": 3, "lease": 60, "retry": {"base": second}}}):
            found = Outbox("django://default").settings.delivery
            assert (found.workers, found.lease, found.retry.base) == (3, 60 * second, second), found
            os.environ["RELAYBOX_DELIVERY_WORKERS"] = "5"
            assert Settings.load().delivery.workers == 5
            call_command("relaybox", "config")
    """)
    assert re.search(r"delivery.lease +1m +RELAYBOX in Django's settings", said)
    assert re.search(r"delivery.workers +5 +environment", said)
    assert re.search(r"url +django://default", said)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"inbox": {"retenton": "1d"}},
            "unknown setting 'inbox.retenton' (RELAYBOX in Django's settings); did you mean",
        ),
        ({"tabel": "x"}, "unknown setting 'tabel' (RELAYBOX in Django's settings); did you mean 'table'?"),
        ({"delivery": {"workers": 0}}, "expected delivery.workers to be a positive int, got 0"),
        ({"inboxes": "payments"}, "expected \"inboxes\" to be a list of names, got 'payments'"),
        (
            {"databases": ["defualt"]},
            "in DATABASES (RELAYBOX in Django's settings); did you mean 'default'?",
        ),
        ({"table": "no table"}, "expected table name to be a letter"),
        ([], "expected RELAYBOX to be a dict, got list"),
    ],
)
def test_what_is_wrong_in_the_settings_is_told_by_checks(given: Any, told: str) -> None:
    found = checks(given)
    assert len(found) == 1
    assert told in found[0].msg
    assert re.fullmatch(r"relaybox\.E00[12]", found[0].id)


def checks(given: Any) -> list[Any]:
    import django
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        django.setup()
    from django.test import override_settings

    from relaybox.contrib.django.apps import check_settings

    with override_settings(RELAYBOX=given):
        return check_settings()


# -- manage.py relaybox -------------------------------------------------------------------------------


def test_the_command_line_works_on_the_database_of_the_settings(project: Django) -> None:
    project.manage("migrate", "-v0")
    project.do("""
        from django.db import connection, transaction
        from relaybox import Event
        from relaybox.contrib.django import outbox
        from shop.models import Order
        Order.objects.create(item="tea")
        with transaction.atomic():
            outbox().write_all(connection, [Event("OrderPlaced", {"id": 1}), Event("Unknown", {})])
    """)
    assert "runs delivery of outbox_event" in project.manage(
        "relaybox", "run", "shop.events:delivery", "shop.events:processing", "--once", fails=True
    )  # an event has died
    said = project.do("""
        from io import StringIO
        from django.core.management import call_command
        from shop.models import Order
        assert Order.objects.get().confirmed
        call_command("relaybox", "dead", "list")
        call_command("relaybox", "inbox", "list", "--json")
        kept = StringIO()
        call_command("relaybox", "--table", "outbox_event", "status", stdout=kept)
        assert "dead" in kept.getvalue()
    """)
    assert "no listener for event type 'Unknown'" in said
    assert '"name": "payments"' in said
    assert "there is no 'defualt'" in project.manage("relaybox", "--database", "defualt", "status", fails=True)


# -- the admin ----------------------------------------------------------------------------------------


def test_the_admin(tmp_path: Path) -> None:
    """Pages for who may see them, actions for who may act, under the user's name; payloads are for few."""
    project = Django(tmp_path, {"default": database("postgres", tmp_path)}, ALLOWED_HOSTS=["*"])
    project.do("""
        import logging
        from django.contrib.auth.models import Permission, User
        from django.core.management import call_command
        from django.db import connection, transaction
        from django.test import Client
        from relaybox import Event, Listeners, Reject, StartFrom, Topic
        from relaybox.contrib.django import inbox, outbox

        call_command("migrate", verbosity=0)
        logging.disable()
        box, letters = outbox(), inbox("payments")

        def refuse(event, *_):
            raise Reject("<no>")

        box.topics.configure(Topic.pub_sub("orders"))
        box.topics.group("orders", "mail", start=StartFrom.earliest()).create()
        with transaction.atomic():
            for n in range(60):
                box.write(connection, Event("A", {"secret": n}, id=f"dead-{n}", key="k"))
            letters.accept(connection, Event("P", {}, id="paid"), sender="bank")
        box.deliver(refuse).once()
        letters.process(refuse).once()
        with transaction.atomic():
            box.write(connection, Event("B", {"secret": 1}, id="waits"))

        def user(name, *permissions):
            made = User.objects.create_user(name, is_staff=True)
            made.user_permissions.set(Permission.objects.filter(codename__in=permissions))
            client = Client()
            client.force_login(made)
            return client

        def page(client, noun, status=200, **asked):
            answer = client.get(f"/admin/relaybox/{noun}/", asked)
            assert answer.status_code == status, (noun, answer.status_code)
            return answer.content.decode()

        looks = user("looks", "view_event", "view_deadletter", "view_group", "view_inbox", "view_blockedkey")
        acts = user("acts", "view_deadletter", "replay_deadletter", "view_event", "discard_event", "view_payload")
        nobody = user("nobody")

        page(nobody, "deadletter", 403)
        page(nobody, "event", 403)
        first = page(looks, "deadletter")
        assert first.count('class="action-select"') == 0 and "dead-0" in first and "dead-49" in first
        assert "dead-50" not in first and "&lt;no&gt;" in first and "<no>" not in first
        assert "dead-50" in page(looks, "deadletter", after=first.split("after=")[1].split('"')[0])
        assert "waits" in page(looks, "event") and "dead-0" in page(looks, "event", state="dead")
        assert "dead-7<" in page(looks, "deadletter", id="dead-7")
        assert "paid" in page(looks, "deadletter", of="default:inbox/payments", sender="bank")
        assert "orders/mail" in page(looks, "group") and "payments" in page(looks, "inbox")
        assert "none" in page(looks, "deadletter", of="default:group/orders/mail")
        page(looks, "blockedkey")
        assert "xpected DATABASE:outbox" in page(looks, "deadletter", of="default:nothing")
        assert "of an outbox have no sender" in page(looks, "deadletter", sender="bank")

        for client, seen in ((looks, False), (acts, True)):
            shown = page(client, "event/waits/change", of="default:outbox")
            assert ("secret" in shown) == seen
        page(nobody, "event/waits/change", 403, of="default:outbox")
        page(looks, "event/gone/change", 404, of="default:outbox")

        def act(client, noun, verb, *chosen, reason="why"):
            told = {"verb": verb, "chosen": chosen, "reason": reason}
            return client.post(f"/admin/relaybox/{noun}/", told, follow=True)

        assert act(looks, "deadletter", "replay", "dead-1").status_code == 403
        assert act(acts, "deadletter", "discard", "dead-1").status_code == 403
        assert "give a reason" in act(acts, "deadletter", "replay", "dead-1", reason=" ").content.decode()
        assert box.dead.count() == 60
        assert "2 replayed" in act(acts, "deadletter", "replay", "dead-1", "dead-2", reason="fixed").content.decode()
        assert "1 discarded" in act(acts, "event", "discard", "waits").content.decode()
        assert box.dead.count() == 58
        assert [(each.actor, each.verb, each.reason) for each in box.audit()][:2] == [
            ("acts", "discard", "why"), ("acts", "replay", "fixed"),
        ], box.audit()
    """)
