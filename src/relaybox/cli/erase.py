"""`relaybox erase`: make the events of a person or tenant unreadable for good."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from ..audit import Audit
from ..maintenance import Erasure
from ..maintenance import erase as erase_subject
from ..redaction import masked
from . import options as o
from .connect import target_of
from .output import confirm, emit, moving, say


@o.with_audit
def erase(
    context: typer.Context,
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="whose: a tenant, a key, as the vault has it")],
    audit: Audit,
    dry_run: o.DryRun = False,
    yes: o.Yes = False,
    json: o.Json = False,
) -> None:
    """Destroy the data keys of a subject, and give up the copies of its events that are open or dead."""
    target = target_of(context)
    with target.vault(None) as vault:
        vault.verify()
        table, schema = target.tables.event, target.tables.schema
        found = erase_subject(vault, subject, table=table, schema=schema, dry_run=True)
        if not dry_run:
            copies = sum(found.copies.values())
            if not yes:
                confirm(
                    f"Destroy {found.keys} data key(s) of {subject!r} in {masked(target.needed_url)}, and give up "
                    f"{copies} event(s)? Nobody can read what they encrypted any more."
                )
            with moving("erase", copies) as tell:
                found = erase_subject(vault, subject, table=table, schema=schema, progress=tell, **audit)
    if json:
        emit({**asdict(found), "dry_run": dry_run}, schema="erase/1")
    else:
        _tell(found, dry_run)


def _tell(found: Erasure, dry_run: bool) -> None:
    would = "would be " if dry_run else ""
    say(f"{found.keys} data key(s) {would}destroyed")
    for name, count in found.copies.items():
        say(f"{count} event(s) of {name} {would}given up")
    say("What this cannot reach:")
    for line in found.remains:
        say(f"- {line}")
