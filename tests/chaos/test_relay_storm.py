"""The relay trial in short, by every strategy; and its judge on histories made by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import mkdtemp

import pytest

from relaybox.testing.servers import require
from relaybox.testing.sink_contract import Received

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from chaos.relay import Options, Trial

SHORT = {"events": 1500, "keys": 150, "relays": 2, "seconds": 6.0, "kills": 2, "pauses": 1, "outages": 1, "seed": 5}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("broker", "strategy"), [("kafka", "shards"), ("redis", "advisory"), ("nats", "rows")])
def test_relays_and_broker_are_killed_and_nothing_is_lost(broker: str, strategy: str, tmp_path: Path) -> None:
    require("postgres-wheel", durable=False)
    require(broker)
    options = Options(broker=broker, strategy=strategy, outage_seconds=1.0, **SHORT)  # type: ignore[arg-type]
    report = Trial(options, tmp_path).run()
    assert report["verdict"] == "PASS", report
    assert (report["events"], report["lost"], report["inversions"]) == (1500, 0, 0)


def judged(tmp_path: Path, *received: str, dead: int = 0, dedup: bool = False, kills: int = 1) -> str:
    folder = Path(mkdtemp(dir=tmp_path))  # the guard of one trial remembers
    trial = Trial(Options(kills=kills, pauses=0, outages=0), folder)
    trial._committed = {"a1": (1, 1), "a2": (1, 2), "b1": (2, 1)}
    messages = [Received(name, name[0], b"", "", {}) for name in received]
    return str(trial._judge(messages, dead, 0.0, dedup)["verdict"])


def test_the_judge(tmp_path: Path) -> None:
    assert judged(tmp_path, "a1", "b1", "a2") == "PASS"
    assert judged(tmp_path, "a1", "a2", "a1", "b1") == "PASS", (
        "a copy behind its successor is a duplicate, not a disorder"
    )
    assert judged(tmp_path, "a1", "a2") == "FAIL: lost"
    assert judged(tmp_path, "a1", "a2", "b1", "c9") == "FAIL: ghosts"
    assert judged(tmp_path, "a2", "a1", "b1") == "FAIL: inversions"
    assert judged(tmp_path, "a1", "a2", "b1", "b1", dedup=True) == "FAIL: twice"
    assert judged(tmp_path, "a1", "a2", dead=1) == "FAIL: died"
    assert judged(tmp_path, "a1", "a2", "b1", "b1", kills=0) == "FAIL: duplicates"
