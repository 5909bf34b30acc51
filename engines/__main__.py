"""python -m engines [--only "MySQL 9,Redis 8"] [--suites stores,guard] [--again] [--fetch]

Runs what has not passed yet, and writes the table."""

from __future__ import annotations

import argparse

from .catalog import ENGINES, Engine
from .packages import NotHad
from .run import Outcome, Results, prepare, run
from .table import PAGE, write


def main() -> int:
    names = [engine.name for engine in ENGINES]
    parser = argparse.ArgumentParser(prog="engines", description="Run the contract suites on the engines people run.")
    parser.add_argument("--only", help=f"of {', '.join(names)}; separated by commas")
    parser.add_argument("--suites", help="only these, separated by commas")
    parser.add_argument("--again", action="store_true", help="also what has passed on this version")
    parser.add_argument("--fetch", action="store_true", help="fetch the programs, run nothing")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else names
    if unknown := set(wanted) - set(names):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(names)}")
    results = Results()
    good = [
        _engine(engine, results, given.suites.split(",") if given.suites else None, given.again, given.fetch)
        for engine in ENGINES
        if engine.name in wanted
    ]
    if not given.fetch:
        write(results)
        print(f"the table is in {PAGE}", flush=True)
    return 0 if all(good) else 1


def _engine(engine: Engine, results: Results, suites: list[str] | None, again: bool, fetch: bool) -> bool:
    try:
        version, environment, python = prepare(engine)
    except NotHad as reason:
        print(f"{engine.name}: skipped: {reason}", flush=True)
        results.not_had(engine, str(reason))
        return True
    print(f"{engine.name}: {version}", flush=True)
    if fetch:
        return True
    results.begin(engine, version)
    good = True
    for name, suite in engine.suites.items():
        if (suites and name not in suites) or (results.done(engine, name) and not again):
            continue
        outcome = run(suite, environment, python)
        results.add(engine, name, outcome)
        _tell(name, outcome)
        good = good and outcome.good
    return good


def _tell(name: str, outcome: Outcome) -> None:
    counts = f"{outcome.passed} passed, {len(outcome.failed)} failed, {outcome.skipped} skipped"
    print(f"   {name}: {counts} in {outcome.seconds:.0f} s {outcome.ended}", flush=True)
    for test in outcome.failed:
        print(f"      {test}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
