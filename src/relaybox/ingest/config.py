"""What a standalone ingest is told.

[relaybox.ingest]    RELAYBOX_INGEST_SENDER              inbox, sender, subject, listen, what Reading has; and settings
[relaybox.source]    RELAYBOX_SOURCE, RELAYBOX_SOURCE_…  url, and the options of that source
[relaybox.delivery]  RELAYBOX_DELIVERY_DATABASE_TIMEOUT  and every other section of the settings
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..brokers.config import BASE, read_config
from ..brokers.parse import Reading
from ..settings import INGEST, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestConfig:
    url: str = field(repr=False)  # of the source; may hold a password
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    inbox: str = "inbox"
    sender: str = ""
    subject: str | None = None  # whose data keys encrypt what is stored
    listen: str | None = None  # address for /live, /ready and /metrics
    reading: Reading = field(default_factory=Reading)
    settings: Settings = BASE


def load(arguments: Mapping[str, Any], *, environment: Mapping[str, str], file: Path | None = None) -> IngestConfig:
    """`arguments`: what was given on the command line, by these names, and what Reading has."""
    values, url, options, settings = read_config("ingest", INGEST, "source", arguments, environment, file)
    names = [entry.name for entry in dataclasses.fields(Reading)]
    reading = Reading(**{name: values.pop(name) for name in names if name in values})
    return IngestConfig(url=url, options=options, reading=reading, settings=settings, **values)
