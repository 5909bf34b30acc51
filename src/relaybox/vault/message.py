"""A message that an inbox keeps encrypted: all that was sent, in one box.

    head  content type, id, sender, type, aggregate type, key, tenant, headers; texts with NULs between them
    box   the length of the head in 4 bytes, head, payload: encrypted, with the id of the data key bound to it

The row has in clear text what the database works by: the same id, sender, type, key and tenant, and the headers that
number or rank a message, or that may be shown. What is handed out comes from the box. A row that says something else
belongs to another message, or was changed. Where a table has no column for a thing, it says nothing, and that is fine.
"""

from __future__ import annotations

from collections.abc import Collection

from ..codec import Codec
from ..errors import Undecodable
from ..event import GLOBAL, KEY_HEADER, Event, message_as_sent, sealed_message
from .cipher import Cipher, NotSealedHere

_SIZE = 4
# What an inbox orders by, and what tracing reads before anything is opened: numbers, no text of anybody.
WORKING = frozenset(["sequence", "ce_sequence", "priority", "ce_priority", "traceparent", "tracestate", "trace_id"])


def boxed(event: Event, sender: str, key_id: str, cipher: Cipher, shown: Collection[str], codec: Codec) -> Event:
    """The message as it is stored. `codec` opens it."""
    fields = (event.content_type, event.id, sender, event.type, event.aggregate_type, event.key or "")
    head = "\0".join((*fields, event.tenant or "", event.headers_text or "")).encode()
    body = cipher.seal(len(head).to_bytes(_SIZE) + head + event.body, _bound(key_id))
    clear = {KEY_HEADER: key_id}
    if event.headers_text is not None:
        for name, value in event.headers.items():
            if name in WORKING or name.lower() in shown:
                clear.setdefault(name, value)
    return sealed_message(event, body, clear, sender, codec)


def as_sent(event: Event, key_id: str, cipher: Cipher, codec: Codec) -> Event:
    """The message as it came; what it says is read by `codec`."""
    try:
        plain = cipher.open(event.body, _bound(key_id))
        start = _SIZE + int.from_bytes(plain[:_SIZE])
        head = plain[_SIZE:start].decode()
        content_type, id, sender, type, aggregate_type, key, tenant, headers = head.split("\0", 7)
    except (NotSealedHere, ValueError):
        raise _not_its(event, key_id) from None
    told = (
        (event.id.lower(), id.lower(), ""),  # a table that others have made may write a UUID as it likes
        (event.sender, sender, ""),
        (event.type, type, ""),
        (event.aggregate_type, aggregate_type, GLOBAL),
        (event.key, key, None),
        (event.tenant, tenant, None),
    )
    if any(said not in (meant, nothing) for said, meant, nothing in told):
        raise _not_its(event, key_id)
    slots = {
        "body": plain[start:],
        "content_type": content_type,
        "sender": sender,
        "aggregate_type": aggregate_type,
        "key": key or None,
        "tenant": tenant or None,
    }
    return message_as_sent(event, slots, headers or None, codec)


def _bound(key_id: str) -> bytes:
    return f"relaybox message\0{key_id}".encode()


def _not_its(event: Event, key_id: str) -> Undecodable:
    return Undecodable(
        f"message {event.id} is not what data key {key_id} has encrypted: its payload, id, sender, type, key or tenant "
        "is not the one it came with"
    )
