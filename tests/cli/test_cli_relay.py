"""`relaybox relay`: configuration from everywhere, once, in thought, as a process that is stopped and killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kit import migrated, wait_until
from relaybox import Event, Outbox, Topic
from relaybox.errors import ConfigError
from relaybox.relay.config import load
from relaybox.testing.servers import require
from relaybox.testing.servers.process import free_port
from relaybox.topics.start import StartFrom

from .conftest import Command

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "relay"


@pytest.fixture
def url(tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path}/shop.db"
    with migrated(made) as box, box.transaction() as tx:
        box.write_all(tx, [Event("Placed", {"n": n}, key=f"k{n % 3}", aggregate_type="order") for n in range(9)])
    return made


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_fair_claims(relaybox: Command, url: str, tmp_path: Path) -> None:
    command = ["relay", "--url", url, "--sink", f"file://{tmp_path}/out.jsonl", "--to", "x", "--once"]
    assert "fair='tenant'" in relaybox(*command, "--fair", "tenant", exit_code=1).stderr
    assert "fair='tenant'" in relaybox(*command, RELAYBOX_RELAY_FAIR="tenant", exit_code=1).stderr
    told = relaybox(*command, "--unordered", "--fair", "tenant", exit_code=1).stderr
    assert "relaybox migrate --fair tenant" in told
    relaybox("migrate", "--fair", "tenant", "--url", url)
    assert "sent 9" in relaybox(*command, "--unordered", "--fair", "tenant").stdout


def test_once_sends_what_is_due_and_ends(relaybox: Command, url: str, tmp_path: Path) -> None:
    result = relaybox(
        "relay", "--url", url, "--sink", f"file://{tmp_path}/out.jsonl", "--to", "{aggregate_type}s", "--once", "--json"
    )
    assert json.loads(result.stdout) == {
        "sent": 9,
        "died": 0,
        "failed_attempts": 0,
        "left": 0,
        "waiting_for_retry": 0,
        "why": None,
    }
    sent = lines(tmp_path / "out.jsonl")
    assert {line["destination"] for line in sent} == {"orders"}
    for key in ("k0", "k1", "k2"):
        numbers = [line["data"]["n"] for line in sent if line["key"] == key]
        assert numbers == sorted(numbers)


def test_a_dry_run_shows_and_touches_nothing(relaybox: Command, url: str, tmp_path: Path) -> None:
    arguments = ("relay", "--url", url, "--sink", f"file://{tmp_path}/out.jsonl", "--dry-run")
    shown = json.loads(relaybox(*arguments, "--to", "x", "--limit", "4", "--json").stdout)
    assert [row["to"] for row in shown["messages"]] == ["x"] * 4
    relaybox(*arguments, "--to", "{tenant}", exit_code=4)
    assert not (tmp_path / "out.jsonl").exists()
    with Outbox(url) as box:
        assert (box.status().due, box.status().claimed) == (9, 0)


def test_once_tells_of_what_died(relaybox: Command, url: str, tmp_path: Path) -> None:
    (tmp_path / "contracts.toml").write_text('[contracts.Placed]\nto = "x"\naggregate_type = "customer"\n')
    result = relaybox(
        "relay",
        "--url",
        url,
        "--sink",
        f"file://{tmp_path}/o",
        "--contracts",
        f"{tmp_path}/contracts.toml",
        "--once",
        "--json",
        exit_code=4,
    )
    assert json.loads(result.stdout)["died"] == 9


class Refusing(BaseHTTPRequestHandler):
    """Takes no order of the key k0."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.server.status if json.loads(body)["n"] % 3 == 0 else 204)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def refusing() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("more", [("--set", "delivery.instance_ttl=500ms"), ("--unordered",)])
@pytest.mark.parametrize("status", [500, 503])
def test_once_tells_of_what_waits_for_a_retry(
    relaybox: Command, url: str, refusing: ThreadingHTTPServer, status: int, more: tuple[str, ...]
) -> None:
    """Whether its attempt counts (500) or not (503, after which others wait too): in order also what is behind it."""
    refusing.status = status  # type: ignore[attr-defined]
    port = f"ports={refusing.server_port}"
    options = ("insecure_http=true", "insecure_unsigned=true", "allow_networks=127.0.0.1/32", port)
    arguments = (
        *("relay", "--url", url, "--sink", f"http://127.0.0.1:{refusing.server_port}/"),
        *(word for option in options for word in ("--sink-option", option)),
        *("--set", "relay.retry.base=1h", "--set", "relay.retry.max=1h", "--once", *more),
    )
    document = json.loads(relaybox(*arguments, "--json", exit_code=3).stdout)
    assert (document["died"], document["sent"] + document["left"]) == (0, 9)
    assert document["left"] >= 3
    assert 1 <= document["waiting_for_retry"] <= min(document["failed_attempts"], document["left"])
    again = relaybox(*arguments, exit_code=3).stdout
    assert re.fullmatch(rf"sent \d, died 0, left [3-9], [1-9] of them wait for a retry: .*answered {status}.*\n", again)


def test_once_is_done_when_the_rest_is_meant_for_later(relaybox: Command, url: str, tmp_path: Path) -> None:
    with Outbox(url) as box, box.transaction() as tx:
        box.write(tx, Event("Placed", {"n": 9}, deliver_at=datetime.now(UTC) + timedelta(hours=1)))
    result = relaybox("relay", "--url", url, "--sink", f"file://{tmp_path}/out.jsonl", "--to", "x", "--once")
    assert result.stdout == "sent 9, died 0, left 1\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--to", "x"), "no sink given"),
        (("--sink", "carrier-pigeon://x", "--to", "x"), "unknown kind of sink 'carrier-pigeon'"),
        (
            (
                "--sink",
                "stdout:",
            ),
            "needs `to`",
        ),
        (("--sink", "stdout:", "--to", "x", "--set", "colour=red"), "unknown setting 'colour'"),
        (("--sink", "stdout:", "--to", "x", "--sink-option", "colour=red"), "unknown option 'colour'"),
        (("--sink", "stdout:", "--to", "x", "--format", "xml"), "expected format to be one of"),
        (("--sink", "stdout:", "--to", "x", "--contracts", "nowhere:contracts"), "no module 'nowhere'"),
    ],
)
def test_wrong_settings_get_one_line(relaybox: Command, url: str, arguments: tuple[str, ...], text: str) -> None:
    result = relaybox("relay", "--url", url, *arguments, exit_code=1)
    assert text in result.output
    assert "Traceback" not in result.output


def test_precedence(tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(
        '[relaybox.delivery]\nlease = "40s"\n[relaybox.relay]\nto = "file"\nce_source = "file"\nretry.attempts = 3\n'
        '[relaybox.sink]\nurl = "stdout:"\nflush = "always"\n'
    )
    environment = {
        "RELAYBOX_RELAY_RETRY_ATTEMPTS": "4",
        "RELAYBOX_RELAY_TO": "environment",
        "RELAYBOX_SINK_FLUSH": "never",
    }
    config = load({"to": "argument"}, environment=environment, file=file)
    assert (config.to, config.ce_source, config.settings.relay.retry.attempts) == ("argument", "file", 4)
    assert config.settings.delivery.lease.total_seconds() == 40
    assert (config.url, config.options) == ("stdout:", {"flush": "never"})
    other = load({"url": "kafka://x"}, environment=environment, file=file)
    assert (other.url, other.options) == ("kafka://x", {})


def test_the_defaults_of_a_publisher() -> None:
    config = load({"url": "pubsub://shop"}, environment={})
    assert (config.settings.relay.retry.attempts, config.settings.delivery.retry.attempts) == (25, 10)
    effective = config.settings.of_relay()
    assert (effective.delivery.retry.attempts, effective.delivery.cold_queue, effective.order.shard_rows) == (
        25,
        5000,
        800,
    )
    assert effective.outbox.retention == timedelta(days=30)
    assert config.settings.delivery.freeze_gc, "the process does nothing else"
    assert config.to is None, "no destination but the ones that somebody named"


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown setting RELAYBOX_RELAY_COLOUR"):
        load({}, environment={"RELAYBOX_RELAY_COLOUR": "red", "RELAYBOX_SINK": "stdout:"})
    with pytest.raises(ConfigError, match="expected ordered to be true or false"):
        load({}, environment={"RELAYBOX_RELAY_ORDERED": "perhaps", "RELAYBOX_SINK": "stdout:"})


def test_a_config_with_a_secret_does_not_show_it() -> None:
    config = load({"url": "amqp://u:canary@h"}, environment={"RELAYBOX_SINK_PASSWORD": "canary"})
    assert "canary" not in repr(config)


class Process:
    """A relay as users run it."""

    def __init__(self, *arguments: str, folder: Path) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RELAYBOX_")}
        self.child = subprocess.Popen(
            [sys.executable, "-m", "relaybox", "relay", *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> str:
        assert self.child.stdout is not None
        return self.child.stdout.readline()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    running: list[Process] = []

    def start(*arguments: str) -> Process:
        running.append(Process(*arguments, folder=tmp_path))
        return running[-1]

    yield start
    for process in running:
        process.child.kill()
        process.child.communicate()


def test_a_process_serves_its_health_and_stops_gracefully(url: str, tmp_path: Path, started: Any) -> None:
    port = free_port()
    process = started(
        "--url", url, "--sink", f"file://{tmp_path}/out.jsonl", "--to", "x", "--listen", f"127.0.0.1:{port}"
    )
    assert "relaybox runs relay of outbox_event to json-lines" in process.ready()
    here = f"http://127.0.0.1:{port}"
    for page in ("/live", "/ready"):
        with urllib.request.urlopen(here + page, timeout=5) as answer:
            assert json.load(answer)["level"] == "ok"
    with urllib.request.urlopen(here + "/metrics", timeout=5) as answer:
        text = answer.read().decode()
    assert "relaybox_backlog" in text
    assert "relaybox_relay_published_total" in text
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(here + "/other", timeout=5)
    process.child.send_signal(signal.SIGTERM)
    output, _ = process.child.communicate(timeout=20)
    assert process.child.returncode == 0
    assert "relaybox stops" in output
    with Outbox(url) as box:
        assert box.instances() == []


def sample(page: str, name: str) -> float:
    """One metric of a page; 0.0 while there is none."""
    with urllib.request.urlopen(page, timeout=20) as answer:
        found = [line.split()[1] for line in answer.read().decode().splitlines() if line.startswith(name + " ")]
    return float(found[0]) if found else 0.0


def test_the_age_of_what_waits_grows_while_the_broker_is_away(
    url: str, tmp_path: Path, started: Any, relaybox: Command
) -> None:
    """All of it is in the relay, claimed: neither the metrics nor the command may say that nothing waits."""
    port, nobody = free_port(), free_port()
    process = started(
        "--url", url, "--sink", f"nats://127.0.0.1:{nobody}", "--to", "x", "--listen", f"127.0.0.1:{port}"
    )
    process.ready()
    page = f"http://127.0.0.1:{port}/metrics"
    wait_until(lambda: sample(page, "relaybox_backlog_claimed") == 9)
    wait_until(lambda: sample(page, "relaybox_backlog_oldest_seconds") > 0)
    wait_until(lambda: sample(page, "relaybox_lag_oldest_ms") > 0)
    assert relaybox.json("status", "--url", url)["oldest_due"] > 0
    wait_until(lambda: relaybox.json("status", "--url", url)["instances"][0]["note"] == "nats is unavailable")


def test_the_backlog_of_a_topic_relay_is_that_of_its_group(tmp_path: Path, started: Any) -> None:
    url = require("postgres-wheel", durable=False).create_database()
    with migrated(url) as box:
        box.topics.configure(Topic.pub_sub("orders"))
        box.topics.group("orders", "relay", start=StartFrom.earliest()).create()
        with box.transaction() as tx:
            box.write_all(tx, [Event("Placed", n, key="k", topic="orders") for n in range(3)])
    port, nobody = free_port(), free_port()
    reads = ("--topic", "orders", "--group", "relay")
    process = started(
        "--url", url, "--sink", f"nats://127.0.0.1:{nobody}", "--to", "x", *reads, "--listen", f"127.0.0.1:{port}"
    )
    process.ready()
    page = f"http://127.0.0.1:{port}/metrics"
    wait_until(lambda: sample(page, "relaybox_backlog") + sample(page, "relaybox_backlog_claimed") == 3)
    wait_until(lambda: sample(page, "relaybox_backlog_oldest_seconds") > 0)
    wait_until(lambda: sample(page, "relaybox_lag_oldest_ms") > 0)


SINKS = ["amqp://u:canary@127.0.0.1:{port}", "nats://u:canary@127.0.0.1:{port}", "redis://u:canary@127.0.0.1:{port}"]


@pytest.mark.parametrize("sink", [*SINKS, "kafka://u:canary@127.0.0.1:{port}?sasl=PLAIN&insecure_no_tls=true"])
def test_no_canary_in_any_log_page_or_metric(tmp_path: Path, started: Any, sink: str) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    with migrated(url) as box, box.transaction() as tx:
        box.write(tx, Event("Placed", {"card": "canary"}, key="k", headers={"authorization": "canary"}))
    port, nobody = free_port(), free_port()
    process = started(
        "--url",
        url,
        "--sink",
        sink.format(port=nobody),
        "--to",
        "x",
        "--listen",
        f"127.0.0.1:{port}",
        "--log-level",
        "debug",
    )
    process.ready()
    pages = ""
    for page in ("/live", "/ready", "/metrics", "/nothing"):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=5) as answer:
                pages += answer.read().decode()
        except urllib.error.HTTPError as refused:
            pages += refused.read().decode()
    assert '"ready": false' in pages
    process.child.send_signal(signal.SIGTERM)
    output, errors = process.child.communicate(timeout=30)
    assert process.child.returncode == 0
    assert "is unavailable" in errors
    assert "canary" not in pages + output + errors


def test_the_example_files_are_what_the_command_takes() -> None:
    content = tomllib.loads((EXAMPLES / "relay.toml").read_text())
    assert set(content) == {"relaybox"}
    config = load({}, environment={}, file=EXAMPLES / "relay.toml")
    assert config.format == "cloudevents"
    unit = (EXAMPLES / "relaybox-relay.service").read_text()
    assert "relaybox relay --config /etc/relaybox/relay.toml" in unit
    assert (
        'ENTRYPOINT ["relaybox", "relay", "--config", "/etc/relaybox/relay.toml"]'
        in (EXAMPLES / "Dockerfile").read_text()
    )
