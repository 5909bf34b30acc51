"""Payloads are stored encrypted, each tenant's or person's with a data key of its own, and are read by who has the
master key. Without a data key they are gone for good: that is how somebody is forgotten.

    vault = Vault("postgresql://localhost/shop", Keyring.file("/etc/shop/keys"), subject="tenant")
    outbox = Outbox("postgresql://localhost/shop", codec=vault)

    master key (keyring, KMS) ──wraps──► data key (a row in the database) ──encrypts──► payload (event, broker, inbox)

A new data key is inserted in the transaction of the event that needs it: if that is rolled back, neither is there. Two
transactions may each make one for the same subject; both are good, as an event names its own. So nobody waits for
anybody. A key is remembered once it was seen committed, by a connection of the vault's own.

What is bound to a ciphertext, so that it opens nowhere else: its data key, the event's id, type, key and tenant, the
content type.

An inbox has its vault encrypt what arrives as a whole (message.py): payload and headers, also of what a sender has
encrypted already, under the receiver's own keys. So the receiver forgets somebody without asking the sender.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, Unpack

from ..audit import Audit, Auditor
from ..clock import SYSTEM_CLOCK, Clock
from ..codec import JSON_CODEC, Codec
from ..drivers import open_sync, parse
from ..drivers.script import Script, Sync, commit, look, slow, twin
from ..drivers.spi import Runner
from ..durations import Duration, parse_duration
from ..errors import Closed, ConfigError, Erased, InvalidEvent, Undecodable
from ..event import INNER_HEADER, KEY_HEADER, SEALED, SEALED_MESSAGE, Event, clear_headers, sealed, sent_by
from ..facts import Observer, Observers
from ..ids import new_id
from ..op import Op
from ..sealing import Sealing, SealingSteps, sealing
from ..settings import Settings, chosen
from ..store.grants import DatabaseRole, checked_role
from ..store.grants.ops import statements
from ..store.names import Tables
from ..store.schema import Migration
from ..store.vault import KeyRow, open_vault_store
from ..twins import Closing
from ..values import AuditEntry, Progress
from .cache import Remembered
from .cipher import Cipher, NotSealedHere, new_secret
from .keyring import Keyring
from .message import as_sent, boxed

log = logging.getLogger("relaybox")

TABLE = "relaybox_data_key"
AGE = timedelta(days=30)  # 2**32 payloads with random nonces are the most for a key: 1,600 a second for so long
BATCH = 500  # data keys per transaction of a rotation
_ID = re.compile(r"[0-9A-Za-z]{1,26}")  # of a data key; a row may be anybody's and name none
NOBODY = ""  # the subject of events that name none

SubjectOf: TypeAlias = Literal["tenant", "key"] | Callable[[Event], str | None]


class DataKey(NamedTuple):
    """As it is remembered. Without a cipher: it was destroyed."""

    id: str
    cipher: Cipher | None

    def __repr__(self) -> str:
        return f"DataKey({self.id!r})"


class Vault(Sync, Closing):
    """Encrypts payloads when an outbox writes them, and decrypts them where they are read: the `codec` of outboxes and
    inboxes. The `vault` of an inbox also encrypts what it accepts. Synchronous and asyncio programs use the same class,
    from any thread."""

    def __init__(
        self,
        target: Any,
        keyring: Keyring | None = None,
        *,
        subject: SubjectOf = "tenant",
        table: str = TABLE,
        schema: str | None = None,
        codec: Codec = JSON_CODEC,
        remember: Duration = "5m",
        most: int = 10_000,
        settings: Settings | None = None,
        observers: Sequence[Observer] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """
        target     the database of the data keys, which is the outbox's: a URL, or an engine of the vault's own
        keyring    the master keys. Without one nothing is encrypted or decrypted; keys can be destroyed
        subject    whose data key encrypts an event: of its "tenant", of its "key", or what a function of the event
                   says; None of it: the event is not encrypted. Events without tenant or key share a data key. Of an
                   inbox's vault the function sees the message as it came, and its sender
        table      of the data keys
        codec      of what is encrypted
        remember   how long this process uses a data key before it looks whether it is still there
        most       data keys that it remembers
        settings   who changes something, and whether a reason is needed
        observers  told of changes
        """
        if keyring is not None and not isinstance(keyring, Keyring):
            raise ConfigError(f"expected keyring to be a Keyring, got {type(keyring).__name__}")
        if subject not in ("tenant", "key") and not callable(subject):
            raise ConfigError(f"expected subject to be 'tenant', 'key' or a function of the event, got {subject!r}")
        seconds = parse_duration(remember, "remember").total_seconds()
        if seconds <= 0 or most < 1:
            raise ConfigError(f"expected remember and most to be above zero, got {remember!r} and {most!r}")
        if isinstance(target, str) and parse(target).in_memory:
            raise ConfigError("an in-memory SQLite database belongs to one connection; use a file")
        self.settings = chosen(settings, Settings.load)
        self.target = target
        self._keyring = keyring
        self._subject = subject
        self._codec = codec
        self._clock = clock
        self._observers = Observers(observers)
        self._db = open_sync(target).within(self.settings.delivery.statement_seconds)
        self.store = open_vault_store(self._db.dialect, Tables(table, schema))
        self._keys: Remembered[DataKey] = Remembered(most, seconds, clock)  # by their ids
        self._writing: Remembered[DataKey] = Remembered(most, seconds, clock)  # by their subjects
        self._closed = False

    def __repr__(self) -> str:
        return f"Vault({self.store.tables.event!r}, {self._keyring!r})"

    def close(self) -> None:
        """Closes its connections. Safe to repeat."""
        self._closed = True
        self._db.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this vault is closed; make a new one")

    @property
    def _ring(self) -> Keyring:
        self._check_open()
        if self._keyring is None:
            raise ConfigError("this vault has no keyring; give it one, Vault(url, Keyring.file(…))")
        return self._keyring

    # -- a codec ----------------------------------------------------------------------------------

    def encode(self, value: Any) -> bytes:
        """A payload before it is encrypted."""
        return self._codec.encode(value)

    def decode(self, data: bytes) -> Any:
        """A payload that was decrypted, or never encrypted."""
        return self._codec.decode(data)

    @property
    def inner(self) -> Codec:
        """The codec of what is encrypted."""
        return self._codec

    def reading(self, codec: Codec) -> Codec:
        """This vault for readers of another codec."""
        return self if codec is JSON_CODEC or codec is self else _Reading(self, codec)

    @property
    def runner(self) -> Runner:
        """Its own connections, for data keys that are made in a transaction of their own."""
        self._check_open()
        return self._db

    # -- encrypt ----------------------------------------------------------------------------------

    def seal(self, events: Sequence[Event]) -> SealingSteps[list[Event]]:
        """The events with their payloads encrypted. What is sealed already stays as it is. Asks nobody if their data
        keys are remembered."""
        subjects = [None if event.content_type == SEALED else self._subject_of(event) for event in events]
        keys = yield from self._writing_keys({subject for subject in subjects if subject is not None})
        at_hand = {subject: _AtHand(self, key) for subject, key in keys.items()}
        return [
            event if subject is None else at_hand[subject].sealed(event)
            for event, subject in zip(events, subjects, strict=True)
        ]

    def _writing_keys(self, subjects: Collection[str]) -> SealingSteps[dict[str, DataKey]]:
        keys: dict[str, DataKey] = {}
        for subject in subjects:
            if (key := self._writing.get(subject)) is not None:
                keys[subject] = key
        if missing := set(subjects) - keys.keys():
            keys |= yield from self._keys_for(missing)
        return keys

    def seal_messages(
        self,
        events: Sequence[Event],
        senders: Sequence[str],
        *,
        shown: Collection[str],
        codec: Codec,
        letters: dict[str, str] | None = None,
    ) -> SealingSteps[list[Event]]:
        """What an inbox accepts, encrypted as a whole but for the headers `shown`. `codec` reads what senders have
        encrypted. `letters`: why a message is a dead letter from the start, by its id; one of which nobody can tell
        whose it is becomes such a letter. Without them InvalidEvent is raised for it."""
        if not callable(self._subject):
            subjects = [self._subject_of(event) for event in events]
        else:
            sent = [sent_by(event, sender, codec) for event, sender in zip(events, senders, strict=True)]
            ask = partial(self._subjects, sent, letters)
            waits = any(event.content_type == SEALED for event in events)  # it may ask for a sender's key
            subjects = (yield ask) if waits else ask()
        keys = yield from self._writing_keys({subject for subject in subjects if subject is not None})
        reader = self.reading(codec)
        found = []
        for event, sender, subject in zip(events, senders, subjects, strict=True):
            if subject is None:
                found.append(event)
            else:
                key = keys[subject]
                assert key.cipher is not None
                found.append(boxed(event, sender, key.id, key.cipher, shown, reader))
        return found

    def _subjects(self, events: Sequence[Event], letters: dict[str, str] | None) -> list[str | None]:
        found: list[str | None] = []
        for event in events:
            try:
                found.append(self._subject_of(event))
            except Exception as error:
                reason = f"whose message {event.id} is cannot be told: {type(error).__name__}"
                if letters is None:
                    raise InvalidEvent(reason) from error
                letters.setdefault(event.id, reason)
                found.append(NOBODY)
        return found

    def _subject_of(self, event: Event) -> str | None:
        if self._subject == "tenant":
            return event.tenant or NOBODY
        if self._subject == "key":
            return event.key or NOBODY
        found: Any = self._subject(event)
        if found is None:
            return None
        if not isinstance(found, str) or not 0 < len(found) <= 255 or "\0" in found:
            raise InvalidEvent(
                "expected the function `subject` of the vault to return 1 to 255 characters or None for event "
                f"{event.id}, got {type(found).__name__}"
            )
        return found

    def _keys_for(self, subjects: set[str]) -> SealingSteps[dict[str, DataKey]]:
        keys: dict[str, DataKey] = yield lambda: self._committed(subjects)
        if rest := subjects - keys.keys():
            now = self._clock.database_now()
            made = yield from self.store.usable(rest, AGE, now)  # by this transaction, before
            keys |= yield lambda: {subject: self._unwrapped(row) for subject, row in made.items()}
            for subject in sorted(rest - made.keys()):
                key, row = yield partial(self._new, subject)
                yield from self.store.insert(row, now)
                keys[subject] = key
        return keys

    def _committed(self, subjects: set[str]) -> dict[str, DataKey]:
        self._check_open()
        found = self._db.run(self.store.usable(subjects, AGE, self._clock.database_now()), tx=False)
        keys = {}
        for subject, row in found.items():
            keys[subject] = self._keys.get(row.id) or self._unwrapped(row)
            self._keys.put(row.id, keys[subject])
            self._writing.put(subject, keys[subject])
        return keys

    def _new(self, subject: str) -> tuple[DataKey, KeyRow]:
        id, secret, ring = new_id(), new_secret(), self._ring
        wrapped = ring.wrap(secret, {"id": id, "subject": subject})
        row = KeyRow(id, subject, ring.current, wrapped, self._clock.now(), None)
        return DataKey(id, Cipher(secret)), row

    def _unwrapped(self, row: KeyRow) -> DataKey:
        return DataKey(row.id, None if row.erased_at is not None else Cipher(self._secret(row)[0]))

    def _secret(self, row: KeyRow) -> tuple[bytes, str]:
        """With its subject, to which it is bound."""
        if row.master is None or row.wrapped is None or row.subject is None:
            raise ConfigError(f"data key {row.id} lacks its master key, its subject or what was wrapped")
        return self._ring.unwrap(row.master, row.wrapped, {"id": row.id, "subject": row.subject}), row.subject

    # -- decrypt ----------------------------------------------------------------------------------

    def open(self, event: Event) -> tuple[bytes, str]:
        """The payload of a sealed event, and its content type. Erased: its data key was destroyed. Undecodable: the
        vault has never had it, or what was encrypted belongs to another event or was changed."""
        return _opened(event, self._key_of(event))

    def open_message(self, event: Event) -> Event:
        """What an inbox was sent, as it was. Erased, Undecodable: as of `open`."""
        return self._as_sent(event, self)

    def _as_sent(self, event: Event, codec: Codec) -> Event:
        key = self._key_of(event)
        if key.cipher is None:
            raise _erased(event, key)
        return as_sent(event, key.id, key.cipher, codec)

    def _key_of(self, event: Event) -> DataKey:
        key_id: Any = clear_headers(event).get(KEY_HEADER)
        if not isinstance(key_id, str) or not _ID.fullmatch(key_id):
            raise Undecodable(f"event {event.id} is encrypted, and no header says with which data key")
        key = self._keys.get(key_id) or self._asked(key_id)
        if key is None:
            raise Undecodable(
                f"event {event.id} is encrypted with data key {key_id}, which is not in table "
                f"{self.store.tables.event!r} of the vault's database"
            )
        return key

    def _asked(self, key_id: str) -> DataKey | None:
        self._check_open()
        for row in self._db.run(self.store.read([key_id]), tx=False):
            if row.id == key_id:
                key = self._unwrapped(row)
                self._keys.put(key_id, key)
                return key
        return None

    def load(self, events: Sequence[Event]) -> Awaitable[None] | None:
        """Fetches what `open` needs for these, in a thread. None: it is all there."""
        missing = {key_id for event in events if (key_id := _key_id(event)) and self._keys.get(key_id) is None}
        return asyncio.to_thread(self._fetch, missing) if missing else None

    def opened(self, event: Event) -> Event:
        """A message as it was sent, if that can be had at once; or else as it is."""
        return self._at_once(event, self)

    def _at_once(self, event: Event, codec: Codec) -> Event:
        if event.content_type == SEALED_MESSAGE and (key_id := _key_id(event)) and self._keys.get(key_id) is not None:
            try:
                return self._as_sent(event, codec)
            except Undecodable:  # which is told when it is handled
                return event
        return event

    def _fetch(self, ids: Collection[str]) -> None:
        try:
            for row in self._db.run(self.store.read(ids), tx=False):
                try:
                    self._keys.put(row.id, self._unwrapped(row))
                except Exception as error:  # a key management service that is away, a master key that is not here
                    log.debug("data key %s could not be had: %s", row.id, type(error).__name__)
        except Exception as error:
            log.debug("%d data keys could not be read: %s", len(ids), type(error).__name__)

    # -- schema -----------------------------------------------------------------------------------

    @slow
    def migrate(self) -> Script[list[Migration]]:
        """Create or upgrade the table of data keys. Safe to call from many processes at once, and again."""
        return commit(self.store.migrate())

    @twin
    def grants(self, role: DatabaseRole, *, to: str) -> Script[list[str]]:
        """The statements that give a role of the database what it needs of these data keys to be a writer, receiver,
        worker, operator, reader or dashboard. Nothing is changed: the owner of the table runs them."""
        return look(statements("vault", self.store, None, checked_role(role), to))

    @twin
    def verify(self) -> Script[None]:
        """Raise SchemaMissing, SchemaTooNew or SchemaDrift unless the table fits this release."""
        return look(self.store.verify_schema())

    # -- operate ----------------------------------------------------------------------------------

    @property
    def _auditor(self) -> Auditor:
        return Auditor(self.store, self.settings, self._observers, self._clock)

    @twin
    def masters(self) -> Script[dict[str | None, int]]:
        """How many data keys each master key wraps; None: destroyed ones. A master key that is not here may go."""
        return look(self.store.masters())

    @slow
    def rotate(
        self, *, dry_run: bool = False, progress: Callable[[Progress], object] | None = None, **audit: Unpack[Audit]
    ) -> Script[int]:
        """Wrap every data key by the current master key; no payload is touched. Returns how many, or with `dry_run`
        how many it would be. The old master key opens what is left until this is done, and can go then: a copy of the
        database that is older than that needs it."""
        ring = self._ring
        total = yield from look(self.store.waiting(ring.current))
        if dry_run:
            return total
        change = self._auditor.begin("rotate", f"data keys to master key {ring.current}", audit)
        after = ""
        while rows := (yield from look(self.store.wrapped_by_others(ring.current, after, BATCH))):
            again = [(row, self._wrapped_anew(row, ring)) for row in rows]
            yield from change.commit(self._rewrap(again, ring.current))
            after = rows[-1].id
            if progress is not None:
                progress(Progress(change.changed or 0, total, "rotate"))
        change.tell()
        return change.changed or 0

    def _wrapped_anew(self, row: KeyRow, ring: Keyring) -> str:
        secret, subject = self._secret(row)
        return ring.wrap(secret, {"id": row.id, "subject": subject})

    def _rewrap(self, again: Sequence[tuple[KeyRow, str]], master: str) -> Op[int]:
        count = 0
        for row, wrapped in again:
            count += yield from self.store.rewrap(row, master, wrapped)
        return count

    @twin
    def keys_of(self, subject: str) -> Script[list[str]]:
        """The ids of a subject's data keys: of those it has, and of destroyed ones until `forget`."""
        return look(self._ids_of(_checked(subject)))

    def _ids_of(self, subject: str) -> Op[list[str]]:
        return [row.id for row in (yield from self.store.of_subject(subject))]

    @twin
    def destroy(self, subject: str, **audit: Unpack[Audit]) -> Script[int]:
        """Destroy the data keys of a subject: what they have encrypted can never be read again, wherever it is. Returns
        how many there were. `erase()` also removes the copies that wait in this database.

        Processes that remember a key use it for as long as `remember` says. The audit log has no subject's name."""
        ids = yield from look(self._ids_of(_checked(subject)))
        change = self._auditor.begin("destroy", "data keys", audit)
        if not ids:
            return 0
        count = yield from change.commit(self.store.destroy(ids, self._clock.database_now()))
        self._writing.drop(subject)
        for id in ids:
            self._keys.drop(id)
        change.tell()
        return count

    @twin
    def forget(self, subject: str) -> Script[int]:
        """Take the subject's name off its destroyed data keys: the last that is known of it here."""
        return commit(self._forget(_checked(subject)))

    def _forget(self, subject: str) -> Op[int]:
        rows = yield from self.store.of_subject(subject)
        destroyed = [row.id for row in rows if row.erased_at is not None]
        return (yield from self.store.forget(destroyed)) if destroyed else 0

    @twin
    def audit(self, *, limit: int = 100, before: int | None = None) -> Script[list[AuditEntry]]:
        """What operators changed here, the newest first. Page on with `before=entries[-1].id`."""
        return look(self._auditor.entries(limit, before))


class _Reading:
    """A vault that reads what it decrypts by another codec: perhaps by the vault of those who have sent it."""

    def __init__(self, vault: Vault, codec: Codec) -> None:
        self._vault = vault
        self._theirs = sealing(codec)
        self.seal, self.seal_messages, self.reading = vault.seal, vault.seal_messages, vault.reading
        self.encode, self.decode, self.inner = codec.encode, codec.decode, codec

    @property
    def runner(self) -> Runner:
        return self._vault.runner

    def open(self, event: Event) -> tuple[bytes, str]:
        return (self._theirs or self._vault).open(event)

    def open_message(self, event: Event) -> Event:
        return self._vault._as_sent(event, self)

    def opened(self, event: Event) -> Event:
        return self._vault._at_once(event, self)

    def load(self, events: Sequence[Event]) -> Awaitable[None] | None:
        if self._theirs is None:
            return self._vault.load(events)
        return self._load_both(events, self._theirs) if any(map(_key_id, events)) else None

    async def _load_both(self, events: Sequence[Event], theirs: Sealing) -> None:
        """Theirs are in what ours have encrypted."""
        if (ours := self._vault.load([event for event in events if event.content_type == SEALED_MESSAGE])) is not None:
            await ours
        inside = [self.opened(event) for event in events]
        if (more := theirs.load([event for event in inside if event.content_type == SEALED])) is not None:
            await more


class _AtHand(_Reading):
    """A vault for events that were just encrypted: their key is at hand, also before it is committed."""

    def __init__(self, vault: Vault, key: DataKey) -> None:
        super().__init__(vault, vault.inner)
        self._key = key

    def sealed(self, event: Event) -> Event:
        key = self._key
        assert key.cipher is not None
        body = key.cipher.seal(event.body, _bound(event, key.id, event.content_type))
        return sealed(event, body, key.id, self)

    def open(self, event: Event) -> tuple[bytes, str]:
        return _opened(event, self._key)


def _opened(event: Event, key: DataKey) -> tuple[bytes, str]:
    if key.cipher is None:
        raise _erased(event, key)
    content_type: Any = event.headers.get(INNER_HEADER)
    if not content_type or not isinstance(content_type, str):
        raise Undecodable(f"event {event.id} is encrypted, and no header says what it was")
    try:
        return key.cipher.open(event.body, _bound(event, key.id, content_type)), content_type
    except NotSealedHere:
        raise Undecodable(
            f"event {event.id} is not what data key {key.id} has encrypted: its payload, id, type, key, tenant or "
            "content type is not the one it was written with"
        ) from None


def _erased(event: Event, key: DataKey) -> Erased:
    return Erased(f"the payload of event {event.id} is erased: its data key {key.id} was destroyed")


def _key_id(event: Event) -> str | None:
    """The data key of what is encrypted and can be read so far."""
    if event.content_type not in (SEALED, SEALED_MESSAGE) or event.unreadable is not None:
        return None
    try:
        found: Any = clear_headers(event).get(KEY_HEADER)
    except Undecodable:
        return None
    return found if isinstance(found, str) and _ID.fullmatch(found) else None


def _bound(event: Event, key_id: str, content_type: str) -> bytes:
    whose = (event.key or "", event.tenant or "")
    return "\0".join(("relaybox payload", key_id, event.id, event.type, content_type, *whose)).encode()


def _checked(subject: str) -> str:
    if not isinstance(subject, str) or not subject:
        raise ConfigError(f"expected the name of a subject, as the vault's events have it, got {subject!r}")
    return subject
