"""The crash trial in short, and the checker on histories made by hand: it must see every kind of violation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from chaos.checker import TRUTH, Checker, Deed, Report  # noqa: E402
from chaos.records import FORMAT, SIZE, Fault, History, Numbers, Op, read  # noqa: E402

S = 1_000_000_000
FIRST, SECOND = (101, 1), (102, 1)


def deed(op: Op, event: int, at: float, who: tuple[int, int] = FIRST, aux: int = 0) -> Deed:
    return Deed(op, who[1], who[0], 1, event, 0, aux, int(at * S))


def fault(kind: Fault, at: float, who: tuple[int, int] = (0, 0), lasted: float = 0.01) -> Deed:
    return Deed(Op.FAULT, who[1], who[0], 0, kind, 0, int(lasted * 1_000), int(at * S))


def judged(*deeds: Deed, truth: set[int] | None = None) -> Report:
    return Checker(list(deeds), {1} if truth is None else truth, ttl=5.0, bound=3).run()


def kinds(report: Report) -> set[str]:
    return {kind for kind, found in report.violations.items() if found}


def delivered(event: int, at: float, who: tuple[int, int] = FIRST) -> list[Deed]:
    """A life without incidents."""
    return [
        deed(Op.PUBLISH, event, at, (0, 1)),
        deed(Op.COMMIT_OK, event, at + 0.01, (0, 1)),
        deed(Op.OWN_GAIN, event, at + 0.02, who, aux=event),
        deed(Op.DELIVER, event, at + 0.03, who),
        deed(Op.ACK_OK, event, at + 0.04, who, aux=event),
    ]


def test_a_quiet_life_passes() -> None:
    report = judged(*delivered(1, 1.0))
    assert report.passed
    assert report.figures["duplicates"] == 0


def test_lost() -> None:
    assert kinds(judged(deed(Op.COMMIT_OK, 1, 1.0))) == {"lost"}
    unknown = judged(deed(Op.COMMIT_UNKNOWN, 1, 1.0))
    assert kinds(unknown) == {"lost"}, "an unknown commit that is in the truth must be delivered"


def test_ghosts() -> None:
    never = judged(deed(Op.DELIVER, 7, 1.0), truth=set())
    assert kinds(never) == {"ghost"}
    rolled_back = judged(deed(Op.ABORT, 7, 0.9), deed(Op.DELIVER, 7, 1.0), truth=set())
    assert kinds(rolled_back) == {"ghost"}
    assert "rolled back" in rolled_back.violations["ghost"][0]


def test_untruths() -> None:
    assert kinds(judged(deed(Op.COMMIT_OK, 1, 1.0), truth=set())) == {"untruth"}
    assert kinds(judged(*delivered(1, 1.0), deed(Op.ABORT, 1, 0.9))) == {"untruth"}
    assert kinds(judged(*delivered(1, 1.0), deed(Op.FAILED, 1, 0.9))) == {"untruth"}


def test_a_duplicate_needs_a_fault() -> None:
    twice = [*delivered(1, 1.0), deed(Op.DELIVER, 1, 3.0, SECOND)]
    assert kinds(judged(*twice)) == {"duplicate"}
    killed = fault(Fault.KILL_DISPATCHER, 1.5, FIRST)
    assert judged(*twice, killed).passed, "the one who delivered it was killed before it could settle"
    assert judged(*twice, fault(Fault.KILL_DISPATCHER, 1.02, FIRST, lasted=0.05)).passed, (
        "it delivered while it was killed"
    )
    assert kinds(judged(*twice, fault(Fault.KILL_DISPATCHER, 1.5, SECOND))) == {"duplicate"}, "another was killed"
    assert kinds(judged(*twice, fault(Fault.KILL_DISPATCHER, 2.9, FIRST))) == {"duplicate"}, "long after"
    assert kinds(judged(*twice, fault(Fault.KILL_DISPATCHER, 0.5, FIRST))) == {"duplicate"}, "before it"
    assert kinds(judged(*twice, fault(Fault.KILL_DISPATCHER, 3.5, FIRST))) == {"duplicate"}, "after both"
    assert kinds(judged(*twice, fault(Fault.KILL_WRITER, 1.2))) == {"duplicate"}
    assert judged(*twice, fault(Fault.PG_RESTART, 1.2, lasted=0.3)).passed
    assert judged(*twice, fault(Fault.TERMINATE, 1.2)).passed
    assert judged(*twice, fault(Fault.PAUSE, 1.01, SECOND, lasted=1.5)).passed


def test_one_fault_explains_only_so_many() -> None:
    crowd = [d for n in range(1, 6) for d in (deed(Op.DELIVER, n, 1.0), deed(Op.DELIVER, n, 3.0, SECOND))]
    killed = fault(Fault.KILL_DISPATCHER, 1.5, FIRST)
    assert kinds(judged(*crowd, killed, truth=set(range(1, 6)))) == {"duplicate"}
    assert judged(*crowd[:6], killed, truth={1, 2, 3}).passed


def test_a_settle_under_a_lost_claim() -> None:
    story = [
        deed(Op.OWN_GAIN, 1, 1.0, FIRST, aux=11),
        deed(Op.OWN_GAIN, 1, 5.0, SECOND, aux=22),
        deed(Op.DELIVER, 1, 5.1, SECOND),
    ]
    assert kinds(judged(*story, deed(Op.ACK_OK, 1, 6.0, FIRST, aux=11))) == {"fence"}
    assert judged(*story, deed(Op.ACK_OK, 1, 5.2, SECOND, aux=22)).passed


def test_recovery_is_measured_and_bounded() -> None:
    owned = [deed(Op.OWN_GAIN, 1, 1.0, FIRST, aux=1), fault(Fault.KILL_DISPATCHER, 1.1, FIRST)]
    soon = judged(*owned, deed(Op.DELIVER, 1, 4.1, SECOND))
    assert soon.passed
    assert soon.figures["recovery p50/p99/max s"] == [3.0, 3.0, 3.0]
    assert kinds(judged(*owned, deed(Op.DELIVER, 1, 31.1, SECOND))) == {"slow"}
    outage = fault(Fault.PG_RESTART, 2.0, lasted=25.0)
    assert judged(*owned, outage, deed(Op.DELIVER, 1, 31.1, SECOND)).passed, "nobody can work without a database"


def test_histories_survive_and_are_read_back(tmp_path: Path) -> None:
    assert (SIZE, FORMAT.size) == (32, 32)
    history = History(tmp_path / "d-1.bin", worker=101, incarnation=3)
    history.note(Op.DELIVER, 2**63, key=5, attempt=70_000, aux=2**40 + 7, at=99)
    with (tmp_path / "d-1.bin").open("ab") as file:
        file.write(b"half a record")
    assert read(tmp_path / "d-1.bin") == [(Op.DELIVER, 3, 101, 65_535, 2**63, 5, 7, 99)]
    first, second = Numbers(1, 1), Numbers(1, 2)
    assert len({first.draw(), first.draw(), second.draw()}) == 3


def test_the_checker_is_a_program_of_its_own(tmp_path: Path) -> None:
    """It reads the files, says FAIL with its exit code, and never imports relaybox."""
    history = History(tmp_path / "dispatcher-101-1.bin", 101, 1)
    history.note(Op.DELIVER, 1)
    (tmp_path / "truth.bin").write_bytes(TRUTH.pack(1, 0) + TRUTH.pack(2, 0))
    (tmp_path / "meta.json").write_text(json.dumps({"ttl": 5.0, "in_flight": 100, "harness": []}))
    script = (
        "import runpy, sys\n"
        "try:\n    runpy.run_module('chaos.checker', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert not [name for name in sys.modules if name.startswith('relaybox')]\n"
        "    sys.exit(end.code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "event 2 was committed and never delivered" in done.stdout
    assert json.loads((tmp_path / "report.json").read_text())["violations"] == {"lost": 1}


@pytest.mark.timeout(180)
def test_fifteen_seconds_of_chaos(tmp_path: Path) -> None:
    from relaybox.testing.servers import PostgresServer, ServerUnavailable

    try:
        PostgresServer.from_wheel()
    except ServerUnavailable as missing:
        pytest.skip(str(missing))
    from chaos.trial import Options, Trial

    options = Options(seconds=15, seed=42, ttl=2.0, pg_restarts=2, pauses_per_minute=0, kills_per_minute=40)
    report = Trial(options, tmp_path).run()
    assert report["verdict"] == "PASS", report
    assert report["committed"] > 300  # it did work, on a slow machine too
    assert report["rolled back"] > 30
    assert report["faults"]["PG_RESTART"] == 2
    assert report["faults"]["KILL_DISPATCHER"] >= 2
