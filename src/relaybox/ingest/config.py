"""What a standalone ingest is told: by arguments, environment and file, in that order of precedence.

[relaybox.ingest]   RELAYBOX_INGEST_BATCH               inbox, sender, batch, wait, listen, and what Reading has
[relaybox.source]   RELAYBOX_SOURCE, RELAYBOX_SOURCE_…  url, and the options of that source
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from .. import settings
from ..brokers.options import check_account
from ..brokers.parse import Reading
from ..durations import parse_duration
from ..errors import ConfigError
from ..settings import prefixed, table_of


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestConfig:
    url: str = field(repr=False)  # of the source; may hold a password
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    inbox: str = "inbox"
    sender: str | None = None
    batch: int = 500
    wait: timedelta = timedelta(seconds=1)
    listen: str | None = None  # address for /live, /ready and /metrics
    reading: Reading = field(default_factory=Reading)
    enabled: bool = True
    database_timeout: timedelta = settings.DATABASE_TIMEOUT


_READING = tuple(f.name for f in dataclasses.fields(Reading))
_NAMES = ("inbox", "sender", "batch", "wait", "listen", *_READING)


def load(arguments: Mapping[str, Any], *, environment: Mapping[str, str], file: Path | None = None) -> IngestConfig:
    """`arguments`: what was given on the command line, by these names, with `url` and `options` of the source."""
    content = settings.read_file(file) if file is not None else {}
    values: dict[str, Any] = {}
    url: str | None = None
    options: dict[str, Any] = {}
    for origin, ingest, source in (
        (f"[ingest] of {file.name if file else ''}", table_of(content, "ingest"), table_of(content, "source")),
        (
            "the environment",
            {"inbox": environment.get("RELAYBOX_INBOX"), **prefixed(environment, "INGEST_")},
            {"url": environment.get("RELAYBOX_SOURCE"), **prefixed(environment, "SOURCE_")},
        ),
        (
            "the arguments",
            {name: value for name, value in arguments.items() if name in _NAMES},
            {"url": arguments.get("url"), **(arguments.get("options") or {})},
        ),
    ):
        if unknown := sorted(ingest.keys() - set(_NAMES)):
            raise ConfigError(f"unknown name {unknown[0]!r} in {origin}; an ingest knows {', '.join(_NAMES)}")
        values |= {name: value for name, value in ingest.items() if value is not None}
        source = {name: value for name, value in source.items() if value is not None}
        if "url" in source:
            if url:
                options = {}  # another source: the options of the former one are not for it
            url = source.pop("url")
        options |= source
    if not url or not isinstance(url, str):
        raise ConfigError("no source given; set RELAYBOX_SOURCE, or use --from or url under [relaybox.source]")
    check_account(url, "source")
    for name, value in values.items():
        if name not in ("batch", "wait") and not isinstance(value, str):
            raise ConfigError(f"expected {name} to be text, got {type(value).__name__}")
    reading = Reading(**{name: values.pop(name) for name in _READING if name in values})
    if "batch" in values:
        values["batch"] = _number("batch", values["batch"])
    if "wait" in values:
        values["wait"] = parse_duration(values["wait"], "wait")
    common = settings.load(environment=environment, file=file).settings
    return IngestConfig(
        url=url,
        options=options,
        reading=reading,
        enabled=common.inbox_enabled,
        database_timeout=common.database_timeout,
        **values,
    )


def _number(name: str, value: Any) -> int:
    try:
        return int(value)
    except ValueError:
        raise ConfigError(f"expected {name} to be a whole number, got {value!r}") from None
