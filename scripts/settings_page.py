"""Writes docs/reference/settings.md from the sections of Settings; `--check` only compares."""

from __future__ import annotations

import dataclasses
import sys
from datetime import time, timedelta
from typing import Any, Literal, get_args, get_origin

from generated import write_or_check

from relaybox.durations import DurationField, OptionalDurationField, format_duration
from relaybox.settings import INGEST, PREFIXES, RELAY, VARIABLES, Settings, explained, leaves

KINDS = {
    DurationField: "duration",
    OptionalDurationField: "duration",
    str: "text",
    float: "number",
    time: "time of day",
}

HEAD = """# Settings

Written by `scripts/settings_page.py`; do not edit.

Settings say how much, how often and how long. They are in sections, and each has one path everywhere. Where several
places name a value, the first of these wins:

1. the argument: `Settings(delivery=DeliverySettings(workers=8))`
2. the environment: `RELAYBOX_DELIVERY_WORKERS=8`
3. a TOML file, given by `--config` or `RELAYBOX_CONFIG`: `workers = 8` under `[relaybox.delivery]`
4. the default

```python
from relaybox import Outbox, Retry, Settings
from relaybox.types import DeliverySettings

delivery = DeliverySettings(workers=8, timeout="10s", retry=Retry(attempts=5, base="1s"))
outbox = Outbox("sqlite:///shop.db", settings=Settings(delivery=delivery))
```

`Settings()` reads nothing. What is made without `settings=` has `Settings.load()`: the environment, the file, the
default. `relaybox config` shows the same, with the origin of each value. Nothing is read at import. A name that does
not exist is an error that names the nearest one; variables that Kubernetes sets for services are left alone.

Durations are text such as `250ms`, `30s`, `1h30m`, `7d`, `PT5M`; in a program also a `timedelta`, or seconds as a
number. A file, the environment and the command line refuse a number without a unit: a `retention` of `7` may well mean
days. Attributes are always a `timedelta`. `none` switches an optional setting off.
`settings.replaced({"delivery.workers": 1})` is a copy with another value.
"""


def shown(value: Any) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, time):
        return f"{value:%H:%M}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def kind(leaf: Any) -> str:
    if get_origin(leaf.kind) is Literal:
        return ", ".join(get_args(leaf.kind))
    return KINDS.get(leaf.kind, leaf.kind.__name__) + (" or none" if leaf.optional else "")


def text() -> str:
    known = {leaf.path: leaf for leaf in leaves(Settings)}
    values = {origin.path: origin.value for origin in explained(environment={}).origins}
    parts = [HEAD]
    for section in dataclasses.fields(Settings):
        about = " ".join((type(section.default).__doc__ or "").split())
        rows = [
            f"| `{path}` | {kind(leaf)} | `{shown(values[path])}` | {leaf.about} |"
            for path, leaf in known.items()
            if path.startswith(f"{section.name}.")
        ]
        table = "\n".join(["| setting | type | default | meaning |", "|---|---|---|---|", *rows])
        parts.append(f"## {section.name}\n\n{about}\n\n{table}\n")
    options = [*(f"RELAY_{name.upper()}" for name in RELAY), *(f"INGEST_{name.upper()}" for name in INGEST)]
    names = ", ".join(f"`RELAYBOX_{name}`" for name in [*sorted(VARIABLES), *options, *(p + "…" for p in PREFIXES)])
    parts.append(
        "`retry.delay`, the pause after the n-th failure, can only be given in code.\n\n"
        f"Not settings, but read by the command line or the test kit: {names}.\n"
    )
    return "\n".join(parts)


if __name__ == "__main__":
    sys.exit(write_or_check("docs/reference/settings.md", text()))
