"""Writes docs/reference/settings.md from the Settings dataclass; `--check` only compares."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

from relaybox.durations import format_duration
from relaybox.settings import NOT_SETTINGS, OnExhausted, OrderStrategy, Settings, ShardAssignment

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "settings.md"

CHOICES = {"OnExhausted": OnExhausted, "OrderStrategy": OrderStrategy, "ShardAssignment": ShardAssignment}

HEAD = """# Settings

Written by `scripts/settings_page.py`; do not edit.

Every knob of a node is a field of `relaybox.Settings`, frozen and checked together when it is made. Where several
places name a value, the first of these wins:

1. the argument: `Settings(worker_count=8)`
2. the environment: `RELAYBOX_WORKER_COUNT=8`
3. a TOML file: `worker_count = 8` under `[relaybox]`
4. the default

The environment and the file are read by the command line and by `relaybox.settings.load(environment=…, file=…)`,
never at import. Durations are `timedelta` in Python; in the environment and in files also `250ms`, `30s`, `1h30m`,
`7d`, `PT5M`, or seconds as a number. `none` switches an optional setting off. `relaybox config` shows every value and
where it came from.

| setting | type | default | meaning |
|---|---|---|---|
"""


def shown(value: Any) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def kind(annotation: Any) -> str:
    words = {"timedelta": "duration", "str": "text", "None": "none"}
    words |= {name: ", ".join(get_args(choice)) for name, choice in CHOICES.items()}
    return " or ".join(words.get(part.strip(), part.strip()) for part in str(annotation).split("|"))


def text() -> str:
    lines = [
        f"| `{field.name}` | {kind(field.type)} | `{shown(field.default)}` | {field.metadata['about']} |"
        for field in dataclasses.fields(Settings)
    ]
    names = ", ".join(f"`RELAYBOX_{name}`" for name in sorted(NOT_SETTINGS))
    return HEAD + "\n".join(lines) + f"\n\nNot settings, but read by the command line or the test kit: {names}.\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the page is not what it should be")
    if not parser.parse_args().check:
        PAGE.parent.mkdir(parents=True, exist_ok=True)
        PAGE.write_text(text(), encoding="utf-8")
        return 0
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text():
        return 0
    sys.stderr.write(f"{PAGE.name} is not up to date: run python scripts/settings_page.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
