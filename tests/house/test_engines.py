"""`make engines`: its table is what was run, and its suites are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from engines.catalog import ENGINES
from engines.run import ROOT, Outcome, Results
from engines.table import PAGE, render

from relaybox.testing.servers import MariaDBServer, PostgresServer, RabbitMQServer, RedisServer
from relaybox.testing.servers.process import PROGRAMS_VARIABLE


def test_the_table_is_what_the_results_say() -> None:
    assert render(Results()) in PAGE.read_text(encoding="utf-8"), "run make engines"


def test_the_names_differ_and_the_suites_are_there() -> None:
    names = [engine.name for engine in ENGINES]
    assert len(set(names)) == len(names)
    missing = [
        test
        for engine in ENGINES
        for suite in engine.suites.values()
        for test in suite.tests
        if not (ROOT / test.removeprefix("--ignore=")).exists()
    ]
    assert missing == []


def test_every_python_the_project_names_is_tried() -> None:
    named = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text())
    assert [f"Python {version}" for version in named] == [engine.name for engine in ENGINES if engine.runs_tests]


def test_what_an_older_version_did_does_not_count(tmp_path: Path) -> None:
    engine, results = ENGINES[0], Results(tmp_path / "results.json")
    results.begin(engine, "1.0")
    results.add(engine, "stores", Outcome(passed=3))
    results.begin(engine, "1.0")
    assert results.done(engine, "stores")
    assert Results(tmp_path / "results.json").all == results.all
    results.begin(engine, "1.1")
    assert not results.done(engine, "stores")


@pytest.mark.parametrize(
    "outcome", [Outcome(), Outcome(passed=3, failed=["a::b"]), Outcome(passed=3, ended="no memory"), Outcome(skipped=3)]
)
def test_what_did_not_pass_is_run_again_and_shown(outcome: Outcome, tmp_path: Path) -> None:
    engine, results = ENGINES[0], Results(tmp_path / "results.json")
    results.begin(engine, "1.0")
    results.add(engine, "stores", outcome)
    assert not results.done(engine, "stores")
    assert "failed" in render(results)


def test_what_cannot_be_had_says_so(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    results.not_had(ENGINES[0], "it takes mvn, which is not here")
    assert "| it takes mvn, which is not here |" in render(results)


def test_a_named_folder_comes_before_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mysqld", "valkey-server", "postgres", "rabbitmq-server"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\necho Ver 9.9.9\n")
        program.chmod(0o755)
    monkeypatch.setenv(PROGRAMS_VARIABLE, str(tmp_path))
    server = MariaDBServer.from_system()
    assert (server.version, server.is_mariadb) == ("9.9.9", False)
    assert PostgresServer.from_wheel().version == PostgresServer.from_system().version == "9.9.9"
    assert RedisServer()._program == tmp_path / "valkey-server"
    assert RabbitMQServer()._programs == tmp_path
