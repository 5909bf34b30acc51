"""From options, environment and file to an outbox: argument > environment > file > default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from ..drivers import Database, open_sync, parse
from ..errors import ConfigError
from ..inbox.inbox import Inbox
from ..outbox import Outbox
from ..redaction import holds_password
from ..settings import Settings, read_file
from ..store.names import Tables
from .output import warn

DEFAULT_TABLE = "outbox_event"


@dataclass(frozen=True, slots=True)
class Given:
    """A value and where it came from."""

    value: str | None = field(repr=False)
    origin: str


@dataclass(frozen=True, slots=True)
class Target:
    """Which outbox a command is about."""

    url: Given
    table: Given
    schema: Given
    config: Path | None

    @property
    def needed_url(self) -> str:
        if not self.url.value:
            raise ConfigError("no database given; set RELAYBOX_URL, or use --url or `url` in the --config file")
        parse(self.url.value)
        return self.url.value

    @property
    def settings(self) -> Settings:
        return Settings.load(self.config)

    @property
    def tables(self) -> Tables:
        return Tables(self.table.value or DEFAULT_TABLE, self.schema.value)

    def database(self, *, may_create: bool = False, maker: str = "relaybox migrate") -> Database:
        url = self.needed_url
        if not may_create and (missing := missing_file(url)) is not None:
            raise ConfigError(f"there is no SQLite database {str(missing)!r}; `{maker}` makes it")
        return open_sync(url)

    @contextmanager
    def outbox(self, *, may_create: bool = False) -> Iterator[Outbox]:
        """An outbox that delivers nothing itself, closed at the end."""
        settings = self.settings
        self.database(may_create=may_create).close()  # the same checks, no connection
        box = Outbox(
            self.needed_url,
            table=self.table.value or DEFAULT_TABLE,
            schema=self.schema.value,
            settings=settings,
        )
        try:
            yield box
        finally:
            box.close()

    def inbox(self, name: str, *, may_create: bool = False) -> Inbox:
        settings = self.settings
        self.database(may_create=may_create, maker="relaybox inbox create").close()
        return Inbox(self.needed_url, name, schema=self.schema.value, settings=settings)


def missing_file(url: str) -> Path | None:
    """The file of a SQLite URL that does not exist yet: only `migrate` may make one."""
    parsed = parse(url)
    if parsed.dialect != "sqlite" or parsed.in_memory or parsed.bare.startswith("file:"):
        return None
    path = Path(parsed.bare)
    return None if path.exists() else path


def resolve(options: Mapping[str, str | None], config: Path | None, environment: Mapping[str, str]) -> Target:
    path = config or (Path(environment["RELAYBOX_CONFIG"]) if environment.get("RELAYBOX_CONFIG") else None)
    file = _file_values(path)

    def given(name: str, default: str | None = None) -> Given:
        variable = f"RELAYBOX_{name.upper()}"
        if (value := options.get(name)) is not None:
            return Given(value, "argument")
        if value := environment.get(variable):
            return Given(value, f"environment {variable}")
        if path is not None and (value := file.get(name)) is not None:
            return Given(value, f"file {path.name}")
        return Given(default, "default")

    return Target(given("url"), given("table", DEFAULT_TABLE), given("schema"), path)


def _file_values(path: Path | None) -> dict[str, str]:
    """url, table and schema of the settings file; `Settings.load` reads and checks the rest."""
    if path is None:
        return {}
    content = read_file(path)
    found: dict[str, str] = {name: content[name] for name in ("url", "table", "schema") if name in content}
    for name, value in found.items():
        if not isinstance(value, str):
            raise ConfigError(f"expected {name} in {path.name} to be text, got {type(value).__name__}")
    return found


def warn_of_argument(option: str, url: str | None, variable: str) -> None:
    """Other accounts of the machine see the arguments of a process."""
    if url and holds_password(url):
        warn(f"the password in {option} stands in the list of processes; use {variable} or a --config file instead")


def target_of(context: typer.Context) -> Target:
    found: Any = context.find_root().obj
    assert isinstance(found, Target)
    return found
