"""What the scripts that write files of the repository share: write the file, or with `--check` only compare it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def write_or_check(name: str, text: str) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="fail when the file is not what it should be")
    file = ROOT / name
    if not parser.parse_args().check:
        file.write_text(text, encoding="utf-8")
        return 0
    if file.exists() and file.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{name} is not up to date: run python scripts/{Path(sys.argv[0]).name}\n")
    return 1
