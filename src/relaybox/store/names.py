"""The one place where a user's word becomes an SQL identifier."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ConfigError

_SAFE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,47}\Z")

# Suffixes fit 63 bytes together with the longest allowed table name, so no engine truncates a name.
PARTS = (
    "pending",
    "claim",
    "hash",
    "dead",
    "instance",
    "shard",
    "hold",
    "lease",
    "audit",
    "migration",
    "status",
    "seq",
    "write",
    "audit_id_seq",
)


def identifier(kind: str, name: str) -> str:
    if not isinstance(name, str) or not _SAFE.match(name):
        raise ConfigError(
            f"expected {kind} to be a letter or underscore followed by at most 47 letters, digits or "
            f"underscores, got {name!r}"
        )
    return name


@dataclass(frozen=True, slots=True)
class Tables:
    """The names of one outbox: the event table the user chose, and those derived from it."""

    event: str = "outbox_event"
    schema: str | None = None

    def __post_init__(self) -> None:
        identifier("table name", self.event)
        if self.schema is not None:
            identifier("schema name", self.schema)

    def part(self, suffix: str) -> str:
        return f"{self.event}_{suffix}"

    @property
    def channel(self) -> str:
        """What LISTEN and NOTIFY use: one channel per outbox."""
        return f"relaybox_{self.schema}_{self.event}"[:63] if self.schema else f"relaybox_{self.event}"

    @property
    def alert_channel(self) -> str:
        """Where an inbox or topics tell by NOTIFY that there are alerts."""
        return f"{self.channel[:57]}_alert"

    def substitutions(self, quote: str) -> dict[str, str]:
        """`{event}`, `{pending}`, … for the SQL files, quoted and qualified; `{event_name}`, … bare."""
        names = {"event": self.event} | {part: self.part(part) for part in PARTS}
        channels = {"channel": self.channel, "alert_channel": self.alert_channel}
        return self.quoted(names, quote) | {"namespace": self.schema or ""} | channels

    def quoted(self, names: Mapping[str, str], quote: str) -> dict[str, str]:
        prefix = f"{quote}{self.schema}{quote}." if self.schema else ""
        quoted = {key: f"{prefix}{quote}{name}{quote}" for key, name in names.items()}
        return quoted | {f"{key}_name": name for key, name in names.items()}
