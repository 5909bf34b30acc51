"""A part of every product's suite under a role that owns nothing; `make roles` runs all of it (kit/as_roles.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kit.as_roles import SWITCH

TESTS = Path(__file__).parent.parent
SHORT = (
    "roles/proof.py",
    "outbox/test_delivering.py::test_delivers_retries_and_buries",
    "outbox/order/test_delivery.py::test_order_survives_retries",
    "inbox/test_process.py::test_every_message_takes_effect_once",
    "topics/test_group.py::test_a_batch_listener_gets_lists_and_names_the_failed",
    "relay/test_relay.py::test_everything_goes_out_in_the_order_of_its_key",
    "operate/test_events.py::test_replay_by_id_and_by_condition",
)


@pytest.mark.timeout(300)
def test_the_short_form(tmp_path: Path) -> None:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--strict-markers", *SHORT]
    # In a folder of its own: pytest closes the one that it shares with us to every other account, servers' included.
    words.append(f"--basetemp={tmp_path / 'child'}")
    told = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {SWITCH: "1"}
    said = subprocess.run([sys.executable, *words], cwd=TESTS, env=told, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    passed = re.search(r"(\d+) passed", said.stdout)
    assert passed, said.stdout
    assert int(passed[1]) > len(SHORT)
    assert "skipped" not in said.stdout
