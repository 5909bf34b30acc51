"""Crash points: at the n-th hit, once, in this process or in a child armed by its environment."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest

from relaybox import faults
from relaybox.errors import ConfigError, ConnectionLost
from relaybox.settings import Settings
from relaybox.testing import CrashPoint, InjectedFault, arm_from_environment, crash_at
from relaybox.testing import crash as crash_module


def test_raises_at_the_nth_hit_and_only_then() -> None:
    with crash_at("settle.before", hit=2) as point:
        faults.hit("settle.before")
        faults.hit("settle.after")
        assert not point.fired
        with pytest.raises(InjectedFault, match=r"settle\.before"):
            faults.hit("settle.before")
        faults.hit("settle.before")
        assert (point.fired, point.hits) == (True, 3)


def test_leaving_the_block_disarms() -> None:
    with crash_at("settle.before"):
        pass
    faults.hit("settle.before")
    assert faults.armed is None


def test_blocks_nest() -> None:
    with crash_at("claim.before") as outer:
        with crash_at("claim.after") as inner:
            with pytest.raises(InjectedFault):
                faults.hit("claim.after")
        assert (outer.fired, inner.fired) == (False, True)
        with pytest.raises(InjectedFault):
            faults.hit("claim.before")


def test_raises_the_given_error() -> None:
    with crash_at("settle.before", error=ConnectionLost("gone")), pytest.raises(ConnectionLost, match="gone"):
        faults.hit("settle.before")


def test_delay_blocks_and_goes_on() -> None:
    with crash_at("claim.before", action="delay", delay=timedelta(milliseconds=1)) as point:
        faults.hit("claim.before")
    point.wait(0)
    with pytest.raises(TimeoutError, match="did not fire"):
        CrashPoint("claim.before").wait(0.001)


async def test_cancel_reaches_the_current_task_at_its_next_await() -> None:
    passed = asyncio.Event()

    async def work() -> None:
        faults.hit("deliver.before")
        passed.set()
        await asyncio.sleep(60)

    with crash_at("deliver.before", action="cancel"):
        task = asyncio.create_task(work())
        await asyncio.wait([task], timeout=5)
    assert passed.is_set()
    assert task.cancelled()


def test_cancel_outside_a_task() -> None:
    with crash_at("deliver.before", action="cancel"), pytest.raises(asyncio.CancelledError):
        faults.hit("deliver.before")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "unknown fault point 'nowhere'"),
        (("settle.before", 0), "at least 1, got 0"),
        (("settle.before", 1, "explode"), "got 'explode'"),
    ],
)
def test_wrong_arguments(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CrashPoint(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["settle.before", "settle.before:1", "settle.before:x:kill", "settle.before:1:boom"])
def test_wrong_environment(text: str) -> None:
    with pytest.raises(ConfigError, match="point:hit:action"):
        arm_from_environment({"RELAYBOX_CRASH": text})
    assert faults.armed is None


def test_environment_arms_several() -> None:
    assert arm_from_environment({}) == []
    points = arm_from_environment({"RELAYBOX_CRASH": "claim.before:1:raise, settle.after:2:raise"})
    try:
        with pytest.raises(InjectedFault):
            faults.hit("claim.before")
        faults.hit("settle.after")
        with pytest.raises(InjectedFault):
            faults.hit("settle.after")
    finally:
        for point in points:
            crash_module._disarm(point)


def test_the_variable_is_not_taken_for_a_setting() -> None:
    environment = {"RELAYBOX_CRASH": "settle.before:1:kill", "RELAYBOX_DELIVERY_WORKERS": "2"}
    assert Settings.load(environment=environment).delivery.workers == 2


CHILD = """
from relaybox import faults
from relaybox.testing import arm_from_environment
arm_from_environment()
faults.hit("write.before")
print("one", flush=True)
faults.hit("write.before")
print("two", flush=True)
"""


def test_kill_is_kill_9() -> None:
    environment = {**os.environ, "RELAYBOX_CRASH": "write.before:2:kill", "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, timeout=60)
    assert (child.returncode, child.stdout) == (-signal.SIGKILL, "one\n"), child.stderr


@pytest.mark.parametrize("name", faults.POINTS)
def test_every_point_can_be_armed(name: str) -> None:
    with crash_at(name), pytest.raises(InjectedFault):
        faults.hit(name)
