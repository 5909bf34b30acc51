"""Which headers of an event travel to an endpoint. A program that writes events must not speak for the sender
of the request, nor for a proxy in front of the receiver: what is not named here or by the operator stays behind.

    always      the attributes of the event as the relay renders them, and those of CloudEvents
    from events trace context, correlation, number in a sequence, priority, version of the contract
    if named    anything else, but nothing that HTTP, the signature or the login is made of
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from ...errors import ConfigError
from ..formats import spelled
from ..spi import Message

# Ours or HTTP's own. No header of an event may replace them, not even spelled with underscores, which some servers
# take for hyphens.
OURS = frozenset(
    {"accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "cookie", "expect"}
    | {"content-encoding", "host", "http2-settings", "keep-alive", "proxy-authenticate", "proxy-authorization"}
    | {"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "user-agent"}
    | {"webhook-id", "webhook-signature", "webhook-timestamp"}
)
USUAL = frozenset(
    ["traceparent", "tracestate", "baggage", "correlation-id", "sequence", "priority", "event-version"]
)  # fmt: skip
RENDERED = frozenset(["event-id", "event-type", "aggregate-type", "created-at"])
# Receivers and their proxies take these for the word of a proxy: only by their whole name, never by a prefix.
SPOKEN_BY_PROXIES = re.compile(
    r"forwarded|via|(x-)?(original|rewrite)-.*|x-forward.*|x-real-ip|x-client.*|x-cluster-client-ip|x-host|true-client-ip"
    r"|cf-.*|fastly-.*|x-amz.*|x-goog.*|x-azure.*|x-http-method.*|x-method-override|x-envoy-.*|x-remote-.*|remote-.*"
    r"|x-auth.*|x-api-key|x-ssl-.*|ssl-.*"
)
_NAME_SIGNS = "!#$&'*+-.^_`|~"  # with letters and digits: what a header name may consist of
_NAME = re.compile(r"[a-z0-9!#$%&'+.^`|~-]*\*?")


class HeaderRule:
    def __init__(self, named: Sequence[str]) -> None:
        names = [spelled(name) for name in named]
        for name in names:
            if not name or not _NAME.fullmatch(name):
                raise ConfigError(
                    f"expected event_headers to be names such as x-shop, or prefixes as x-shop-*: {name!r}"
                )
            if name in OURS:
                raise ConfigError(
                    f"an event cannot set the header {name!r}: HTTP, the signature or the login is made of it"
                )
        self._named = frozenset(name for name in names if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in names if name.endswith("*"))

    def allowed(self, message: Message) -> Iterator[tuple[str, str]]:
        """As HTTP has them."""
        event, attributes = message.event, message.attributes
        first = next(iter(attributes), "")  # our own come first
        plain, binary = first == "event_id", first == "ce-specversion" and "cloudevents" not in message.content_type
        for given, value in attributes.items():
            name = quote(spelled(given), safe=_NAME_SIGNS)
            if name in OURS:
                continue
            if (
                name in USUAL
                or (plain and name in RENDERED)
                or (plain and name == "aggregate-id" and event.key is not None)
                or (plain and name == "tenant" and event.tenant is not None)
                or (binary and name.startswith("ce-"))
                or self._is_named(name)
            ):
                yield name, value

    def _is_named(self, name: str) -> bool:
        if name in self._named:
            return True
        return name.startswith(self._prefixes) and not SPOKEN_BY_PROXIES.fullmatch(name) if self._prefixes else False
