"""`relaybox doctor`: what endangers delivery. Exit 1 when something does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated

import typer
from rich.text import Text

from ..drivers import Database
from ..errors import SchemaDrift, StoreError
from ..maintenance import repair as repaired
from ..outbox.doctor import Finding, examine
from ..redaction import masked, scrub
from ..store.grants import DatabaseRole
from ..store.names import Tables
from ..store.topics import open_topic_store
from ..store.vault import open_vault_store
from .connect import Target, keys_table, target_of
from .grants import examined, secured
from .options import Json
from .output import console, emit, progress, say, table

_STYLE = {"ok": "green", "warning": "yellow", "critical": "bold red"}
BLIND = ("writer", "receiver", "maintainer", "tenant")  # jobs that do not let one see how the others do theirs
_ORDER = ("critical", "warning", "ok")


def doctor(
    context: typer.Context,
    repair: Annotated[
        bool, typer.Option("--repair", help="after a restore into another cluster: make the logs of topics readable")
    ] = False,
    role: Annotated[
        DatabaseRole | None,
        typer.Option("--role", help="a job: what this session's role lacks for it, or has too much"),
    ] = None,
    json: Json = False,
) -> None:
    """Look at server, outbox and inboxes. Exit 1 when something critical is found, 0 with warnings."""
    target = target_of(context)
    url = target.needed_url
    if repair:
        _repair(target)
    with target.outbox() as box, closing(target.database()) as database:
        found: list[Finding] = []
        if role not in BLIND:
            look = examine(database, box.store, feeds=box.settings.feeds)
            found += [Finding(f.level, f.check, scrub(f.text, url), f.fix) for f in look]
            found += secured(target, database)
            found += _data_keys(target, database)
        if role is not None:
            found += examined(target, database, role)
    show_findings(url, found, json)


def _data_keys(target: Target, database: Database) -> list[Finding]:
    """The table of a vault, where there is one."""
    store = open_vault_store(database.dialect, Tables(keys_table(os.environ), target.tables.schema))
    check, name = "data keys", store.tables.event
    try:
        if not database.run(store.applied(), tx=False):
            return []
        database.run(store.verify_schema(), tx=False)
        masters = database.run(store.masters(), tx=False)
    except SchemaDrift as error:
        return [Finding("critical", check, str(error), "compare the table with the migrations of this release")]
    except StoreError as error:
        return [Finding("warning", check, f"not checked: {error}", "check the role's privileges")]
    destroyed = masters.pop(None, 0)
    wrapped = ", ".join(f"{count:,} by {master}" for master, count in sorted(masters.items(), key=str)) or "none"
    text = f"{name!r} has keys wrapped: {wrapped}; destroyed: {destroyed:,}"
    many = Finding("warning", check, text, "`relaybox vault rotate` wraps all by the first master key of a keyring")
    return [many if len(masters) > 1 else Finding("ok", check, text)]


def _repair(target: Target) -> None:
    with closing(target.database()) as database, progress(total=False) as bar:
        task = bar.add_task("stamping", total=None)
        store = open_topic_store(database.dialect, target.tables)
        stamped = repaired(database, store, progress=lambda n: bar.update(task, completed=n))
    text = f"stamped {stamped:,} event(s); groups go on where they were, some events come twice"
    console(stderr=True).print(text if stamped else "nothing to repair")  # stdout is for the findings


def show_findings(url: str, found: Sequence[Finding], json: bool) -> None:
    """The worst first. Ends with exit code 1 when something critical is among them."""
    counts = Counter(finding.level for finding in found)
    if json:
        emit({"ok": not counts["critical"], "url": masked(url), "findings": found})
    else:
        rows = [
            (Text(f.level, style=_STYLE[f.level]), f.check, f"{f.text}. Fix: {f.fix}" if f.fix else f.text)
            for level in _ORDER
            for f in found
            if f.level == level
        ]
        console().print(table(masked(url), ("", "check", "finding"), rows))
        say(f"{counts['critical']} critical, {counts['warning']} warning(s), {counts['ok']} ok")
    if counts["critical"]:
        raise typer.Exit(1)
