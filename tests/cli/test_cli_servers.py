"""The same commands on real servers, and the password that must never be seen."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relaybox import Event, Outbox
from relaybox.cli.app import app
from relaybox.testing.servers import require

from .conftest import Command, finish, kill, write

CANARY = "c4nary-S3cret"


def database(kind: str) -> str:
    url = require(kind, durable=False).create_database()
    with closing(Outbox(url)) as box:
        box.migrate()
    return url


@pytest.mark.parametrize("kind", ["postgres-wheel", "postgres-system", "mariadb"])
def test_every_command_on_a_server(relaybox: Command, kind: str) -> None:
    url = database(kind)
    env = {"RELAYBOX_URL": url}
    write(url, Event("A", 1))
    assert relaybox.json("status", **env)["due"] == 1
    finish(url)
    kill(url, Event("B", 2, key="k"))
    assert [d["event"]["key"] for d in relaybox.json("dead", "list", **env)["dead"]] == ["k"]
    assert relaybox.json("dead", "replay", "--all", "--yes", **env)["replayed"] == 1
    assert relaybox.json("purge", "--done", "0s", "--yes", **env)["purged"] == 1
    assert "CREATE TABLE" in relaybox("migrate", "--dry-run", "--table", "other", **env).stdout
    relaybox("migrate", "--verify", "--table", "other", exit_code=1, **env)
    assert relaybox.json("migrate", "--table", "other", **env)["applied"]
    relaybox("migrate", "--verify", "--table", "other", **env)


def test_a_schema_of_its_own_is_in_the_plan(relaybox: Command) -> None:
    env = {"RELAYBOX_URL": database("postgres-wheel"), "RELAYBOX_SCHEMA": "sales"}
    assert relaybox("migrate", "--dry-run", **env).stdout.startswith('CREATE SCHEMA "sales"')
    relaybox("migrate", **env)
    assert relaybox.json("status", **env)["events"] == 0


COMMANDS = (
    ["status"],
    ["status", "--json"],
    ["config"],
    ["config", "--json"],
    ["doctor"],
    ["doctor", "--json"],
    ["dead", "list"],
    ["dead", "show", "x"],
    ["dead", "replay", "--all"],
    ["purge"],
    ["migrate", "--dry-run"],
    ["migrate", "--verify", "--table", "missing"],
    ["keys", "list"],
)
BAD_URLS = (
    f"postgresql://postgres:{CANARY}@127.0.0.1:1/x",
    f"postgresql://postgres@127.0.0.1:1/x?password={CANARY}",
    f"postgresql://postgres:{CANARY}@127.0.0.1:notaport/x",
    f"postgresql://postgres:{CANARY}@[::1/x",
    f"postgresql://postgres:{CANARY}%21@127.0.0.1:1/x?no_such_option=1",
    f"mysql://root:{CANARY}@127.0.0.1:1/x",
    f"mysql://u:{CANARY}@h/x?wurst=1",
    f"oracle://u:{CANARY}@h/x",
)


def never_prints(url: str, tmp_path: Path) -> None:
    (tmp_path / "secret.toml").write_text(f"url = '{url}'\n")
    for command in COMMANDS:
        for args, env in (
            (command, {"RELAYBOX_URL": url}),
            ([*command, "--url", url], {}),
            ([*command, "--config", "secret.toml"], {}),
        ):
            result = CliRunner().invoke(app, args, env=env)
            assert CANARY not in result.output, args
            assert result.exception is None or isinstance(result.exception, SystemExit), (args, result.exception)


@pytest.mark.parametrize("url", BAD_URLS)
def test_no_error_shows_the_password(url: str, tmp_path: Path) -> None:
    never_prints(url, tmp_path)


@pytest.mark.parametrize("kind", ["postgres-wheel", "mariadb"])
def test_no_command_shows_the_password(kind: str, tmp_path: Path) -> None:
    """PostgreSQL trusts everybody; MariaDB refuses the wrong password and says so."""
    scheme, _, rest = database(kind).partition("://")
    user, _, host = rest.partition("@")
    never_prints(f"{scheme}://{user.partition(':')[0]}:{CANARY}@{host}", tmp_path)
