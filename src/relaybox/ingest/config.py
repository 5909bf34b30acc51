"""What a standalone ingest is told: by arguments, environment and file, in that order of precedence.

[relaybox.ingest]    RELAYBOX_INGEST_SENDER              inbox, sender, listen, what Reading has; and settings
[relaybox.source]    RELAYBOX_SOURCE, RELAYBOX_SOURCE_…  url, and the options of that source
[relaybox.delivery]  RELAYBOX_DELIVERY_DATABASE_TIMEOUT  and every other section of the settings
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..brokers.options import check_account
from ..brokers.parse import Reading
from ..errors import ConfigError
from ..settings import INGEST, DeliverySettings, Settings, prefixed, read_file, table_of

BASE = Settings(delivery=DeliverySettings(freeze_gc=True))  # the process does nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestConfig:
    url: str = field(repr=False)  # of the source; may hold a password
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    inbox: str = "inbox"
    sender: str | None = None
    listen: str | None = None  # address for /live, /ready and /metrics
    reading: Reading = field(default_factory=Reading)
    settings: Settings = BASE


_READING = tuple(f.name for f in dataclasses.fields(Reading))


def load(arguments: Mapping[str, Any], *, environment: Mapping[str, str], file: Path | None = None) -> IngestConfig:
    """`arguments`: what was given on the command line, by these names, with `url` and `options` of the source, and
    `settings` by path."""
    settings = Settings.load(file, environment=environment, given=arguments.get("settings"), base=BASE)
    content = read_file(file) if file is not None else {}
    values: dict[str, Any] = {}
    url: str | None = None
    options: dict[str, Any] = {}
    for ingest, source in (
        (table_of(content, "ingest"), table_of(content, "source")),
        (
            {"inbox": environment.get("RELAYBOX_INBOX"), **prefixed(environment, "INGEST_")},
            {"url": environment.get("RELAYBOX_SOURCE"), **prefixed(environment, "SOURCE_")},
        ),
        (arguments, {"url": arguments.get("url"), **(arguments.get("options") or {})}),
    ):
        values |= {name: value for name in INGEST if (value := ingest.get(name)) is not None}
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
        if not isinstance(value, str):
            raise ConfigError(f"expected {name} to be text, got {type(value).__name__}")
    reading = Reading(**{name: values.pop(name) for name in _READING if name in values})
    return IngestConfig(url=url, options=options, reading=reading, settings=settings, **values)
