"""The end-to-end trial in short; and its judge on histories made by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from relaybox.testing.servers import require

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from chaos.end_to_end import Options, Trial
from chaos.end_to_end_judge import Effect, History, Movement, Reply, judge

SHORT = Options(
    broker="nats",
    messages=300,
    accounts=40,
    writers=1,
    relays=1,
    ingests=1,
    processors=2,
    kills=5,
    pauses=1,
    broker_kills=1,
    database_stops=1,
    outage_seconds=0.5,
    seed=3,
)


@pytest.mark.timeout(300)
def test_every_process_and_server_is_killed_and_each_effect_is_there_once(tmp_path: Path) -> None:
    require("postgres-wheel", durable=False)
    require("nats")
    report = Trial(SHORT, tmp_path).run()
    assert report["verdict"] == "PASS", report
    assert report["effects"] == report["committed"] == report["replies"] >= SHORT.messages


A1, A2, B1 = Movement("a", 1, 10), Movement("a", 2, -3), Movement("b", 1, 5)


def history(**changes: Any) -> History:
    sound: dict[str, Any] = {
        "truth": {"a1": A1, "a2": A2, "b1": B1},
        "effects": [Effect("a1", A1, 1), Effect("a2", A2, 2), Effect("b1", B1, 1)],
        "balances": {"a": (7, 2), "b": (5, 1)},
        "replies": [Reply("a1", "a", 1), Reply("a2", "a", 2), Reply("b1", "b", 1)],
        "sent": [Reply("a1", "a", 1), Reply("b1", "b", 1), Reply("a2", "a", 2), Reply("a1", "a", 1)],
    }
    return History(**{**sound, **changes})


def violations(*, ordered: bool = True, **changes: Any) -> set[str]:
    report = judge(history(**changes), ordered=ordered)
    assert (report["verdict"] == "PASS") == (not report["violations"])
    return set(report["violations"])


def test_the_judge() -> None:
    sound = history()
    assert violations() == set()
    assert violations(effects=sound.effects[:2]) == {"lost", "replies"}
    assert violations(effects=sound.effects[:2], replies=sound.replies[:2]) == {"lost"}
    ghost = Movement("c", 1, 1)
    assert violations(effects=[*sound.effects, Effect("c9", ghost, 1)]) == {"ghosts", "replies"}
    assert violations(effects=[*sound.effects, Effect("b1", B1, 2)]) == {"twice", "inversions"}
    assert violations(balances={"a": (7, 2), "b": (10, 2)}) == {"wrong"}
    assert violations(effects=[*sound.effects[:2], Effect("b1", B1._replace(amount=6), 1)]) == {"wrong"}
    turned = [Effect("a1", A1, 2), Effect("a2", A2, 1), Effect("b1", B1, 1)]
    assert violations(effects=turned) == {"inversions"}
    assert violations(effects=turned, ordered=False) == set()
    assert violations(replies=[*sound.replies, sound.replies[0]]) == {"replies"}
    assert violations(sent=sound.sent[1:3]) == {"unsent"}
    assert violations(sent=[*sound.sent[1:], sound.sent[0]]) == {"unsent"}
    assert violations(died=1) == {"died"}
    assert violations(left=2) == {"left"}
