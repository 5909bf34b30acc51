"""`RELAYBOX` in Django's settings: which tables there are, and the sections of `Settings`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS

from ...errors import ConfigError
from ...settings import Settings, from_mapping
from ...store.inbox import InboxTables
from ...store.names import Tables
from ...words import did_you_mean
from ..tables import ProductName

PLACE = "RELAYBOX in Django's settings"


@dataclass(frozen=True, kw_only=True)
class Config:
    databases: tuple[str, ...] = (DEFAULT_DB_ALIAS,)
    table: str | None = "outbox_event"
    schema: str | None = None
    inboxes: tuple[str, ...] = ()
    guard: str | None = None
    vault: str | None = None

    def __post_init__(self) -> None:
        for name in ("databases", "inboxes"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(each, str) for each in value):
                raise ConfigError(f'expected "{name}" to be a list of names, got {value!r} ({PLACE})')
            object.__setattr__(self, name, tuple(value))
        for name in ("table", "schema", "guard", "vault"):
            if not isinstance(getattr(self, name), str | None):
                raise ConfigError(f'expected "{name}" to be a name or None, got {getattr(self, name)!r} ({PLACE})')
        if not self.databases:
            raise ConfigError(f'expected "databases" to name at least one ({PLACE})')
        for alias in self.databases:
            one_of("DATABASES", alias, settings.DATABASES)
        list(self.tables())  # whose names are checked

    def tables(self) -> Iterator[tuple[ProductName, Tables]]:
        """What `migrate` makes in each of the databases."""
        one: tuple[tuple[ProductName, str | None], ...] = (
            ("outbox", self.table),
            ("guard", self.guard),
            ("vault", self.vault),
        )
        yield from ((product, Tables(name, self.schema)) for product, name in one if name is not None)
        yield from (("inbox", InboxTables(name, self.schema)) for name in self.inboxes)

    def alias(self, database: str | None) -> str:
        return self.databases[0] if database is None else one_of("databases", database, self.databases)

    def url(self, database: str | None) -> str:
        return f"django://{self.alias(database)}"


_NAMES = frozenset(field.name for field in fields(Config))


def one_of(what: str, name: str, known: Collection[str]) -> str:
    if name not in known:
        raise ConfigError(f"there is no {name!r} in {what} ({PLACE}){did_you_mean(name, known)}")
    return name


def _given() -> Mapping[str, Any]:
    try:
        given: Any = getattr(settings, "RELAYBOX", {})
    except ImproperlyConfigured:  # nobody has set any
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"expected RELAYBOX to be a dict, got {type(given).__name__} ({PLACE})")
    known = _NAMES | {section.name for section in fields(Settings)}
    for name in given:
        if name not in known:
            raise ConfigError(f"unknown setting {name!r} ({PLACE}){did_you_mean(str(name), known)}")
    return given


def configured() -> Config:
    return Config(**{name: value for name, value in _given().items() if name in _NAMES})


def sections() -> Mapping[str, Any]:
    """By the path of each setting."""
    return from_mapping(Settings, _given(), _NAMES)
