"""What a standalone relay is told.

[relaybox.relay]     RELAYBOX_RELAY_TO               to, format, ce_source, ordered, fair, contracts, decrypt,
                                                     rows, tombstones, listen; and settings
[relaybox.sink]      RELAYBOX_SINK, RELAYBOX_SINK_…  url, and the options of that sink
[relaybox.delivery]  RELAYBOX_DELIVERY_LEASE         and every other section of the settings
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..brokers.config import BASE, read_config
from ..brokers.formats import MessageFormat
from ..brokers.options import boolean
from ..settings import RELAY, Fair, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    url: str = field(default="", repr=False)  # of the sink; may hold a password
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    to: str | None = None
    format: MessageFormat = "plain"
    ce_source: str = "relaybox"
    ordered: bool = True
    fair: Fair | None = None
    contracts: str | None = None  # MODULE:OBJECT or FILE.toml
    decrypt: bool = False  # send what a vault has encrypted as it was before
    rows: bool = False  # of a feed: a message for each row instead of deltas
    tombstones: bool | None = None  # with rows; None: if the sink has them
    listen: str | None = None  # address for /live, /ready and /metrics
    idempotency_ttl: str | None = None  # what consumers remember; warned about when shorter than what is kept here
    settings: Settings = BASE


def load(arguments: Mapping[str, Any], *, environment: Mapping[str, str], file: Path | None = None) -> RelayConfig:
    """`arguments`: fields of RelayConfig that were given on the command line, `settings` by path."""
    values, url, options, settings = read_config("relay", RELAY, "sink", arguments, environment, file)
    values["ordered"] = boolean("ordered", values.get("ordered", True))
    for name in ("decrypt", "rows", "tombstones"):
        if name in values:
            values[name] = boolean(name, values[name])
    if not values.keys() & {"to", "contracts"} and url.startswith(("http:", "https:")):
        values["to"] = "default"  # the endpoint that a plain URL stands for
    return RelayConfig(**values, url=url, options=options, settings=settings)
