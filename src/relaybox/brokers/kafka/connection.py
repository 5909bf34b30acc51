"""Settings of the Kafka sink as librdkafka properties, and those that nobody may set."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeAlias, get_args

from ...durations import parse_duration
from ...errors import ConfigError

LOGGER = logging.getLogger("relaybox")
Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
Sasl: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
Token: TypeAlias = Callable[[], tuple[str, float]]

# Durable and in order; impatient, because the relay has a patience of its own.
DEFAULTS: Mapping[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "max.in.flight": 5,
    "partitioner": "murmur2_random",  # puts a key where Java producers put it
    "socket.keepalive.enable": True,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 250,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 250,
    "message.max.bytes": 4_194_304,  # events are smaller: what is too large is for the broker to say
    "log_level": 2,  # what connections complain about comes as errors, too
}

_LOSS = "a message could be lost after its event was settled"
_ORDER = "messages of a key could overtake one another"
_TRUST = "anybody could pose as the broker"
_OURS = "the sink needs its own"
# Which values of a property are fine (None: no other than ours), and the reason.
GUARDED: Mapping[str, tuple[str | None, str]] = {
    "acks": ("all|-1", _LOSS),
    "request.required.acks": ("all|-1", _LOSS),
    "enable.idempotence": ("true", _ORDER),
    "max.in.flight": ("[1-5]", _ORDER),
    "max.in.flight.requests.per.connection": ("[1-5]", _ORDER),
    "partitioner": ("(consistent|murmur2|fnv1a)(_random)?", _ORDER),
    "queuing.strategy": ("fifo", _ORDER),
    "enable.ssl.certificate.verification": ("true", _TRUST),
    "ssl.endpoint.identification.algorithm": ("https", _TRUST),
    "bootstrap.servers": (None, "use the option bootstrap"),
    "metadata.broker.list": (None, "use the option bootstrap"),
    "delivery.timeout.ms": (None, "use the option delivery_timeout"),
    "message.timeout.ms": (None, "use the option delivery_timeout"),
    "security.protocol": (None, "use the options tls and sasl"),
    "oauth_cb": (None, "use the option token"),
    "default.topic.config": (None, "give its properties directly"),
    "transactional.id": (None, "the sink uses no transactions"),
    "delivery.report.only.error": (None, _OURS),
    "on_delivery": (None, _OURS),
    "error_cb": (None, _OURS),
    "logger": (None, _OURS),
}
_SECRET = re.compile(r"password|secret|pem$|oauthbearer.config$")


def passed_on(given: Mapping[str, Any], guarded: Mapping[str, tuple[str | None, str]] = GUARDED) -> dict[str, Any]:
    """A user's own properties, without those that would break what we promise."""
    for name, value in given.items():
        fine, reason = guarded.get(name, ("(?s).*", ""))
        if fine is None or not re.fullmatch(fine, str(value).lower()):
            wanted = "" if fine is None else f"; expected {fine}"
            raise ConfigError(f"config may not set {name} to {value!r}: {reason}{wanted}")
    return dict(given)


def transport(tls: bool, sasl: Sasl | None, insecure_no_tls: bool) -> dict[str, Any]:
    if sasl and not tls:
        if not insecure_no_tls:
            raise ConfigError(
                f"sasl={sasl} without TLS shows credentials on the network; set tls, or insecure_no_tls if you must"
            )
        LOGGER.warning("Kafka credentials go over the network without TLS, as insecure_no_tls asks")
    return {"security.protocol": f"{'sasl_' if sasl else ''}{'ssl' if tls else 'plaintext'}"}


def authentication(
    sasl: Sasl | None, username: str | None, password: str | None, token: Token | None, config: Mapping[str, Any]
) -> dict[str, Any]:
    if sasl is None:
        if username is not None or password is not None or token is not None:
            raise ConfigError(f"credentials need the option sasl: one of {', '.join(get_args(Sasl))}")
        return {}
    if sasl not in get_args(Sasl):
        raise ConfigError(f"expected sasl to be one of {', '.join(get_args(Sasl))}, got {sasl!r}")
    if sasl == "OAUTHBEARER":
        if token is None and config.get("sasl.oauthbearer.method") != "oidc":
            raise ConfigError("sasl=OAUTHBEARER needs token, or sasl.oauthbearer.method=oidc in config")
        return {"sasl.mechanism": sasl, **({"oauth_cb": _telling(token)} if token else {})}
    if not username or not password:
        raise ConfigError(f"sasl={sasl} needs username and password")
    return {"sasl.mechanism": sasl, "sasl.username": username, "sasl.password": password}


def _telling(token: Token) -> Callable[[str], tuple[str, float]]:
    """librdkafka keeps an error of this callback to itself. We tell its kind; its text may give too much away."""

    def ask(_: str) -> tuple[str, float]:
        try:
            return token()
        except Exception as error:
            LOGGER.error("no token for Kafka: the callback raised %s", type(error).__name__)
            raise

    return ask


def milliseconds(name: str, value: timedelta, low: int, high: int) -> int:
    number = round(parse_duration(value, name) / timedelta(milliseconds=1))
    if not low <= number <= high:
        raise ConfigError(f"expected {name} to be between {low} and {high} ms, got {number} ms")
    return number


def hide_secrets(text: str, config: Mapping[str, Any]) -> str:
    """librdkafka quotes the value that it does not like."""
    for name, value in config.items():
        if _SECRET.search(name) and value:
            text = text.replace(str(value), "***")
    return text
