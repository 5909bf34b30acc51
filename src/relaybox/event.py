"""The event envelope: validated, encoded once, immutable.

    Event("OrderPlaced", {"id": 7}, key="order-7")

`key` is the aggregate id: the ordering key, and the message key at a broker. Everything that could be
refused by a database or by readers (length, control character, lone surrogate, size, depth) is refused here,
before any SQL runs, so a bad event never poisons the caller's transaction.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypedDict, TypeVar, Unpack, cast, overload

from .clock import utc_now
from .codec import BYTES, JSON, JSON_CODEC, MAX_DEPTH, Codec, check_json, headers_from_text, headers_to_text
from .errors import ContractViolation, InvalidEvent, PayloadTooLarge, Undecodable
from .ids import new_id

MAX_PAYLOAD: Final = 1_048_576
MAX_BROKEN: Final = 8 * MAX_PAYLOAD  # of what cannot be read; MariaDB takes 16 MiB in one statement, as base64
MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 8_192
MAX_HEADER_TEXT: Final = 50_000  # the same as JSON, where a character may take six
MAX_SEALED: Final = MAX_PAYLOAD + MAX_HEADER_TEXT + 4_096  # of a message that an inbox has encrypted as a whole
LIMITS: Final = MappingProxyType(
    {"id": 36, "type": 128, "aggregate_type": 64, "key": 128, "tenant": 64, "content_type": 128, "topic": 255}
)
GLOBAL: Final = "__GLOBAL__"
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
OVER_CAP_HEADER: Final = "relaybox-over-cap"  # written though more waited for its tenant than tenants.max_waiting
TOPIC_HEADER: Final = "relaybox-topic"  # where an event says its topic in an outbox, which has no column for it
CORRELATION_HEADER: Final = "correlation-id"
PLACED: Final = "at:"  # begins the id of a message that brought none: the place where it was read
SEALED: Final = "application/vnd.relaybox.sealed"  # the content type of an encrypted payload; headers have the rest:
KEY_HEADER: Final = "relaybox-key-id"  # with which data key
INNER_HEADER: Final = "relaybox-content-type"  # of what was encrypted
SEALED_MESSAGE: Final = "application/vnd.relaybox.sealed-message"  # what an inbox keeps, headers and all, encrypted


def name_of(value: str | Enum, field: str) -> str:
    """A string, or the name of a member of an Enum."""
    if type(value) is str:
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str):
        return value
    raise InvalidEvent(f"expected {field} to be a string or a member of an Enum, got {type(value).__name__}")


def _text(field: str, value: object) -> str:
    # The usual text passes at once, here and in name_of: Event() takes 53,200 instructions; without either, 57,300 (the
    # difference of 1,000 and 3,000 events under `valgrind --tool=callgrind`).
    if isinstance(value, str) and value.isascii() and value.isprintable() and 0 < len(value) <= LIMITS[field]:
        return value
    limit = LIMITS[field]
    if not isinstance(value, str):
        raise InvalidEvent(f"expected {field} to be a string, got {type(value).__name__}")
    if not value:
        raise InvalidEvent(f"expected {field} to be non-empty text")
    if len(value) > limit:
        raise InvalidEvent(f"{field} is {len(value)} characters long, the limit is {limit}: {value[:40]!r}…")
    _check_text(field, value)
    if _CONTROL.search(value):
        raise InvalidEvent(f"{field} has control characters, which forge lines of logs: {value[:40]!r}; leave them out")
    return value


def _given(id: object) -> str:
    """An id that somebody wrote. Nobody writes one that only a place can have: the message there would be taken for
    known, and vanish."""
    text = _text("id", id)
    if text.startswith(PLACED):
        raise InvalidEvent(
            f"id {text!r} begins with {PLACED!r}, which is kept for messages that bring no id; choose another, or none"
        )
    return text


def check_topic(name: object) -> str:
    topic = _text("topic", name)
    if not topic.isprintable() or topic != topic.strip():
        raise InvalidEvent(f"topic {topic[:40]!r} has characters that cannot be printed, or blanks around it")
    return topic


def _check_text(field: str, value: str) -> None:
    if "\x00" in value:
        raise InvalidEvent(f"{field} contains a NUL character, which no database stores as text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidEvent(f"{field} contains a lone surrogate, which is not text") from None


def _headers(given: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise InvalidEvent(f"expected headers to be a mapping, got {type(given).__name__}")
    headers = dict(given)
    if len(headers) > MAX_HEADERS:
        raise InvalidEvent(f"{len(headers)} headers given, the limit is {MAX_HEADERS}")
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidEvent(
                "expected headers to map text to text, got "
                f"{type(name).__name__} to {type(value).__name__}; convert the value first"
            )
        if not name or not name.isprintable() or any(c in name for c in ":\r\n"):
            raise InvalidEvent(f"header name {name[:40]!r} is empty or has characters that no transport carries")
        if "\r" in value or "\n" in value:
            raise InvalidEvent(f"the value of header {name!r} contains a line break")
        _check_text(f"header {name!r}", name + value)
        size += len(name.encode()) + len(value.encode())
    if size > MAX_HEADER_BYTES:
        raise InvalidEvent(f"headers take {size:,} bytes, the limit is {MAX_HEADER_BYTES:,}")
    return headers


def _moment(field: str, value: object) -> datetime:
    if not isinstance(value, datetime):
        raise InvalidEvent(f"expected {field} to be a datetime, got {type(value).__name__}")
    if value.tzinfo is None:
        raise InvalidEvent(f"expected {field} to have a time zone, got the naive {value.isoformat()}")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidEvent(f"expected {field} to lie in the years 1 to 9999 of UTC, got {value.isoformat()}") from None


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0]
    return kind == JSON or kind.endswith("+json")


_MISSING: Final[Any] = object()
_EMPTY: Final[Mapping[str, str]] = MappingProxyType({})


M = TypeVar("M")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    T = TypeVarWithDefault("T", default=Any)  # of the payload; a bare Event is an Event[Any]
else:
    T = TypeVar("T")


class EventOptions(TypedDict, total=False):
    """What an event may have besides its type and payload; see `Event`."""

    key: str | None
    aggregate_type: str | Enum
    id: str | None
    occurred_at: datetime | None
    deliver_at: datetime | None
    tenant: str | None
    headers: Mapping[str, str] | None
    content_type: str | None
    topic: str | None
    correlation_id: str | None
    codec: Codec


class _Fields:
    """The storage of an event, still writable; it becomes an Event when it is filled.

    So an event that is read back costs 0.28 µs. Through `object.__setattr__` it would be 1.55 µs, and 1.4 µs more if
    the three times, which may be as PostgreSQL sends them (`timestamptz_send`), were read before somebody asks for
    them: each more than a tenth of the 9.4 µs in which an event is drained. To measure it:

        python -m timeit -s "from relaybox import Event; row = (7, 'id', 'T', *[None] * 9)" "Event.stored(row)"
    """

    id: str
    type: str
    body: bytes
    content_type: str
    key: str | None
    aggregate_type: str
    tenant: str | None
    sender: str  # who sent it, as an inbox was told; "" unless it was received
    seq: int | None
    _occurred: datetime | bytes
    _deliver: datetime | bytes | None
    _created: datetime | bytes | None
    _codec: Codec
    _headers: Mapping[str, str] | None
    _headers_text: str | None
    _topic: str | None
    __slots__ = tuple(__annotations__)


class Event(_Fields, Generic[T]):
    """Something that has happened, to be told to others. Immutable; two are equal when id and sender are; the repr
    shows no payload.

    payload        a JSON value, dataclass or model (encoded now), or bytes (kept as they are)
    payload_json   ready JSON text, stored byte for byte
    payload_bytes  the same for bytes of any content type
    topic          where it goes; an outbox takes what has none, and what has one that is not configured
    """

    __slots__ = ()

    def __init__(
        self,
        type: str | Enum,
        payload: T = _MISSING,
        *,
        key: str | None = None,
        aggregate_type: str | Enum = GLOBAL,
        id: str | None = None,
        occurred_at: datetime | None = None,
        deliver_at: datetime | None = None,
        tenant: str | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        payload_json: str | None = None,
        payload_bytes: bytes | bytearray | memoryview | None = None,
        topic: str | None = None,
        correlation_id: str | None = None,
        codec: Codec = JSON_CODEC,
    ) -> None:
        body, default_type = _body(payload, payload_json, payload_bytes, codec)
        if len(body) > MAX_PAYLOAD:
            raise PayloadTooLarge(len(body), MAX_PAYLOAD)
        if correlation_id is not None:
            headers = {**(headers or {}), CORRELATION_HEADER: correlation_id}
        kind = self.__class__
        fields: _Fields = self
        object.__setattr__(self, "__class__", _Fields)
        try:
            fields.type = _text("type", name_of(type, "type"))
            fields.body = body
            fields.content_type = default_type if content_type is None else _text("content_type", content_type)
            if len(body) > MAX_DEPTH and _is_json(fields.content_type):
                check_json(body)
            fields.id = new_id() if id is None else _given(id)
            fields.key = None if key is None else _text("key", key)
            fields.aggregate_type = _text("aggregate_type", name_of(aggregate_type, "aggregate_type"))
            fields.tenant = None if tenant is None else _text("tenant", tenant)
            fields._occurred = utc_now() if occurred_at is None else _moment("occurred_at", occurred_at)
            fields._deliver = None if deliver_at is None else _moment("deliver_at", deliver_at)
            fields._headers = MappingProxyType(_headers(headers)) if headers else _EMPTY
            fields._headers_text = headers_to_text(fields._headers) if headers else None
            fields._topic = None if topic is None else check_topic(topic)
            fields._codec = codec
            fields.sender = ""
            fields.seq = fields._created = None
        finally:
            fields.__class__ = kind

    @classmethod
    def of(cls, model: M, /, **options: Unpack[EventOptions]) -> Event[M]:
        """An event of a model: its type is the model's class variable `event_type`, or the name of its class."""
        kind = type(model)
        return Event(getattr(kind, "event_type", kind.__name__), model, **options)

    @classmethod
    def stored(cls, row: Sequence[Any], codec: Codec = JSON_CODEC, topic: str | None = None, sender: str = "") -> Event:
        """An event read back, in the column order of `store.spi.EVENT_COLUMNS`; trusted, unchecked. Without a body it
        is a row that cannot be read, and its headers say why (`unreadable`); without an id too, the row is gone."""
        fields: Any = _Fields()
        (
            fields.seq,
            fields.id,
            fields.type,
            aggregate_type,
            fields.key,
            fields.tenant,
            content_type,
            fields.body,
            fields._headers_text,
            fields._occurred,
            fields._deliver,
            fields._created,
        ) = row[:12]
        fields.aggregate_type = aggregate_type or GLOBAL
        fields.content_type = content_type or JSON
        fields._headers = None
        fields._topic = topic
        fields._codec = codec
        fields.sender = sender
        fields.__class__ = cls
        event: Event = fields
        return event

    def with_headers(self, extra: Mapping[str, str]) -> Event:
        """A copy with more headers and the same id and body: for writer hooks."""
        merged = _headers({**self.headers, **extra})
        slots = {slot: getattr(self, slot) for slot in _Fields.__slots__}
        changed = {"_headers": MappingProxyType(merged), "_headers_text": headers_to_text(merged)}
        return _made(type(self), {**slots, **changed})

    @property
    def occurred_at(self) -> datetime:
        """When it happened: the time of its making, unless another was given."""
        return stored_time(self._occurred)

    @property
    def deliver_at(self) -> datetime | None:
        """The event is not delivered before this time."""
        return stored_time(self._deliver)

    @property
    def created_at(self) -> datetime | None:
        """When it was stored; None before."""
        return stored_time(self._created)

    @property
    def headers(self) -> Mapping[str, str]:
        """Text by name, read-only: what travels with the event to brokers and inboxes. Of a message that an inbox has
        encrypted and nobody here can open, those that are not secret."""
        if self._headers is None:
            parsed = clear_headers(self)
            if self.content_type == SEALED_MESSAGE:
                try:
                    parsed = opened_message(self).headers
                except Undecodable:
                    return parsed
            object.__setattr__(self, "_headers", parsed)
            return parsed
        return self._headers

    @property
    def unreadable(self) -> str | None:
        """Why the row of a stored event cannot be read; None: it can."""
        return self._headers_text or "the row cannot be read" if self.body is None else None

    @property
    def topic(self) -> str | None:
        """The topic it goes to or came from; None: the outbox."""
        return self._topic or self.headers.get(TOPIC_HEADER)

    @property
    def correlation_id(self) -> str | None:
        """The header `correlation-id`: what belongs together, over several services."""
        return self.headers.get(CORRELATION_HEADER)

    @property
    def headers_text(self) -> str | None:
        """The headers as they are stored, as JSON text."""
        return self._headers_text

    @property
    def payload(self) -> T:
        """The decoded value of a JSON event, the bytes of any other. Decoded on each call, and decrypted if a vault has
        encrypted it; never kept."""
        body, content_type = self.body, self.content_type
        if not _is_json(content_type):
            if content_type == SEALED:
                body, content_type = _decrypted(self)
            elif content_type == SEALED_MESSAGE:
                return cast(T, opened_message(self).payload)
            if not _is_json(content_type):
                return cast(T, body)
        try:
            decoded: T = self._codec.decode(body)
            return decoded
        except ContractViolation:  # of the listener's model
            raise
        except (ValueError, RecursionError) as error:
            raise Undecodable(f"the payload of event {self.id} is not {content_type}") from error
        except TypeError:
            if self.unreadable is not None:
                raise Undecodable(f"event {self.id} cannot be read: {self.unreadable}") from None
            raise

    @property
    def payload_json(self) -> str:
        """The payload of a JSON event as text, as it is stored."""
        return self.body.decode()

    @property
    def is_json(self) -> bool:
        """Whether the content type says that the payload is JSON."""
        return _is_json(self.content_type)

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context this event was written under, when there was one."""
        return self.headers.get("traceparent")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"events are immutable: cannot set {name!r}; make a new Event")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"events are immutable: cannot delete {name!r}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and other.id == self.id and other.sender == self.sender

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        key = f", key={self.key!r}" if self.key is not None else ""
        return f"Event({self.type!r}, <{len(self.body or b'')} bytes>{key}, id={self.id!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        slots = {slot: getattr(self, slot) for slot in _Fields.__slots__ if slot not in ("_codec", "_headers")}
        return _rebuild, (slots,)


def topics_of(events: Sequence[Event]) -> list[str | None]:
    """Where their makers want them to go. A header does not count: it may come from another system."""
    return [event._topic for event in events]


def read_as(event: Event, codec: Codec) -> Event:
    """The same event, whose payload is read by another codec. A copy: others may have the event too."""
    event = opened(event)
    slots = {slot: getattr(event, slot) for slot in _Fields.__slots__}
    return _made(type(event), {**slots, "_codec": codec})


def placed(event: Event, id: str) -> Event:
    """The same event under the id of the place where it was read. A copy."""
    slots = {slot: getattr(event, slot) for slot in _Fields.__slots__}
    return _made(type(event), {**slots, "id": id})


def sealed(event: Event, body: bytes, key_id: str, codec: Codec) -> Event:
    """The event with its payload encrypted. `codec` opens it."""
    if len(body) > MAX_PAYLOAD:
        raise PayloadTooLarge(len(body), MAX_PAYLOAD)
    fields: Any = _Fields()
    for slot, value in zip(_Fields.__slots__, _slots(event), strict=True):
        setattr(fields, slot, value)
    if event.headers:
        headers = _headers({**event.headers, KEY_HEADER: key_id, INNER_HEADER: event.content_type})
        fields._headers_text = headers_to_text(headers)
        fields._headers = MappingProxyType(headers)
    else:  # as headers_to_text would have it, for a quarter of what that costs
        fields._headers_text = f'{{"{KEY_HEADER}":"{key_id}",{_inner(event.content_type)}}}'
        fields._headers = None
    fields.body, fields.content_type, fields._codec = body, SEALED, codec
    fields.__class__ = type(event)
    closed: Event = fields
    return closed


def sealed_message(event: Event, body: bytes, clear: Mapping[str, str], sender: str, codec: Codec) -> Event:
    """A message as an inbox keeps it: encrypted as a whole, but for what the database works by and the headers that are
    clear, the id of the data key first. `codec` opens it."""
    fields: Any = _Fields()
    for slot, value in zip(_Fields.__slots__, _slots(event), strict=True):
        setattr(fields, slot, value)
    fields._headers = MappingProxyType(clear)
    # The usual one as headers_to_text would have it, for a quarter of what that costs.
    fields._headers_text = headers_to_text(clear) if len(clear) > 1 else f'{{"{KEY_HEADER}":"{clear[KEY_HEADER]}"}}'
    fields.body, fields.content_type, fields.sender, fields._codec = body, SEALED_MESSAGE, sender, codec
    fields.__class__ = type(event)
    closed: Event = fields
    return closed


def message_as_sent(event: Event, slots: Mapping[str, Any], headers: str | None, codec: Codec) -> Event:
    """A message as it was before an inbox encrypted it, with these fields and headers."""
    changed = {**_by_slot(event), **slots, "_headers": None, "_headers_text": headers, "_codec": codec}
    return _made(type(event), changed)


def opened_message(event: Event) -> Event:
    """What an inbox was sent, of a message that it has encrypted. Any other event stays as it is, also one whose
    payload was encrypted by its sender. Undecodable, Erased: it cannot be had."""
    if event.content_type != SEALED_MESSAGE:
        return event
    found: Event = _opener(event, "open_message")(event)
    return found


def clear_headers(event: Event) -> Mapping[str, str]:
    """Those that are stored in clear text."""
    try:
        return MappingProxyType(headers_from_text(event._headers_text))
    except (ValueError, RecursionError) as error:
        raise Undecodable(f"the headers of event {event.id} are not a JSON object") from error


def sent_by(event: Event, sender: str, codec: Codec) -> Event:
    """A message as its receiver sees it, before it is stored: with its sender, and the codec that reads it."""
    return _made(type(event), {**_by_slot(event), "sender": sender, "_codec": codec})


def _by_slot(event: Event) -> dict[str, Any]:
    return dict(zip(_Fields.__slots__, _slots(event), strict=True))


_slots = attrgetter(*_Fields.__slots__)


@lru_cache(64)
def _inner(content_type: str) -> str:
    text = headers_to_text({INNER_HEADER: content_type})
    assert text is not None
    return text[1:-1]


def opened(event: Event) -> Event:
    """The event with its payload as it was before it was encrypted. One that is not encrypted stays as it is."""
    event = opened_message(event)
    if event.content_type != SEALED:
        return event
    body, content_type = _decrypted(event)
    headers = {name: value for name, value in event.headers.items() if name not in (KEY_HEADER, INNER_HEADER)}
    slots = {slot: getattr(event, slot) for slot in _Fields.__slots__}
    shown = {"_headers": MappingProxyType(headers), "_headers_text": headers_to_text(headers)}
    return _made(type(event), {**slots, **shown, "body": body, "content_type": content_type})


def _decrypted(event: Event) -> tuple[bytes, str]:
    plain: tuple[bytes, str] = _opener(event, "open")(event)
    return plain


def _opener(event: Event, name: str) -> Any:
    if event.unreadable is not None:
        raise Undecodable(f"event {event.id} cannot be read: {event.unreadable}")
    found = getattr(event._codec, name, None)
    if found is None:
        raise Undecodable(
            f"the payload of event {event.id} is encrypted with data key {clear_headers(event).get(KEY_HEADER)}; give "
            "what reads it the vault of that key, codec=Vault(…)"
        )
    return found


def _rebuild(slots: dict[str, Any]) -> Event:
    return _made(Event, {**slots, "_codec": JSON_CODEC, "_headers": None})


def _made(kind: type[Event], slots: Mapping[str, Any]) -> Event:
    fields: Any = _Fields()
    for name, value in slots.items():
        setattr(fields, name, value)
    fields.__class__ = kind
    event: Event = fields
    return event


def raw_occurred(event: Event) -> datetime | bytes:
    """When it happened, as its row has it: for readers that need no datetime."""
    return event._occurred


def raw_created(event: Event) -> datetime | bytes:
    """When it was stored, or else happened, as its row has it."""
    return event._created or event._occurred


Y2K: Final = datetime(2000, 1, 1, tzinfo=UTC)


@overload
def stored_time(stored: datetime | bytes) -> datetime: ...
@overload
def stored_time(stored: None) -> None: ...
def stored_time(stored: datetime | bytes | None) -> datetime | None:
    """A time as rows have it, perhaps as PostgreSQL sends it: microseconds since `Y2K`."""
    if stored is None or isinstance(stored, datetime):
        return stored
    try:
        return Y2K + timedelta(microseconds=int.from_bytes(stored, signed=True))
    except OverflowError:
        raise Undecodable("expected the times of an event to lie in the years 1 to 9999") from None


def _body(
    payload: Any, text: str | None, data: bytes | bytearray | memoryview | None, codec: Codec
) -> tuple[bytes, str]:
    given = (payload is not _MISSING) + (text is not None) + (data is not None)
    if given != 1:
        raise InvalidEvent(
            f"expected exactly one of payload, payload_json and payload_bytes, got {given}; "
            "an event without content has the payload None"
        )
    if text is not None:
        if not isinstance(text, str):
            raise InvalidEvent(f"expected payload_json to be JSON text, got {type(text).__name__}")
        try:
            return text.encode(), JSON
        except UnicodeEncodeError:
            raise InvalidEvent("payload_json contains a lone surrogate, which is not text") from None
    if data is None and isinstance(payload, (bytes, bytearray, memoryview)):
        data = payload
    if data is not None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise InvalidEvent(f"expected payload_bytes to be bytes, got {type(data).__name__}")
        return bytes(data), BYTES
    return codec.encode(payload), JSON
