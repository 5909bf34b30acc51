"""What the scripts that write pages of docs/reference share: write the page, or with `--check` only compare it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"


def write_or_check(name: str, text: str) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="fail when the page is not what it should be")
    page = REFERENCE / name
    if not parser.parse_args().check:
        page.write_text(text, encoding="utf-8")
        return 0
    if page.exists() and page.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"docs/reference/{name} is not up to date: run python scripts/{Path(sys.argv[0]).name}\n")
    return 1
