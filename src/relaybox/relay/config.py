"""What a standalone relay is told: by arguments, environment and file, in that order of precedence.

[relaybox.relay]     RELAYBOX_RELAY_TO               to, format, ce_source, ordered, contracts, listen; and settings
[relaybox.sink]      RELAYBOX_SINK, RELAYBOX_SINK_…  url, and the options of that sink
[relaybox.delivery]  RELAYBOX_DELIVERY_LEASE         and every other section of the settings
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..brokers.formats import MessageFormat
from ..brokers.options import check_account
from ..errors import ConfigError
from ..settings import RELAY, DeliverySettings, Settings, prefixed, read_file, table_of

BASE = Settings(delivery=DeliverySettings(freeze_gc=True))  # the process does nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayConfig:
    sink: str = field(default="", repr=False)  # may hold a password
    sink_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    to: str | None = None
    format: MessageFormat = "plain"
    ce_source: str = "relaybox"
    ordered: bool = True
    contracts: str | None = None  # MODULE:OBJECT or FILE.toml
    listen: str | None = None  # address for /live, /ready and /metrics
    idempotency_ttl: str | None = None  # what consumers remember; warned about when shorter than what is kept here
    settings: Settings = BASE


def load(
    arguments: Mapping[str, Any],
    *,
    environment: Mapping[str, str],
    file: Path | None = None,
) -> RelayConfig:
    """`arguments`: fields of RelayConfig that were given on the command line, `settings` by path."""
    settings = Settings.load(file, environment=environment, given=arguments.get("settings"), base=BASE)
    values: dict[str, Any] = {}
    options: dict[str, Any] = {}
    content = read_file(file) if file is not None else {}
    for relay, sink in (
        (table_of(content, "relay"), table_of(content, "sink")),
        (
            prefixed(environment, "RELAY_"),
            {"url": environment.get("RELAYBOX_SINK") or None, **prefixed(environment, "SINK_")},
        ),
        (arguments, {"url": arguments.get("sink"), **(arguments.get("sink_options") or {})}),
    ):
        values |= {name: value for name in RELAY if (value := relay.get(name)) is not None}
        sink = {name: value for name, value in sink.items() if value is not None}
        if "url" in sink:
            if "sink" in values:
                options = {}  # another sink: the options of the former one are not for it
            values["sink"] = sink.pop("url")
        options |= sink
    if "ordered" in values:
        values["ordered"] = _boolean(values["ordered"])
    for name, value in values.items():
        if not isinstance(value, bool if name == "ordered" else str):
            raise ConfigError(f"expected {name} to be text, got {type(value).__name__}")
    if not values.get("sink"):
        raise ConfigError("no sink given; set RELAYBOX_SINK, or use --sink or url under [relaybox.sink]")
    check_account(values["sink"], "sink")
    if values.get("to") is None and values.get("contracts") is None and values["sink"].startswith(("http:", "https:")):
        values["to"] = "default"  # the endpoint that a plain URL stands for
    return RelayConfig(**values, sink_options=options, settings=settings)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "1", "yes", "on"):
        return True
    if str(value).lower() in ("false", "0", "no", "off"):
        return False
    raise ConfigError(f"expected ordered to be true or false, got {value!r}")
