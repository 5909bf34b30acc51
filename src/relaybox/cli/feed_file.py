"""Definitions of feeds for `relaybox feeds create --from`: a TOML file, or an object of a module.

[feeds.totals]
query = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"     or query_file = "totals.sql"
key = "customer"

[feeds.totals.sources]
orders = "customer"
customer = {columns = "id", resolve = "SELECT …"}

Every option of `Feed` and `FeedSource` may stand there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..feed import Feed, FeedSource
from .named import load_object

_FEED = {one.name for one in fields(Feed)} - {"name"} | {"query_file"}
_SOURCE = {one.name for one in fields(FeedSource)}


def load_feeds(reference: str, name: str | None) -> list[Feed]:
    """All that are defined there, or the one of this name."""
    feeds = _of_file(Path(reference)) if reference.endswith(".toml") else _of_module(reference)
    found = [feed for feed in feeds if name in (None, feed.name)]
    if not found:
        raise ConfigError(f"{reference} defines no feed{'' if name is None else f' {name!r}'}")
    return found


def _of_module(reference: str) -> list[Feed]:
    found = load_object(reference)
    feeds = [found] if isinstance(found, Feed) else list(found) if isinstance(found, Iterable) else []
    if not feeds or not all(isinstance(feed, Feed) for feed in feeds):
        raise ConfigError(f"expected {reference} to be a Feed or several, got {type(found).__name__}")
    return feeds


def _of_file(path: Path) -> list[Feed]:
    try:
        tables = tomllib.loads(read(path)).get("feeds")
    except ValueError as error:
        raise ConfigError(f"{path.name} is not TOML: {error}") from error
    if not isinstance(tables, dict):
        raise ConfigError(f"{path.name} has no table [feeds.NAME]")
    return [_feed(name, _checked(table, _FEED, f"[feeds.{name}]", path), path) for name, table in tables.items()]


def _feed(name: str, options: dict[str, Any], path: Path) -> Feed:
    if ("query" in options) == ("query_file" in options) or "key" not in options:
        raise ConfigError(f"[feeds.{name}] in {path.name} needs key, and query or query_file")
    query = options.pop("query", None) or read(path.parent / str(options.pop("query_file")))
    if "sources" in options:
        where = f"[feeds.{name}.sources]"
        tables = _checked(options["sources"], None, where, path)
        options["sources"] = {
            table: FeedSource(**_checked(of, _SOURCE, f"{table} of {where}", path)) if isinstance(of, Mapping) else of
            for table, of in tables.items()
        }
    return Feed(name, query, **options)


def _checked(table: Any, known: set[str] | None, where: str, path: Path) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ConfigError(f"expected {where} in {path.name} to be a table, got {type(table).__name__}")
    if known is not None and (strange := set(table) - known):
        raise ConfigError(
            f"unknown entry {min(strange)!r} of {where} in {path.name}; expected {', '.join(sorted(known))}"
        )
    return dict(table)


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path.name}: {getattr(error, 'strerror', None) or error}") from error
