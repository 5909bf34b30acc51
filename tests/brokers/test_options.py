"""Text from files, the environment and URLs, as arguments of a sink."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from relaybox.brokers.aws import AwsConnection
from relaybox.brokers.kafka import KafkaConnection, KafkaSink
from relaybox.brokers.nats import NatsConnection
from relaybox.brokers.options import split_url, typed
from relaybox.brokers.pubsub import PubSubConnection, PubSubSource
from relaybox.brokers.rabbitmq import RabbitMQConnection
from relaybox.brokers.redis import RedisConnection, RedisStreamSink
from relaybox.errors import ConfigError


class Sink:
    def __init__(
        self,
        url: str = "",
        *,
        size: int = 1,
        share: float = 0.5,
        durable: bool = True,
        wait: timedelta = timedelta(0),
        file: Path | None = None,
        mode: Literal["a", "b"] | None = None,
        more: Mapping[str, Any] | None = None,
        token: Callable[[], str] | None = None,
    ) -> None: ...


def test_text_is_read_by_the_annotation() -> None:
    text = {"size": "7", "share": "0.25", "durable": "No", "wait": "250ms", "file": "/x", "mode": "b"}
    assert typed(Sink, text) == {
        "size": 7,
        "share": 0.25,
        "durable": False,
        "wait": timedelta(milliseconds=250),
        "file": Path("/x"),
        "mode": "b",
    }


def test_brokers_take_durations_as_everything_else_does() -> None:
    for wait in ("2s", 2, timedelta(seconds=2)):
        assert RedisConnection("redis://cache.example", timeout=wait).timeout == timedelta(seconds=2)
        sink = RedisStreamSink(RedisConnection("redis://localhost"), dedup_window=wait)
        assert sink.features.dedup_window == timedelta(seconds=2)
    with pytest.raises(ConfigError, match="expected ack_deadline to be a duration"):
        PubSubSource("pubsub://project", subscription="s", ack_deadline="soon")
    with pytest.raises(ConfigError, match="timeout to be a positive duration"):
        RedisConnection("redis://localhost", timeout=0)


def test_a_number_without_a_unit_is_no_duration() -> None:
    for number in (3, "3"):
        with pytest.raises(ConfigError, match=r"expected wait to be a duration .* got '3' without a unit"):
            typed(Sink, {"wait": number})


def test_other_values_are_left_to_the_sink() -> None:
    given = {"size": 7, "durable": True, "more": {"a": 1}}
    assert typed(Sink, given) == given


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"colour": "red"}, "unknown option 'colour' of Sink; known: durable, file, mode, more, share, size, wait"),
        ({"url": "x"}, "unknown option 'url'"),
        ({"token": "x"}, "unknown option 'token'"),
        ({"size": "many"}, "expected size to be a number, got 'many'"),
        ({"durable": "perhaps"}, "expected durable to be true or false, got 'perhaps'"),
        ({"wait": "soon"}, "expected wait to be a duration"),
        ({"more": "a=1"}, "expected more to be a table"),
    ],
)
def test_what_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        typed(Sink, options)


def test_the_query_of_a_url_gives_options() -> None:
    parts, options = split_url("kafka://a:1,b:2/x?size=7&file=%2Fx&mode=", {"size": "8"})
    assert (parts.netloc, parts.path, parts.query) == ("a:1,b:2", "/x", "")
    assert options == {"size": "8", "file": "/x", "mode": ""}


@pytest.mark.parametrize("url", ["kafka://secret@[a", "kafka://secret@a?size"])
def test_urls_that_cannot_be_read(url: str) -> None:
    with pytest.raises(ConfigError, match="cannot read the broker's URL") as caught:
        split_url(url, {})
    assert "secret" not in str(caught.value)


SECRET = "canary-secret"


@pytest.mark.parametrize(
    "connection",
    [
        KafkaConnection(
            f"kafkas://shop:{SECRET}@a:1,b", sasl="PLAIN", password=SECRET, config={"ssl.key.password": SECRET}
        ),
        RabbitMQConnection(f"amqps://shop:{SECRET}@a/shop", password=SECRET),
        NatsConnection(f"tls://{SECRET}@a"),
        RedisConnection(f"rediss://:{SECRET}@a/2", password=SECRET),
        AwsConnection(region="eu", access_key_id=SECRET, secret_access_key=SECRET, session_token=SECRET),
        PubSubConnection("shop", credentials_file=f"/{SECRET}.json"),
    ],
    ids=lambda connection: type(connection).__name__,
)
def test_a_connection_shows_no_secret(connection: object) -> None:
    assert SECRET not in repr(connection) + str(connection)
    assert repr(connection).startswith(f"{type(connection).__name__}(")


def test_a_url_says_what_a_connection_says() -> None:
    url = "kafkas://shop:p%40ss@a:1,b/?sasl=PLAIN&client_id=shop"
    assert KafkaConnection.of(url) == KafkaConnection("kafkas://shop:p%40ss@a:1,b/", sasl="PLAIN", client_id="shop")
    given = KafkaConnection("kafka://a")
    assert KafkaConnection.of(given) is given
    assert repr(KafkaSink(given)) == "KafkaSink('kafka://a:9092')"
    with pytest.raises(ConfigError, match="unknown option 'linger' of KafkaConnection"):
        KafkaSink("kafka://a?linger=1ms")
