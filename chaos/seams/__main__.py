"""python -m chaos.seams: all trials that have not passed yet, two at a time; a line for each, a table at the end."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .plan import chosen
from .results import RESULTS, latest, table, write_page
from .run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.seams", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="a trial's name, or a pattern; may be repeated")
    parser.add_argument("--short", action="store_true", help="the few trials that the tests run")
    parser.add_argument("--list", action="store_true", help="name the trials and end")
    parser.add_argument("--lanes", type=int, default=2, help="trials at a time")
    parser.add_argument("--again", action="store_true", help="also those that have passed")
    parser.add_argument("--keep", action="store_true", help="keep the records of trials that passed")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="write docs/operate/seams.md from the results and end")
    given = parser.parse_args()
    plans = chosen(given.only, given.short)
    if given.list:
        print("\n".join(plan.name for plan in plans), f"\n{len(plans)} trials", sep="\n")
        return 0
    if not given.page:
        passed = {name for name, result in latest(given.results).items() if result["verdict"] == "PASS"}
        todo = plans if given.again else [plan for plan in plans if plan.name not in passed]
        print(f"seams: {len(todo)} of {len(plans)} trials to do", flush=True)
        if todo:
            run(todo, given.lanes, given.results, keep=given.keep)
    results = latest(given.results)
    if given.page or (given.results == RESULTS and not given.only and not given.short):
        write_page(results)
    print(table({plan.name: results[plan.name] for plan in plans if plan.name in results}))
    bad = [
        plan.name for plan in plans if not results.get(plan.name, {}).get("verdict", "").startswith(("PASS", "SKIP"))
    ]
    print("PASS" if not bad else f"FAIL: {len(bad)} trials: " + "; ".join(bad[:20]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
