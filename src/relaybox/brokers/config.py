"""What a standalone relay or ingest is told: by arguments, environment and file, in that order of precedence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..errors import ConfigError
from ..redaction import masked
from ..settings import DeliverySettings, Settings, prefixed, read_file, table_of
from .options import check_account

SWITCHES = {"ordered", "decrypt", "rows", "tombstones"}
BASE = Settings(delivery=DeliverySettings(freeze_gc=True))  # the process does nothing else


class ProcessConfig(NamedTuple):
    values: dict[str, Any]  # by name
    url: str  # of the sink or the source; may hold a password
    options: dict[str, Any]  # of the sink or the source
    settings: Settings

    def __repr__(self) -> str:
        return f"ProcessConfig({masked(self.url)!r})"


def read_config(
    process: Literal["relay", "ingest"],
    names: Sequence[str],
    end: Literal["sink", "source"],
    arguments: Mapping[str, Any],
    environment: Mapping[str, str],
    file: Path | None,
) -> ProcessConfig:
    """`arguments`: of the command line: `names`, `url` and `options` of the sink or source, `settings` by path."""
    settings = Settings.load(file, environment=environment, given=arguments.get("settings"), base=BASE)
    content = read_file(file) if file is not None else {}
    values: dict[str, Any] = {}
    url: Any = None
    options: dict[str, Any] = {}
    for said, of_end in (
        (table_of(content, process), table_of(content, end)),
        (
            {"inbox": environment.get("RELAYBOX_INBOX"), **prefixed(environment, f"{process.upper()}_")},
            {"url": environment.get(f"RELAYBOX_{end.upper()}"), **prefixed(environment, f"{end.upper()}_")},
        ),
        (arguments, {"url": arguments.get("url"), **(arguments.get("options") or {})}),
    ):
        values |= {name: value for name in names if (value := said.get(name)) is not None}
        given = {name: value for name, value in of_end.items() if value is not None and value != ""}
        if "url" in given:
            options = {}  # another sink or source: the options of the former one are not for it
            url = given.pop("url")
        options |= given
    for name, value in [*values.items(), ("url", url or "")]:
        if not isinstance(value, str) and not (isinstance(value, bool) and name in SWITCHES):
            raise ConfigError(f"expected {name} to be text, got {type(value).__name__}")
    if not url:
        option = "--sink" if end == "sink" else "--from"
        raise ConfigError(f"no {end} given; set RELAYBOX_{end.upper()}, or use {option} or url under [relaybox.{end}]")
    check_account(url, end)
    return ProcessConfig(values, url, options, settings)
