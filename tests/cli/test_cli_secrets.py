"""A password stays where it was given: not in an error, a log, a repr, an output of the command line, whatever is wrong
with the URL."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from relaybox import AsyncOutbox, Outbox
from relaybox.brokers import SINKS, SOURCES, sink_from_url, source_from_url
from relaybox.cli.app import app
from relaybox.cli.connect import resolve
from relaybox.drivers import parse
from relaybox.drivers.tls import of_mysql, of_postgres
from relaybox.errors import RelayboxError
from relaybox.redaction import holds_password, masked, scrub
from relaybox.relay.config import load

CANARY = "c4naryS3cret"
NOBODY = "127.0.0.1:1"
DRIVERS = ["postgresql+psycopg", "postgresql+asyncpg", "mysql+pymysql", "mysql+asyncmy"]
BROKERS = sorted({*SINKS, *SOURCES} - {"inbox", "jsonl", "stdout", "file"})
SHAPES = [
    f"{{scheme}}://relay:{CANARY}@{NOBODY}/shop",
    f"{{scheme}}://relay:{CANARY}@127.0.0.1:port/shop",
    f"{{scheme}}://relay:{CANARY}@127.0.0.1:99999/shop",
    f"{{scheme}}://relay:{CANARY}/x@{NOBODY}/shop",
    f"{{scheme}}://relay:x/{CANARY}@{NOBODY}/shop",
    f"{{scheme}}://relay:x#{CANARY}@{NOBODY}/shop",
    f"{{scheme}}://relay:x?{CANARY}@{NOBODY}/shop",
    f"{{scheme}}://relay:x@{CANARY}@{NOBODY}/shop",
    f"{{scheme}}://relay:x%2F{CANARY}@{NOBODY}/shop",
    f"{{scheme}}://relay:{CANARY}",
    f"{{scheme}}://relay:1/{CANARY}@{NOBODY}/shop",
    f"{{scheme}}://[::1:{CANARY}@{NOBODY}/shop",
    f"{{scheme}}://relay:[{CANARY}]@{NOBODY}/shop",
    f"{{scheme}}://{NOBODY}/shop?password={CANARY}",
    f"{{scheme}}://{NOBODY}/shop?passwd={CANARY}",
    f"{{scheme}}://{NOBODY}/shop?passwd=x@{CANARY}",
    f"{{scheme}}://{NOBODY}/shop?pwd={CANARY}&sslpassword={CANARY}",
    f"{{scheme}}://{NOBODY}/shop&password={CANARY}",
    f"{{scheme}}://{NOBODY}/shop?{CANARY}",
    f"{{scheme}}://{NOBODY}/shop#{CANARY}",
    f"{{scheme}}://relay:{CANARY}@{NOBODY}/shop?tls=maybe&nonsense=1",
    f"{{scheme}}://relay:{CANARY}@{NOBODY}/shop?tls=verify&ca_file=/no/such/file",
    f"{{scheme}}:relay:{CANARY}@{NOBODY}/shop",
    f"{{scheme}}//relay:{CANARY}@{NOBODY}/shop",
    f"relay:{CANARY}@{NOBODY}/shop",
    f"host=127.0.0.1 port=1 password={CANARY}",
    f"nonsense+{{scheme}}://relay:{CANARY}@{NOBODY}/shop",
    f" {{scheme}}://relay:{CANARY}@{NOBODY}/shop",
    f"{{scheme}}://relay:{CANARY}@127.0.0.1\x7f:1/shop",
]
shapes = pytest.mark.parametrize("shape", SHAPES)


@pytest.fixture(autouse=True)
def _discreet(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    caplog.set_level("DEBUG")
    yield
    out, err = capfd.readouterr()
    assert CANARY not in caplog.text + out + err


class Silent:
    """Lets these errors happen, if none of their texts tells."""

    def __init__(self, *expected: type[BaseException]) -> None:
        self._expected = expected

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: object) -> bool:
        if error is not None:
            assert CANARY not in "".join(traceback.format_exception(error)) + repr(error)
        return isinstance(error, self._expected)


@shapes
@pytest.mark.parametrize("scheme", DRIVERS)
def test_databases(scheme: str, shape: str) -> None:
    url = shape.format(scheme=scheme)
    assert CANARY not in masked(url)
    with Silent(RelayboxError):
        assert CANARY not in repr(parse(url))
    if scheme in ("postgresql+asyncpg", "mysql+asyncmy"):

        async def look() -> None:
            outbox = AsyncOutbox(url)
            assert CANARY not in repr(outbox)
            try:
                await outbox.status()
            finally:
                await outbox.close()

        with Silent(RelayboxError):
            asyncio.run(look())
        return
    with Silent(RelayboxError):
        outbox = Outbox(url)
        assert CANARY not in repr(outbox)
        with contextlib.closing(outbox):
            outbox.status()


@shapes
@pytest.mark.parametrize("scheme", BROKERS)
def test_brokers(scheme: str, shape: str) -> None:
    url = shape.format(scheme=scheme)
    assert CANARY not in masked(url)
    for make in (sink_from_url, source_from_url):
        with Silent(RelayboxError):
            made: Any = make(url, {"timeout": "1s"} if scheme in ("nats", "redis") else {})
            assert CANARY not in repr(made)


@shapes
@pytest.mark.parametrize("scheme", ["amqp", "nats", "redis"])
async def test_brokers_that_are_away(scheme: str, shape: str) -> None:
    with Silent(RelayboxError, TimeoutError):
        sink = sink_from_url(shape.format(scheme=scheme))
        try:
            async with asyncio.timeout(10):
                await sink.open()
        finally:
            await sink.close()


@shapes
@pytest.mark.parametrize("command", [["config"], ["config", "--json"], ["status"], ["doctor"], ["events", "list"]])
def test_commands(command: list[str], shape: str) -> None:
    url = shape.format(scheme="postgresql")
    for arguments, environment in ((command, {"RELAYBOX_URL": url}), (["--url", url, *command], {})):
        result = CliRunner().invoke(app, arguments, env=environment)
        assert CANARY not in result.output + result.stderr
        with Silent(BaseException):
            if result.exception is not None:
                raise result.exception


@shapes
@pytest.mark.parametrize("scheme", ["amqp", "kafka", "nats", "redis", "sqs", "https", "inbox+postgresql"])
def test_relays(scheme: str, shape: str, tmp_path: Any) -> None:
    Outbox(f"sqlite:///{tmp_path}/shop.db").migrate()
    arguments = ["--url", f"sqlite:///{tmp_path}/shop.db", "relay", "--once", "--to", "x", "--dry-run"]
    result = CliRunner().invoke(app, arguments, env={"RELAYBOX_SINK": shape.format(scheme=scheme)})
    assert CANARY not in result.output + result.stderr
    with Silent(BaseException):
        if result.exception is not None:
            raise result.exception


def test_a_password_in_the_list_of_processes_is_said() -> None:
    for url, said in (
        (f"postgresql://relay:{CANARY}@{NOBODY}/shop", True),
        (f"postgresql://{NOBODY}/shop?password={CANARY}", True),
        (f"postgresql://relay@{NOBODY}/shop", False),
        ("sqlite:///nothing.db", False),
    ):
        result = CliRunner().invoke(app, ["--url", url, "config", "--json"])
        assert ("RELAYBOX_URL" in result.stderr) is said
        assert "warning" not in CliRunner().invoke(app, ["config"], env={"RELAYBOX_URL": url}).stderr


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://relay:s3cret@db/shop?sslmode=require", "postgresql://relay:***@db/shop?sslmode=require"),
        ("postgresql://relay@db/shop", "postgresql://relay@db/shop"),
        ("postgresql://a,b:5432/shop", "postgresql://a,b:5432/shop"),
        ("postgresql://[::1]:5432/shop", "postgresql://[::1]:5432/shop"),
        ("nats://s3cret@host", "nats://***@host"),
        ("redis://:s3cret@host/0", "redis://:***@host/0"),
        ("mysql://h/d?passwd=s3cret&tls=verify", "mysql://h/d?passwd=***&tls=verify"),
        ("mysql://h/d?s3cret", "mysql://h/d?***"),
        ("mysql://root:s3cret/d", "mysql://root:***/d"),
        ("sqlite:////data/a@b:c.db", "sqlite:////data/a@b:c.db"),
        ("mysql://h/d&passwd=s3cret", "mysql://h/***"),
        ("mysql://h/d?passwd=a@s3cret", "mysql://***"),
        ("mysql://root/a:s3cret", "mysql://root/***"),
        ("s3cret", "***"),
    ],
)
def test_what_people_see_of_a_url(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_what_holds_a_url_does_not_show_it() -> None:
    url = f"postgresql://relay:{CANARY}@{NOBODY}/shop?password={CANARY}"
    of_another = f"mysql://relay:{CANARY}@{NOBODY}/shop?passwd={CANARY}"
    target = resolve({"url": url}, None, {})
    config = load({"url": f"redis://:{CANARY}@localhost", "options": {"password": CANARY}, "to": "x"}, environment={})
    assert target.url.value == url
    assert config.options == {"password": CANARY}
    for held in (parse(url), of_postgres(url), of_mysql(of_another), target, config):
        assert CANARY not in repr(held)


def test_what_others_say_of_a_url() -> None:
    url = "postgresql://relay:p%2Fw@db/shop?passwd=hush+hush&tls=off"
    assert scrub("p%2Fw or p/w, hush+hush or hush hush, off", url) == "*** or ***, *** or ***, off"
    assert holds_password(url)
    assert scrub("a@hush, d&x=hush", "mysql://h/d&x=hush?passwd=a@hush") == "***, ***"
