"""Forgetting somebody: their data keys are destroyed, and the copies of their events that still wait here are given up.

    destroy keys ──► discard what is open or dead, in the outbox, its groups and every inbox ──► forget the name

The keys go first: from then on every copy is unreadable, wherever it is. The name goes last, so that an erasure that
was cut off is finished by the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Unpack

from ..audit import Audit
from ..errors import NotFound, SchemaMissing
from ..inbox.inbox import Inbox
from ..operate import Events, OnProgress
from ..outbox import Outbox
from ..store.topics import QUEUE
from ..values import Progress, Where
from ..vault import Vault

REMAINS = (
    "brokers and other databases keep the ciphertext for as long as they keep messages; no key opens it",
    "what a relay has sent decrypted, and what listeners have stored elsewhere, is readable where it is",
    "finished events keep their ciphertext, keys, types and headers here until they are purged",
    "what was stored before there was a vault, or by a program without it, is in clear text here until it is purged",
    "backups of this database have the wrapped data keys: until they expire, or until the master key that wraps them "
    "there is destroyed",
    "running processes may remember a data key: for five minutes, unless their vaults say otherwise",
)


@dataclass(frozen=True, slots=True)
class Erasure:
    """What an erasure has done, or would do."""

    keys: int  # data keys of the subject
    copies: Mapping[str, int]  # events that waited or were dead and are given up, by where they were
    remains: tuple[str, ...] = REMAINS  # what it cannot reach


def erase(
    vault: Vault,
    subject: str,
    *,
    table: str = "outbox_event",
    schema: str | None = None,
    dry_run: bool = False,
    progress: OnProgress | None = None,
    **audit: Unpack[Audit],
) -> Erasure:
    """Destroy the data keys of a subject, and give up its events that are open or dead in the outbox, its groups and
    the inboxes of the vault's database. What the log of a topic still has for a group becomes a dead letter, `Erased`,
    when it is delivered. NotFound: there is no data key of this subject. Safe to repeat.

    table, schema  of the outbox
    dry_run        only say how much it would be
    progress       told how many events are given up, and where
    """
    ids = vault.keys_of(subject)
    if not ids:
        raise NotFound("subject", subject, f"there is no data key of {subject!r}: nothing was encrypted for it here")
    if not dry_run:
        vault.destroy(subject, **audit)
    copies: dict[str, int] = {}
    for name, events in _kept(vault, table, schema):
        count = 0
        for id in ids:
            where = Where(data_key=id)
            if dry_run:
                count += events.discard(where, dry_run=True)
            else:
                tell = _further(progress, name, sum(copies.values()) + count)
                count += events.discard(where, progress=tell, **audit)
        if count:
            copies[name] = count
    if not dry_run:
        vault.forget(subject)
    return Erasure(len(ids), copies)


def _further(progress: OnProgress | None, name: str, before: int) -> OnProgress | None:
    """How far one place has come is so much further for all of them."""
    if progress is None:
        return None
    return lambda at: progress(Progress(before + at.done, None, f"erase {name}"))


def _kept(vault: Vault, table: str, schema: str | None) -> Iterator[tuple[str, Events]]:
    """Everything in the database that keeps events, and what it is called."""
    with closing(Outbox(vault.target, table=table, schema=schema, settings=vault.settings)) as outbox:
        try:
            outbox.verify()
        except SchemaMissing:  # a database of inboxes
            pass
        else:
            yield "outbox", outbox.events
            if outbox.topic_store is not None:
                yield from _of_groups(outbox)
    for info in Inbox.list(vault.target):
        with closing(Inbox(vault.target, info.name, schema=info.schema, settings=vault.settings)) as inbox:
            yield f"inbox/{info.name}", inbox.events


def _of_groups(outbox: Outbox) -> Iterator[tuple[str, Events]]:
    for topic in outbox.topics.list():
        name = topic.topic.name
        if topic.topic.tracking == "rows":
            yield f"group/{name}/{QUEUE}", outbox.topics.group(name, QUEUE).events
            continue
        for group in outbox.topics.groups(name):
            yield f"group/{name}/{group.group}", outbox.topics.group(name, group.group).events
