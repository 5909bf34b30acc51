"""A connection to Kafka as librdkafka properties, and those that nobody may set."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from ...durations import Duration, parse_duration
from ...errors import ConfigError
from ..connection import HostsConnection
from ..options import check_choice

log = logging.getLogger("relaybox")
Sasl: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
Token: TypeAlias = Callable[[], tuple[str, float]]

# Of producers and consumers: impatient, because who uses them has a patience of its own.
DEFAULTS: Mapping[str, Any] = {
    "socket.keepalive.enable": True,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 250,
    "log_level": 2,  # what connections complain about comes as errors, too
}

_LOSS = "a message could be lost after its event was settled"
_EARLY = "a message could be acknowledged before it is stored"
_ORDER = "messages of a key could overtake one another"
_TRUST = "anybody could pose as the broker"
_OURS = "relaybox needs its own"
# Which values of a property are fine (None: no other than ours), and the reason.
GUARDED: Mapping[str, tuple[str | None, str]] = {
    "acks": ("all|-1", _LOSS),
    "request.required.acks": ("all|-1", _LOSS),
    "enable.idempotence": ("true", _ORDER),
    "max.in.flight": ("[1-5]", _ORDER),
    "max.in.flight.requests.per.connection": ("[1-5]", _ORDER),
    "partitioner": ("(consistent|murmur2|fnv1a)(_random)?", _ORDER),
    "queuing.strategy": ("fifo", _ORDER),
    "enable.auto.commit": ("false", _EARLY),
    "enable.auto.offset.store": ("false", _EARLY),
    "partition.assignment.strategy": ("cooperative-sticky", "partitions move one by one here"),
    "enable.partition.eof": ("false", _OURS),
    "enable.ssl.certificate.verification": ("true", _TRUST),
    "ssl.endpoint.identification.algorithm": ("https", _TRUST),
    "bootstrap.servers": (None, "the URL names the brokers"),
    "metadata.broker.list": (None, "the URL names the brokers"),
    "security.protocol": (None, "use a kafkas:// URL and the option sasl"),
    "delivery.timeout.ms": (None, "use the option delivery_timeout"),
    "message.timeout.ms": (None, "use the option delivery_timeout"),
    "group.id": (None, "use the option group"),
    "auto.offset.reset": (None, "use the option start"),
    "session.timeout.ms": (None, "use the option session_timeout"),
    "heartbeat.interval.ms": (None, "use the option session_timeout"),
    "oauth_cb": (None, "use the option token"),
    "default.topic.config": (None, "give its properties directly"),
    "transactional.id": (None, "the sink uses no transactions"),
    "delivery.report.only.error": (None, _OURS),
    "on_delivery": (None, _OURS),
    "on_commit": (None, _OURS),
    "error_cb": (None, _OURS),
    "logger": (None, _OURS),
}
_SECRET = re.compile(r"password|secret|pem$|oauthbearer.config$")


@dataclass(frozen=True, kw_only=True, repr=False)
class KafkaConnection(HostsConnection):
    """Where a Kafka cluster is, and how to log in.

        KafkaConnection("kafkas://shop:secret@broker-1:9093,broker-2:9093", sasl="SCRAM-SHA-256")

    url                 some brokers of the cluster; kafkas:// is encrypted, and certificates and names are checked
    client_id           our name in the brokers' logs, quotas and metrics
    username, password  the account, where the URL has none; for PLAIN and SCRAM
    sasl                how to log in
    token               for OAUTHBEARER: returns a token and when it ends, in seconds since 1970; called in a thread
    tls                 verify, require (which verifies nobody) or off, instead of the scheme of the URL
    insecure_no_tls     let a password or token go over the network in clear text
    ca_file             who signed the brokers' certificates, if the system does not know them
    cert_file, key_file, key_password   our own certificate, if the brokers want one
    config              more librdkafka properties, by their names
    """

    product: ClassVar[str] = "Kafka"
    ports: ClassVar[Mapping[str, int]] = {"kafka": 9092, "kafkas": 9092}

    client_id: str = "relaybox"
    key_password: str | None = None
    sasl: Sasl | None = None
    token: Token | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in self.config.items():
            fine, reason = GUARDED.get(name, ("(?s).*", ""))
            if fine is None or not re.fullmatch(fine, str(value).lower()):
                wanted = "" if fine is None else f"; expected {fine}"
                raise ConfigError(f"config may not set {name} to {value!r}: {reason}{wanted}")
        self._login()

    def __str__(self) -> str:
        return f"{self.hosts.scheme}://{self.hosts.authority}"

    def _for_tls(self) -> dict[str, object]:
        return {**super()._for_tls(), "key_password": self.key_password}

    def _told_in_clear(self) -> str | None:
        """SCRAM answers a challenge."""
        return {"PLAIN": "password", "OAUTHBEARER": "token"}.get(self.sasl or "")

    def properties(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """For librdkafka, with those of the sink or source, which `config` may change."""
        files = {
            "ssl.ca.location": self.ca_file,
            "ssl.certificate.location": self.cert_file,
            "ssl.key.location": self.key_file,
            "ssl.key.password": self.key_password,
        }
        return {
            **DEFAULTS,
            **own,
            "bootstrap.servers": self.hosts.authority,
            "client.id": self.client_id,
            "security.protocol": f"{'sasl_' if self.sasl else ''}{'ssl' if self.secure else 'plaintext'}",
            **{name: str(value) for name, value in files.items() if value is not None},
            **({"enable.ssl.certificate.verification": False} if self.tls == "require" else {}),
            **self._login(),
            **self.config,
        }

    def _login(self) -> dict[str, Any]:
        username, password = self.account
        if self.sasl is None:
            if username is not None or password is not None or self.token is not None:
                raise ConfigError(f"credentials need the option sasl: one of {', '.join(get_args(Sasl))}")
            return {}
        check_choice("sasl", self.sasl, Sasl)
        if self.sasl == "OAUTHBEARER":
            if self.token is None and self.config.get("sasl.oauthbearer.method") != "oidc":
                raise ConfigError("sasl=OAUTHBEARER needs token, or sasl.oauthbearer.method=oidc in config")
            return {"sasl.mechanism": self.sasl, **({"oauth_cb": _telling(self.token)} if self.token else {})}
        if not username or not password:
            raise ConfigError(f"sasl={self.sasl} needs username and password")
        return {"sasl.mechanism": self.sasl, "sasl.username": username, "sasl.password": password}


def _telling(token: Token) -> Callable[[str], tuple[str, float]]:
    """librdkafka keeps an error of this callback to itself. We tell its kind; its text may give too much away."""

    def ask(_: str) -> tuple[str, float]:
        try:
            return token()
        except Exception as error:
            log.error("no token for Kafka: the callback raised %s", type(error).__name__)
            raise

    return ask


def milliseconds(name: str, value: Duration, low: int, high: int) -> int:
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
