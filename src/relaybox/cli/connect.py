"""From options, environment and file to an outbox: argument > environment > file > default."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from ..codec import JSON_CODEC, Codec
from ..drivers import Database, open_sync, parse
from ..errors import ConfigError, NotFound, SchemaMissing
from ..inbox.inbox import Inbox
from ..outbox import Outbox
from ..redaction import holds_password
from ..settings import Settings, read_file
from ..store.names import Tables
from ..vault import Keyring, Vault
from ..vault.keyring import VARIABLE
from ..vault.vault import TABLE, SubjectOf
from ..words import did_you_mean
from .named import load_object
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
            if not missing.parent.is_dir():
                raise ConfigError(
                    f"there is no folder {str(missing.parent)!r} for the SQLite database {str(missing)!r}"
                )
            raise ConfigError(f"there is no SQLite database {str(missing)!r}; `{maker}` makes it")
        return open_sync(url)

    @contextmanager
    def outbox(self, *, may_create: bool = False) -> Iterator[Outbox]:
        """An outbox that delivers nothing itself, closed at the end."""
        settings = self.settings
        self.database(may_create=may_create).close()  # the same checks, no connection
        with ExitStack() as closing:
            box = Outbox(
                self.needed_url,
                table=self.table.value or DEFAULT_TABLE,
                schema=self.schema.value,
                settings=settings,
                codec=self._codec(closing),
            )
            closing.callback(box.close)
            try:
                yield box
            except NotFound as error:
                if error.kind != "feed" or not (hint := did_you_mean(error.name, [f.name for f in box.feeds.list()])):
                    raise
                raise NotFound("feed", error.name, f"there is no feed {error.name!r}{hint}") from None

    @contextmanager
    def inbox(self, name: str, *, may_create: bool = False) -> Iterator[Inbox]:
        settings = self.settings
        self.database(may_create=may_create, maker="relaybox inbox create").close()
        with ExitStack() as closing:
            url, schema, codec = self.needed_url, self.schema.value, self._codec(closing)
            try:
                yield closing.enter_context(Inbox(url, name, schema=schema, settings=settings, codec=codec))
            except SchemaMissing as error:
                if not (hint := did_you_mean(name, [each.name for each in Inbox.list(url)])):
                    raise
                raise SchemaMissing(f"there is no inbox {name!r}{hint}") from error

    def _codec(self, closing: ExitStack) -> Codec:
        """With a keyring, payloads that a vault has encrypted can be read."""
        keyring = keyring_of(os.environ)
        return JSON_CODEC if keyring is None else closing.enter_context(self.vault(keyring))

    @contextmanager
    def vault(self, keyring: Keyring | None, subject: SubjectOf = "tenant") -> Iterator[Vault]:
        self.database().close()
        options: dict[str, Any] = {"table": keys_table(os.environ), "schema": self.schema.value}
        with Vault(self.needed_url, keyring, subject=subject, settings=self.settings, **options) as vault:
            yield vault


def keys_table(environment: Mapping[str, str]) -> str:
    return environment.get("RELAYBOX_KEYS_TABLE") or TABLE


def keyring_of(environment: Mapping[str, str]) -> Keyring | None:
    """RELAYBOX_KEYRING names a file, or a Keyring as MODULE:OBJECT; RELAYBOX_MASTER_KEYS has the keys themselves."""
    named = environment.get("RELAYBOX_KEYRING")
    if named and ":" in named and not Path(named).exists():
        found = load_object(named)
        if not isinstance(found, Keyring):
            raise ConfigError(f"expected RELAYBOX_KEYRING={named} to be a Keyring, got {type(found).__name__}")
        return found
    if named:
        return Keyring.file(named)
    return Keyring.environment() if environment.get(VARIABLE) else None


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
