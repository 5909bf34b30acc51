"""Every error relaybox raises, in one tree.

    RelayboxError
    ├── ConfigError            a setting, URL, name or argument is wrong: correct the program   (also a ValueError)
    │   ├── MissingExtra       an optional package is not installed       (also an ImportError)
    │   └── UnsupportedByEngine  this database cannot do that; the message names one that can
    ├── InvalidEvent           an event cannot be stored as given: correct the event   (also a ValueError)
    │   ├── PayloadTooLarge
    │   └── ContractViolation  an event does not keep its contract        (also a Reject)
    ├── NoTransaction          write() outside a transaction
    ├── TenantFull             more waits for a tenant than may: nothing was written
    ├── CommitUnknown          the commit's reply was lost: neither success nor failure
    │   └── StillCommitting    and the server has not ended that transaction yet: ask again
    ├── InvalidSignature       a webhook is not genuine                   (also a ValueError)
    ├── NotFound               there is no such topic, group, inbox, table, column or event
    ├── AlreadyExists          there is one of that name
    ├── InUse                  somebody uses it: it cannot be dropped or changed now
    ├── StoreError             the database refused; `retryable`: again from the start, and it may work
    │   ├── ConnectionLost     retryable, on a new connection
    │   ├── StoreBusy          retryable: lock wait, deadlock, serialization failure
    │   ├── StoreFull          disk or quota exhausted
    │   ├── UnreadableRow      a stored value cannot be read: only its own row is set aside
    │   ├── DuplicateEvent     an event with this id is stored already    (also an AlreadyExists)
    │   ├── FeedError          a feed cannot be made, refreshed or followed like this; `reason` says why
    │   └── SchemaError        the tables do not fit this release
    │       ├── SchemaMissing  run migrate()
    │       ├── SchemaTooNew   this package is older than the tables
    │       └── SchemaDrift    a table is not what the migrations made
    ├── LeaseLost              what was worked on is another's by now: a pulled batch, a guarded message, a job
    ├── InProgress             another delivery of a guarded message is being handled: do not acknowledge this one
    ├── GuardUnavailable       Redis did not answer: do not acknowledge the message
    ├── GroupError             a group of a topic cannot do that now
    │   ├── NoSubscribers      a topic that blocks writes has no active group
    │   ├── TooManyGroups      a topic tracked by bitmap has 64
    │   └── IllegalMove        a group cannot go from this state to that
    ├── Closed                 used after close() or stop()
    └── DeliveryError          why an event was not delivered
        ├── Reject             raise it from a listener: do not retry, dead letter now
        │   └── TransactionEnded   a handler of an inbox ended the inbox's own transaction
        ├── RetryLater         raise it from a listener: try again after a delay it names
        ├── BatchFailed        raise it from a batch listener: these failed, the others are done
        ├── Unroutable         nobody listens: dead at once
        ├── Undecodable        the stored event cannot be read: dead at once
        │   └── Erased         its data key was destroyed: nobody reads it any more
        └── BrokerUnavailable  a broker is away: try again when it is back, no attempt is counted

Messages say what happened, with which value, and what to do. They never contain a payload or a password.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .durations import Duration
    from .event import Event


def _parsed(delay: Duration, name: str) -> timedelta:
    from .durations import parse_duration  # which raises an error of ours

    return parse_duration(delay, name)


class RelayboxError(Exception):
    """Root of the tree: `except RelayboxError` catches all of ours and nothing else."""


class ConfigError(RelayboxError, ValueError):
    """A setting, URL, name or argument is wrong: correct the program. Raised before anything is written."""


class MissingExtra(ConfigError, ImportError):
    """An optional package is not installed; the message says how to install it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"this needs the package {package!r}: pip install 'relaybox[{extra}]'")
        self.extra = extra


class UnsupportedByEngine(ConfigError):
    """This database cannot do that; the message names one that can."""


class InvalidEvent(RelayboxError, ValueError):
    """An event cannot be stored as given: correct the event. The transaction is unharmed."""


class PayloadTooLarge(InvalidEvent):
    """The payload has `size` bytes, more than the `limit`: store the large part elsewhere and send a reference."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"payload is {size:,} bytes, the limit is {limit:,}; store the large part elsewhere and send a reference"
        )
        self.size = size
        self.limit = limit


class NoTransaction(RelayboxError):
    """`write` was called outside a transaction: begin one, so that the event commits or rolls back with your rows."""


class TenantFull(RelayboxError):
    """More waits for `tenant` than the `cap`, `tenants.max_waiting`, in the outbox or in the queue `topic`. Nothing was
    written, and the transaction is unharmed: let the tenant wait."""

    def __init__(self, tenant: str, cap: int, waiting: int, added: int, topic: str | None = None) -> None:
        queue = "" if topic is None else f" of queue {topic!r}"
        shown = f"{waiting:,}" if waiting <= cap else f"more than {cap:,}"
        super().__init__(
            f"{shown} event(s){queue} wait for tenant {tenant!r} and {added:,} would be added; tenants.max_waiting "
            f"is {cap:,}. Nothing was written: slow this tenant down and try again later, see why its events are not "
            "delivered, or raise the setting"
        )
        self.tenant = tenant
        self.cap = cap
        self.waiting = waiting
        self.topic = topic


class CommitUnknown(RelayboxError):
    """The connection broke while COMMIT was under way. Ask `resolve(ids)` before writing again."""

    def __init__(self, event_ids: Sequence[str]) -> None:
        super().__init__(
            f"the reply to COMMIT was lost; {len(event_ids)} event(s) may or may not be stored. "
            "Call resolve(error.event_ids) on the outbox before repeating the transaction"
        )
        self.event_ids = tuple(event_ids)


class StillCommitting(CommitUnknown):
    """`resolve` waited, and a transaction that may have written these events is still under way in the server."""

    def __init__(self, event_ids: Sequence[str]) -> None:
        super().__init__(event_ids)
        self.args = (
            f"the server is still at a transaction that may store {len(event_ids)} of these event(s): a COMMIT that "
            "waits for a standby or a trigger, or one that it does not know to be abandoned. Call "
            "resolve(error.event_ids) again later; do not repeat the transaction before it has answered",
        )


class InvalidSignature(RelayboxError, ValueError):
    """A received webhook's signature, timestamp or id is not acceptable: answer 401 and do nothing."""


class _Named(RelayboxError):
    """`kind` is what it is about (topic, group, inbox, …), `name` which one."""

    def __init__(self, kind: str, name: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.name = name


class NotFound(_Named):
    """There is no such topic, group, inbox, table, column or event. `kind` says what it is about, `name` which one."""


class AlreadyExists(_Named):
    """There is one of that `kind` and `name` already."""


class InUse(_Named):
    """The one of that `kind` and `name` is in use: it cannot be dropped or changed now."""


class StoreError(RelayboxError):
    """The database refused. If `retryable`, run the whole transaction again from the start: it may work."""

    retryable = False  # True: the same transaction, begun again, may succeed


class ConnectionLost(StoreError):
    """The connection to the database broke: run the transaction again, on a new connection."""

    retryable = True


class StoreBusy(StoreError):
    """A lock wait, deadlock or serialization failure: run the transaction again."""

    retryable = True


class StoreFull(StoreError):
    """Disk or quota are used up: make room. What was committed is safe."""


class UnreadableRow(StoreError):
    """The client library cannot read a value that is stored. The message names its column, never the value."""


class DuplicateEvent(AlreadyExists, StoreError):
    """An event with this id is stored already: usually a repetition, and harmless."""

    def __init__(self, where: str = "") -> None:
        super().__init__("event", where, f"an event with this id is stored already{where and f' ({where})'}")


class FeedError(StoreError):
    """A feed cannot be made, refreshed or followed like this; nothing has changed. `reason` is one of

    query, no_key, key_not_unique, unmapped, not_local, volatile, columns_changed, place_changed, rights, topic, table,
    name_taken, immediate, in_use, isolation, paused, dropped, no_delta, no_hand_off, subscribed

    and of a replica: gap, source, message, columns, types, table, value
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


MIGRATE = "run `relaybox migrate` (for an inbox: `relaybox inbox create`) or call migrate()"


class SchemaError(StoreError):
    """The tables do not fit this release of relaybox."""


class SchemaMissing(SchemaError):
    """The tables are not there: run migrate()."""


class SchemaTooNew(SchemaError):
    """The tables were made by a newer release: upgrade the package."""


class SchemaDrift(SchemaError):
    """A table is not what the migrations made; `relaybox doctor` says what differs."""


class LeaseLost(RelayboxError):
    """What was done under the lease may be done again by the one that has it now. `lost`: how many parts are gone."""

    def __init__(self, message: str, lost: int = 1) -> None:
        super().__init__(message)
        self.lost = lost


class InProgress(RelayboxError):
    """Another delivery of a guarded message is being handled: do not acknowledge this one."""

    def __init__(self, consumer: str, key: str) -> None:
        super().__init__(
            f"{key!r} is being handled by another delivery to consumer {consumer!r}; "
            "do not acknowledge it, so that it comes back if that one fails"
        )
        self.consumer = consumer
        self.key = key


class GuardUnavailable(RelayboxError):
    """Redis did not answer, so it is not known whether the message was handled: do not acknowledge it."""


class GroupError(RelayboxError):
    """A group of a topic cannot do that now."""


class NoSubscribers(GroupError):
    """Nothing of the topic was written and the transaction is still good: write again when a group has subscribed."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"topic {topic!r} has no active group and blocks writes until it has one; subscribe a group, "
            "or configure the topic with block_writes=False"
        )
        self.topic = topic


class TooManyGroups(GroupError):
    """A topic tracked by bitmap has 64 groups, the most it can have."""


class IllegalMove(GroupError):
    """A group cannot go from its `state` to the one that is `wanted`."""

    def __init__(self, topic: str, group: str, state: str, wanted: str, legal: Sequence[str]) -> None:
        possible = " or ".join(legal) or "nothing else; subscribe again to begin a new generation"
        super().__init__(f"group {group!r} of topic {topic!r} is {state} and cannot become {wanted}, only {possible}")
        self.state = state
        self.wanted = wanted


class Closed(RelayboxError):
    """Used after close() or stop(): make a new one."""


class DeliveryError(RelayboxError):
    """Why an event was not delivered."""


class Unroutable(DeliveryError):
    """No listener takes the event: it is a dead letter at once."""


class Undecodable(DeliveryError):
    """The stored event cannot be read: it is a dead letter at once."""


class Erased(Undecodable):
    """The data key of its payload was destroyed, by `relaybox erase` or `erase()`: nobody can read it any more."""


class Reject(DeliveryError):
    """Raise from a listener when trying again cannot help: the event becomes a dead letter now."""


class ContractViolation(InvalidEvent, Reject):
    """An event does not keep its contract: refused by `write`, or a dead letter at once. `reason` is one of

    unknown_type, unknown_version, aggregate_type, no_key, content_type, null_payload, undecodable, invalid_payload,
    upcast
    """

    def __init__(self, message: str, reason: str = "invalid_payload") -> None:
        super().__init__(message)
        self.reason = reason


class TransactionEnded(Reject):
    """A handler of an inbox committed or rolled back the transaction that its effect shares with the mark, or went on
    after an error that had rolled all of it back. What it has done cannot be told, so it is not repeated."""

    def __init__(self) -> None:
        super().__init__(
            "the handler ended the inbox's transaction, so its effect and the mark that it was processed have parted; "
            "it is not repeated. Look what it has left behind, then replay or discard the message. Leave commit and "
            "rollback to the inbox, and let errors of the database pass: a deadlock may have rolled back everything"
        )


class RetryLater(DeliveryError):
    """Raise from a listener to choose the delay of the next attempt (a Retry-After, say)."""

    def __init__(self, delay: Duration, reason: str = "the listener asked for a later attempt") -> None:
        super().__init__(reason)
        self.delay = _parsed(delay, "delay")


class BatchFailed(DeliveryError):
    """Raise from a batch listener to say which events of the batch failed. Any other error is about all of them:
    the batch is then tried in smaller parts. `skipped` were not handled, for want of an earlier one: they follow it, or
    are given to the handler again."""

    def __init__(self, errors: Mapping[Event, BaseException], skipped: Collection[Event] = ()) -> None:
        super().__init__(f"{len(errors)} events of a batch failed, {len(skipped)} were skipped")
        if any(isinstance(event, (str, int)) for event in (*errors, *skipped)):  # they would count as done
            raise TypeError("expected BatchFailed to be given events, as in BatchFailed({event: error}), not their ids")
        self.errors = errors
        self.skipped = skipped


class BrokerUnavailable(DeliveryError):
    """A broker cannot be reached, refuses everybody or asks for a pause: not the event's fault.

    Of a sink: with `destination` None nothing goes out until the sink answers a probe; with a destination only what is
    meant for it waits, for `retry_after` or a growing pause. Of a source: what was not acknowledged comes again.
    """

    def __init__(self, reason: str, *, retry_after: Duration | None = None, destination: str | None = None) -> None:
        super().__init__(reason)
        self.retry_after = None if retry_after is None else _parsed(retry_after, "retry_after")
        self.destination = destination
