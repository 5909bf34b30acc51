"""Global options, errors, exit codes, migrate, config."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from relaybox import __version__
from relaybox.cli.app import app

from .conftest import Command


def test_version_and_help(relaybox: Command) -> None:
    assert relaybox("--version").stdout == f"relaybox {__version__}\n"
    shown = relaybox("--help").stdout
    for name in ("demo", "migrate", "run", "status", "events", "dead", "keys", "purge", "audit", "doctor", "config"):
        assert f"  {name} " in shown


def test_the_reference_names_every_command_and_option() -> None:
    page = Path(__file__).resolve().parents[2].joinpath("docs", "reference", "cli.md").read_text(encoding="utf-8")

    def walk(command: Any, path: str) -> None:
        assert f"`{path}" in page, path
        for option in (name for parameter in command.params for name in parameter.opts if name.startswith("--")):
            assert option == "--help" or f"`{option}" in page, f"{path} {option}"
        for name, child in getattr(command, "commands", {}).items():
            walk(child, f"{path} {name}")

    walk(get_command(app), "relaybox")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("de", {"demo", "dead"}),
        ("--url sqlite:///none.db dead re", {"replay"}),
        ("status --url sqlite:///none.db --wa", {"--watch"}),
        ("dead replay --da", {"--data-key"}),
        ("topics configure orders --semantics ", {"queue", "pub_sub"}),
    ],
)
def test_a_shell_completes_commands_options_and_values(tmp_path: Path, words: str, completed: set[str]) -> None:
    words = f"relaybox {words}"
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_RELAYBOX_COMPLETE": "complete_bash"}
    program = Path(sys.executable).with_name("relaybox")
    done = subprocess.run([program], env=os.environ | asked, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert (set(done.stdout.split()), done.stderr) == (completed, "")
    assert list(tmp_path.iterdir()) == []


def test_the_completion_of_a_shell_can_be_seen_and_installed(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("relaybox"))
    home = os.environ | {"HOME": str(tmp_path)}

    def ask(option: str) -> str:
        shell = ["bash", "--norc", "-c", f"{program} {option}; true"]  # the last word: bash stays, and is found
        return subprocess.run(shell, env=home, capture_output=True, text=True, check=True).stdout

    shown = ask("--show-completion")
    assert "complete -o default -F _relaybox_completion relaybox" in shown
    assert "bash completion installed" in ask("--install-completion")
    assert (tmp_path / ".bash_completions" / "relaybox.sh").read_text().strip() == shown.strip()


def test_the_help_of_a_command_says_which_database(relaybox: Command) -> None:
    for command in (["status"], ["dead", "list"], ["inbox", "show"], ["topics", "list"], ["cdc", "check"]):
        assert "--url, or RELAYBOX_URL" in relaybox(*command, "--help").stdout
    for command in (["demo"], ["config"], ["run"], ["contracts", "check"]):
        assert "Which database" not in relaybox(*command, "--help").stdout


def commands(group: Any, *above: str) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield from commands(command, *above, name) if hasattr(command, "commands") else [(*above, name)]


def test_the_help_speaks_of_no_types_of_python(relaybox: Command) -> None:
    for command in commands(get_command(app)):
        told = CliRunner().invoke(app, [*command, "--help"]).output
        assert not re.search(r"<(str|int|float|list|file|path)\b", told), told
    assert "--reason TEXT" in relaybox("dead", "replay", "--help").stdout
    assert "--retention DURATION" in relaybox("topics", "configure", "--help").stdout


def test_only_events_have_a_state(relaybox: Command, url: str) -> None:
    assert "--state" in relaybox("events", "list", "--help").stdout
    assert "--state" not in relaybox("dead", "list", "--help").stdout
    relaybox("dead", "list", "--state", "dead", "--url", url, exit_code=2)
    told = relaybox("events", "list", "--state", "Done", "--url", url, exit_code=2).stderr
    assert "expected --state to be open, dead or done, got 'Done'" in told


@pytest.mark.parametrize("command", [["purge", "--done"], ["purge", "--dead"], ["inbox", "purge", "--seen"]])
def test_an_age_without_a_unit_deletes_nothing(relaybox: Command, url: str, command: list[str]) -> None:
    """Seven seconds or seven days?"""
    for number in ("7", "0.5"):
        told = relaybox(*command, number, "--yes", "--url", url, exit_code=1).stderr
        assert told.startswith(f"error: expected {command[-1]} to be a duration such as 30s")
        assert told.endswith(f"got '{number}' without a unit\n")


def test_usage_errors_exit_2(relaybox: Command, url: str) -> None:
    relaybox("nonsense", exit_code=2)
    relaybox("status", "--no-such-option", exit_code=2)
    relaybox("status", "--watch", "--json", "--url", url, exit_code=2)
    relaybox("migrate", "--dry-run", "--verify", "--url", url, exit_code=2)
    relaybox("purge", "--done", "none", "--url", url, exit_code=2)


def test_errors_are_one_line_and_exit_1(relaybox: Command, tmp_path: Path) -> None:
    cases = (
        (["status"], "no database given"),
        (["status", "--url", "oracle://h/x"], "unknown database URL scheme 'oracle'"),
        (["status", "--url", "postgresql://[::1/x"], "cannot read the database URL"),
        (["status", "--url", "sqlite:///missing.db"], "there is no SQLite database 'missing.db'"),
        (
            ["status", "--url", "sqlite:///none/shop.db"],
            "there is no folder 'none' for the SQLite database 'none/shop.db'",
        ),
        (["status", "--config", "missing.toml"], "cannot read the settings file missing.toml"),
        (["status", "--config", "typo.toml"], "unknown setting"),
        (["status", "--url", "sqlite:///x.db", "--table", "a;b"], "expected table name"),
    )
    (tmp_path / "x.db").touch()
    (tmp_path / "typo.toml").write_text("[relaybox.delivery]\nworker = 3\n")
    for args, text in cases:
        result = relaybox(*args, exit_code=1)
        assert result.stderr.startswith("error: ")
        assert text in result.stderr
        assert result.stderr.count("\n") == 1
        assert result.stdout == ""
    assert not (tmp_path / "missing.db").exists()


def test_a_schema_that_is_not_there_is_named(relaybox: Command, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "empty.db").execute("PRAGMA user_version = 1")
    assert "relaybox migrate" in relaybox("status", "--url", "sqlite:///empty.db", exit_code=1).stderr


def test_global_options_may_stand_anywhere(relaybox: Command, url: str) -> None:
    for args in (["--url", url, "status"], ["status", "--url", url], ["status", f"--url={url}"]):
        assert relaybox.json(*args)["due"] == 0
    assert relaybox.json("status", RELAYBOX_URL=url)["due"] == 0
    relaybox("dead", "show", "--", "--url", exit_code=1, RELAYBOX_URL=url)


def test_migrate_plan_verify(relaybox: Command, tmp_path: Path) -> None:
    url = "sqlite:///new.db"
    planned = relaybox("migrate", "--dry-run", "--url", url).stdout
    assert 'CREATE TABLE "outbox_event"' in planned
    assert not (tmp_path / "new.db").exists()
    relaybox("migrate", "--verify", "--url", url, exit_code=1)
    applied = [{"version": n, "name": name} for n, name in enumerate(("outbox", "audit"), 1)]
    assert relaybox.json("migrate", "--url", url) == {"applied": applied}
    assert "nothing to do" in relaybox("migrate", "--url", url).stdout
    assert relaybox.json("migrate", "--verify", "--url", url) == {"version": 2, "verified": True}
    assert relaybox.json("migrate", "--dry-run", "--url", url) == {"plan": [], "sql": []}


def test_the_advice_names_the_command_that_makes_the_tables(relaybox: Command, tmp_path: Path) -> None:
    assert (
        "`relaybox inbox create` makes it"
        in relaybox("inbox", "list", "--url", "sqlite:///none.db", exit_code=1).stderr
    )
    assert "`relaybox migrate` makes it" in relaybox("status", "--url", "sqlite:///none.db", exit_code=1).stderr
    (tmp_path / "empty.db").touch()
    told = relaybox("inbox", "show", "--inbox", "mail", "--url", "sqlite:///empty.db", exit_code=1).stderr
    assert "run `relaybox inbox create --inbox mail --if-not-exists`" in told.replace("\n", " ")
    relaybox("inbox", "create", "--inbox", "mail", "--if-not-exists", "--url", "sqlite:///empty.db")
    relaybox("inbox", "show", "--inbox", "mail", "--url", "sqlite:///empty.db")


def test_what_fair_claims_need_is_made_on_request(relaybox: Command, url: str) -> None:
    planned = relaybox.json("migrate", "--dry-run", "--fair", "tenant", "--url", url)
    assert planned["plan"] == [{"version": 0, "name": "outbox_event_pending_tenant"}]
    assert "(tenant, due, seq)" in planned["sql"][-1]
    relaybox("migrate", "--verify", "--url", url)
    relaybox("migrate", "--verify", "--url", url, RELAYBOX_DELIVERY_FAIR="tenant", exit_code=1)
    assert relaybox.json("migrate", "--fair", "tenant", "--url", url) == {"applied": planned["plan"]}
    relaybox("migrate", "--verify", "--url", url, RELAYBOX_DELIVERY_FAIR="tenant")
    assert "nothing to do" in relaybox("migrate", "--url", url, RELAYBOX_DELIVERY_FAIR="tenant").stdout
    told = relaybox("migrate", "--fair", "always", "--url", url, exit_code=1).stderr
    assert "expected delivery.fair to be off or tenant, got 'always'" in told


def test_the_planned_sql_is_what_migrate_does(relaybox: Command, url: str, tmp_path: Path) -> None:
    """Applied by hand, the plan gives the same tables and satisfies --verify."""
    document = relaybox.json("migrate", "--dry-run", "--table", "second", "--url", url)
    assert [step["version"] for step in document["plan"]] == [1, 2]
    by_hand = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    for text in document["sql"]:
        by_hand.execute(text)
    relaybox("migrate", "--verify", "--table", "second", "--url", url)


def test_config_shows_value_and_origin(relaybox: Command, tmp_path: Path) -> None:
    (tmp_path / "box.toml").write_text('url = "sqlite:///file.db"\ndelivery = {lease = "40s", workers = 2}\n')
    document = relaybox.json("config", "--config", "box.toml", "--table", "t", RELAYBOX_DELIVERY_WORKERS="9")
    rows = {row["name"]: (row["value"], row["origin"]) for row in document["settings"]}
    assert rows["url"] == ("sqlite:///file.db", "file box.toml")
    assert rows["table"] == ("t", "argument")
    assert rows["delivery.lease"] == (40.0, "file box.toml")
    assert rows["delivery.workers"] == (9, "environment RELAYBOX_DELIVERY_WORKERS")
    assert rows["delivery.retry.attempts"] == (10, "default")
    text = relaybox("config", "--config", "box.toml").stdout
    assert "40s" in text
    assert "file box.toml" in text


def test_bad_settings_are_errors(relaybox: Command, url: str, tmp_path: Path) -> None:
    assert "delivery.workers" in relaybox("config", exit_code=1, RELAYBOX_DELIVERY_WORKERS="many").stderr
    assert "unknown setting RELAYBOX_WURST" in relaybox("status", "--url", url, exit_code=1, RELAYBOX_WURST="1").stderr
    (tmp_path / "bad.toml").write_text("url = 3\n")
    assert "expected url in bad.toml to be text" in relaybox("status", "--config", "bad.toml", exit_code=1).stderr


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_without_the_extra_one_line_says_what_to_install(package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from relaybox.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith("pip install 'relaybox[cli]'\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("status", "--tabel", "x"), "No such option: --tabel; did you mean '--table'?"),
        (("--tabel", "x", "status"), "No such option: --tabel; did you mean '--table'?"),
        (("relay", "--snik", "x"), "No such option: --snik; did you mean '--sink'?"),
        (("run", "--lisetn", "x", "m:o"), "No such option: --lisetn; did you mean '--listen'?"),
        (("dead", "list", "--limt", "3"), "No such option: --limt; did you mean '--limit'?"),
        (("status", "--xyzzy"), "No such option: --xyzzy"),
        (("statsu",), "No such command 'statsu'. Did you mean 'status'?"),
        (("dead", "lsit"), "No such command 'lsit'. Did you mean 'list'?"),
        (("maintain", "--preset", "hihg"), "got 'hihg'; did you mean 'high'?"),
    ],
)
def test_what_is_nearly_right_is_named(relaybox: Command, arguments: tuple[str, ...], said: str) -> None:
    assert said in " ".join(relaybox(*arguments, exit_code=2).output.split())


def test_an_inbox_that_is_nearly_right_is_named(relaybox: Command, url: str) -> None:
    relaybox("inbox", "create", "--inbox", "orders", "--url", url)
    told = relaybox("dead", "list", "--of", "inbox/ordres", "--url", url, exit_code=1)
    assert "there is no inbox 'ordres'; did you mean 'orders'?" in told.output


def test_a_folder_that_is_not_there_is_named(relaybox: Command) -> None:
    told = relaybox("status", "--url", "sqlite:////nowhere/x.db", exit_code=1)
    assert "there is no folder '/nowhere' for the SQLite database '/nowhere/x.db'" in told.output
