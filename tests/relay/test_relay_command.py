"""`relaybox relay` under odd circumstances: health pages, configuration of every type, secrets, signals, ends."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest
from typer.testing import CliRunner

from kit import migrated
from relaybox import Event, Outbox
from relaybox.brokers import sink_from_url
from relaybox.cli.app import app
from relaybox.drivers import parse
from relaybox.errors import ConfigError
from relaybox.observe.health import Health, HealthServer
from relaybox.relay.config import load
from relaybox.testing.servers import require

CANARY = "c4nary"


# -- health -----------------------------------------------------------------------------------------


def served(address: str, metrics: Any = None, *, live: bool = True) -> closing[HealthServer]:
    return closing(HealthServer(address, lambda: Health("critical", ("the broker is away",), live), metrics))


def asked(server: HealthServer, path: str, method: str = "GET", host: str = "127.0.0.1") -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(host, server.port, timeout=5)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_health_over_ipv6() -> None:
    with served("[::1]:0") as server:
        assert asked(server, "/live", host="::1")[0] == 200


def test_a_port_in_use_is_one_clear_error() -> None:
    with (
        served("127.0.0.1:0") as server,
        pytest.raises(ConfigError, match=r"cannot listen on .*: Address already in use"),
    ):
        HealthServer(f"127.0.0.1:{server.port}", Health)


@pytest.mark.parametrize("address", ["9400", ":9400", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:²", "127.0.0.1:-1"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match=r"such as 127\.0\.0\.1:9400"):
        HealthServer(address, Health)


def test_old_and_sparing_clients_are_answered() -> None:
    with served("127.0.0.1:0") as server:
        status, body = asked(server, "/ready?verbose", "HEAD")
        assert (status, body) == (503, b"")
        with closing(socket.create_connection(("127.0.0.1", server.port), timeout=5)) as raw:
            raw.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
            text = raw.makefile("rb").read()
    assert text.startswith(b"HTTP/1.0 503")
    assert json.loads(text.partition(b"\r\n\r\n")[2])["reasons"] == ["the broker is away"]


def test_a_page_that_fails_says_so_and_no_more() -> None:
    def broken() -> Any:
        raise ValueError(CANARY)

    with served("127.0.0.1:0", broken) as server:
        assert asked(server, "/metrics") == (500, b"failed\n")
        assert asked(server, "/live")[0] == 200


# -- configuration ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "[relaybox.relay]\nlisten = 9400",
        "[relaybox.relay]\nto = 5",
        "[relaybox.relay]\nce_source = 5",
        '[relaybox.relay]\ncontracts = ["a.toml"]',
        "[relaybox.sink]\nurl = 5",
        "[relaybox.relay]\nidempotency_ttl = true",
    ],
)
def test_values_of_the_wrong_type_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(text)
    environment = {} if "sink" in text else {"RELAYBOX_SINK": "stdout:"}
    with pytest.raises(ConfigError, match=r"expected \w+ to be text, got (int|list|bool)"):
        load({}, environment=environment, file=file)


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text('[relaybox.relay]\nto = "file"\n[relaybox.sink]\nurl = "stdout:"\n')
    empty = {"RELAYBOX_SINK": "", "RELAYBOX_RELAY_TO": "", "RELAYBOX_SINK_FSYNC": ""}
    config = load({}, environment=empty, file=file)
    assert (config.url, config.to, config.options) == ("stdout:", "file", {})


def test_a_duration_in_a_file_has_a_unit(tmp_path: Path) -> None:
    """Of the settings and of the sink."""
    file = tmp_path / "relay.toml"
    text = 'delivery.lease = "40s"\n[relay]\nto = "x"\n[sink]\nurl = "amqp://localhost"\ntimeout = "5s"\n'
    file.write_text(text)
    config = load({}, environment={}, file=file)
    assert config.settings.delivery.lease.total_seconds() == 40
    sink_from_url(config.url, config.options)
    file.write_text(text.replace('"40s"', "40"))
    with pytest.raises(ConfigError, match="'40' without a unit"):
        load({}, environment={}, file=file)
    file.write_text(text.replace('"5s"', "5"))
    config = load({}, environment={}, file=file)
    with pytest.raises(ConfigError, match="timeout"):
        sink_from_url(config.url, config.options)


@pytest.mark.parametrize("service", ["RELAYBOX", "RELAYBOX_RELAY"])
def test_a_kubernetes_service_of_our_name_stops_nobody(service: str) -> None:
    """Every pod of its namespace gets these."""
    environment = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "9400",
        f"{service}_SERVICE_PORT_HTTP": "9400",
        f"{service}_PORT": "tcp://10.0.0.1:9400",
        f"{service}_PORT_9400_TCP": "tcp://10.0.0.1:9400",
        f"{service}_PORT_9400_TCP_ADDR": "10.0.0.1",
        f"{service}_PORT_9400_TCP_PORT": "9400",
        f"{service}_PORT_9400_TCP_PROTO": "tcp",
    }
    load({"url": "stdout:", "to": "x"}, environment=environment)


# -- secrets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", "/?#")
@pytest.mark.parametrize("scheme", ["kafka", "amqp", "nats", "redis", "inbox+postgresql", "inbox+mysql"])
def test_a_password_that_breaks_its_url_is_not_shown(scheme: str, sign: str) -> None:
    with pytest.raises(ConfigError, match=r"write / \? # @ as") as caught:
        load({"url": f"{scheme}://shop:{CANARY}{sign}more@broker:1/x"}, environment={})
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example:8443/@shop",
        "https://[::1]/@shop",
        "file:///var/log/shop@home.jsonl",
        "jsonl://logs/a@b.jsonl",
        "kafka://shop:p%2Fw@b1:9092,b2:9092",
        "amqp://shop:pw@broker/v@host",
    ],
)
def test_an_at_sign_elsewhere_is_fine(url: str) -> None:
    assert load({"url": url, "to": "x"}, environment={}).url == url


@pytest.mark.parametrize("sign", "/?#")
def test_a_password_that_breaks_the_database_url_is_not_shown(sign: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"postgresql://shop:{CANARY}{sign}more@db/shop")
    assert CANARY not in str(caught.value)


def test_a_sqlite_url_without_slashes_is_one_clear_error() -> None:
    with pytest.raises(ConfigError):
        parse("sqlite:shop.db")


# -- as a process -----------------------------------------------------------------------------------


@pytest.fixture
def outbox(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/shop.db"
    with migrated(url) as box, box.transaction() as tx:
        box.write(tx, Event("T", f"{CANARY}-payload", key="k"))
    return url


@pytest.fixture
def environment(outbox: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RELAYBOX_")}
    return {**clean, "RELAYBOX_URL": outbox, "RELAYBOX_RELAY_TO": "x"}


def run(environment: dict[str, str], *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "relaybox", "relay", *arguments]
    return subprocess.run(command, env=environment | more, capture_output=True, text=True, timeout=60, check=False)


def test_debugging_shows_no_payload_and_no_key(environment: dict[str, str]) -> None:
    server = require("moto")
    account = {"region_name": "us-east-1", "aws_access_key_id": "any", "aws_secret_access_key": "any"}
    boto3.client("sqs", endpoint_url=server.url, **account).create_queue(QueueName="x")  # type: ignore[call-overload]
    ended = run(
        environment,
        "--once",
        "--log-level",
        "debug",
        RELAYBOX_SINK="sqs://",
        RELAYBOX_SINK_REGION="us-east-1",
        RELAYBOX_SINK_ENDPOINT_URL=server.url,
        RELAYBOX_SINK_ACCESS_KEY_ID=f"{CANARY}-id",
        RELAYBOX_SINK_SECRET_ACCESS_KEY=f"{CANARY}-key",
    )
    assert (ended.returncode, ended.stdout) == (0, "sent 1, died 0, left 0\n")
    assert CANARY not in ended.stderr


def test_a_wrong_timeout_is_found_before_anything_is_sent(outbox: str, tmp_path: Path) -> None:
    sink = f"file://{tmp_path}/out.jsonl"
    arguments = ["relay", "--url", outbox, "--sink", sink, "--to", "x"]
    assert CliRunner().invoke(app, [*arguments, "--once", "--timeout", "soon"]).exit_code == 1
    assert CliRunner().invoke(app, [*arguments, "--timeout", "1s"]).exit_code == 2
    assert not (tmp_path / "out.jsonl").exists()
    with Outbox(outbox) as box:
        assert box.status().due == 1


@pytest.mark.parametrize("more", [["--dry-run"], ["--once"], ["--dry-run", "--migrate"]])
def test_a_database_that_is_not_there_is_not_made(tmp_path: Path, more: list[str]) -> None:
    arguments = ["relay", "--url", f"sqlite:///{tmp_path}/typo.db", "--sink", "stdout:", "--to", "x", *more]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, "there is no SQLite database" in result.output) == (1, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_an_outage_gives_everything_back(environment: dict[str, str], number: signal.Signals) -> None:
    """The broker was never there: nothing was counted, nobody is left behind."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    settings = {"RELAYBOX_SINK": f"amqp://shop:{CANARY}@127.0.0.1:{port}", "RELAYBOX_DELIVERY_STOP_TIMEOUT": "200ms"}
    child = subprocess.Popen(
        [sys.executable, "-m", "relaybox", "relay"],
        env=environment | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert "relaybox runs relay of" in child.stdout.readline()
    child.send_signal(number)
    output, errors = child.communicate(timeout=30)
    assert child.returncode == 0, errors
    assert CANARY not in output + errors
    assert "Traceback" not in errors
    with Outbox(environment["RELAYBOX_URL"]) as box:
        status = box.status()
        assert (status.due, status.claimed, status.retrying, box.instances()) == (1, 0, 0, [])


def test_switches_may_be_true_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text("[relaybox.relay]\ndecrypt = true\nrows = true\ntombstones = false\nordered = true\n")
    config = load({"url": "stdout:"}, environment={"RELAYBOX_RELAY_TOMBSTONES": "yes"}, file=file)
    assert (config.decrypt, config.rows, config.tombstones, config.ordered) == (True, True, True, True)
    config = load({"url": "stdout:", "rows": False}, environment={}, file=file)
    assert (config.rows, config.tombstones) == (False, False)
