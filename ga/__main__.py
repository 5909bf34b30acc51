"""python -m ga [--full] [--only LT-5,X-02] [--again] [--report FILE]: run what has not run yet, write the report."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from relaybox.testing.servers import PostgresServer

from . import chaos, contention, days, fanout, isolation, machine
from .report import PAGE, render
from .scale import Scale
from .verdicts import Verdict

# An hour is a minute for the server too: it looks once a second whether a table needs vacuuming, not once a minute.
SERVER = {"max_connections": "300", "autovacuum_naptime": "1s"}
STATE = Path(__file__).parent / "results" / "state.json"
Test = Callable[[PostgresServer, Scale], Verdict]
TESTS: dict[str, Test] = {load.name: partial(fanout.run, load) for load in fanout.LOADS} | {
    "X-02": chaos.run,
    "X-03": contention.run,
    "X-04": isolation.run,
    "X-05": days.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="ga", description=__doc__)
    parser.add_argument("--full", action="store_true", help="original durations: about ten hours")
    parser.add_argument("--only", help="tests, separated by commas; they run again")
    parser.add_argument("--again", action="store_true", help="forget what has run")
    parser.add_argument("--report", type=Path, default=PAGE)
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else list(TESTS)
    state = json.loads(STATE.read_text()) if STATE.exists() and not given.again else {}
    if state.get("full", given.full) != given.full:
        state = {}
    with PostgresServer.from_wheel(settings=SERVER if not given.full else {"max_connections": "300"}) as server:
        if "inserts" not in state:
            print("measuring the machine …", flush=True)
            busy = os.getloadavg()[0]
            inserts = machine.inserts_per_second(server.create_database())
            state |= {
                "busy": busy,
                "inserts": inserts,
                "disk": machine.disk_bytes_per_second(),
                "full": given.full,
                "tests": {},
            }
            save(state)
        scale = Scale(state["inserts"], state["disk"], given.full)
        print(f"{scale.inserts:,.0f} inserts/s: rates × {scale.factor:.3f}", flush=True)
        for name in wanted:
            if name in state["tests"] and not given.only:
                continue
            start = time.monotonic()
            verdict = TESTS[name](server, scale)
            verdict.seconds = time.monotonic() - start
            state["tests"][name] = verdict.as_json()
            save(state)
            print(f"{name}  {'pass' if verdict.passed else 'FAIL'}  {verdict.about}", flush=True)
            for check in verdict.checks:
                mark = " " if check.passed else "✗"
                print(f"   {mark} {check.name}: {check.measured} ({check.threshold})", flush=True)
        version = server.version
    verdicts = [Verdict.from_json(state["tests"][name]) for name in TESTS if name in state["tests"]]
    facts = {
        "Machine": f"{os.cpu_count()} cores, {platform.machine()}, clients and server on it together",
        "Server": f"PostgreSQL {version}, fsync on, autovacuum_naptime 1 s in place of 1 min",
        "Load before the tests": f"{state['busy']:.1f} (of others: more than the number of cores spoils latencies)",
        "Run": time.strftime("%F", time.gmtime()),
    }
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.write_text(render(scale, verdicts, facts), encoding="utf-8")
    print(f"report in {given.report}")
    return 1 if any(verdict.blocker and not verdict.passed for verdict in verdicts) else 0


def save(state: dict[str, object]) -> None:
    STATE.parent.mkdir(exist_ok=True)
    STATE.write_text(json.dumps(state, indent=1))


if __name__ == "__main__":
    raise SystemExit(main())
