"""Who may import whom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from source_tree import ROOT

DIALECTS = ("postgres", "sqlite", "mysql")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100)


def test_layer_contracts() -> None:
    linter = Path(sys.executable).parent / "lint-imports"
    assert linter.exists(), "import-linter belongs to the dev extra: make venv"
    result = run(str(linter), "--no-cache")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("module", ["relaybox", "relaybox.facts", "relaybox.testing", "relaybox.observe.logs"])
def test_the_core_imports_only_the_standard_library(module: str) -> None:
    # What site-packages' own start-up files import is there before us and does not count.
    code = f"import sys; old = set(sys.modules); import json, {module}; print(json.dumps([*set(sys.modules) - old]))"
    result = run(sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr
    loaded = {name.partition(".")[0] for name in json.loads(result.stdout)}
    assert "relaybox" in loaded
    assert loaded - set(sys.stdlib_module_names) - {"relaybox"} == set()


def test_importing_the_core_loads_no_driver_dialect_or_exporter() -> None:
    code = "import json, sys, relaybox; print(json.dumps([m for m in sys.modules if m.startswith('relaybox.')]))"
    loaded = set(json.loads(run(sys.executable, "-c", code).stdout))
    front_doors = {f"relaybox.drivers.{name}" for name in ("spi", "pool", "limits", "urls", "tls", "layers", "script")}
    heavy = ("relaybox.drivers.", "relaybox.observe", "relaybox.testing", "relaybox.cli", "relaybox.contrib")
    dialects = tuple(f"relaybox.store.{product}.{name}" for product in ("outbox", "inbox") for name in DIALECTS)
    assert {name for name in loaded - front_doors if name.startswith((*heavy, *dialects))} == set()
