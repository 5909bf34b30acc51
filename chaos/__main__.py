"""python -m chaos [--seconds 60] [--seed N] …: one trial, its report, a verdict and an exit code."""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, fields
from pathlib import Path

from .planted import PLANTS, caught
from .trial import ROOT, Options, Trial

RESULTS = ROOT / "chaos" / "results" / "runs.jsonl"


def parse(arguments: list[str] | None = None) -> tuple[Options, bool]:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    for field in fields(Options):
        name = "--" + field.name.replace("_", "-")
        if field.name == "plant":
            parser.add_argument(name, choices=sorted(PLANTS), default="none", help="a bug the checker must find")
        elif field.name == "seed":
            parser.add_argument(name, type=int, default=secrets.randbelow(1_000_000))
        else:
            kind = int if isinstance(field.default, int) else float
            parser.add_argument(name, type=kind, default=field.default)
    parser.add_argument("--control", action="store_true", help="no faults at all: not one duplicate is allowed")
    parser.add_argument("--keep", action="store_true", help="keep the histories of a trial that passed")
    given = vars(parser.parse_args(arguments))
    keep, control = given.pop("keep"), given.pop("control")
    if control:
        given |= {"kills_per_minute": 0.0, "pg_restarts": 0, "terminations_per_minute": 0.0, "pauses_per_minute": 0.0}
    return Options(**given), keep


def main() -> int:
    options, keep = parse()
    folder = Path(tempfile.mkdtemp(prefix="relaybox-chaos-"))
    print(f"chaos: {options}\n  histories in {folder}")
    started = time.time()
    report = Trial(options, folder).run()
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        line = {"at": time.strftime("%FT%TZ", time.gmtime(started)), "took": round(time.time() - started, 1)}
        file.write(json.dumps({**line, **asdict(options), **report}) + "\n")
    passed = report["verdict"] == "PASS"
    if options.plant != "none":
        passed = caught(options.plant, report)
        print(f"  planted {options.plant}: {'caught' if passed else 'NOT CAUGHT'}")
    if passed and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
