"""What others send: messages in the forms of each broker, and requests."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unicodedata import category

from google.protobuf.timestamp_pb2 import Timestamp
from pamqp import commands, frame, header

from relaybox import Event
from relaybox.brokers.aws.sqs_source import SqsSource
from relaybox.brokers.door import door, event_of
from relaybox.brokers.kafka.source import KafkaSource
from relaybox.brokers.nats.source import NatsSource
from relaybox.brokers.pubsub.source import PubSubSource
from relaybox.brokers.rabbitmq.frames import readable
from relaybox.brokers.redis.source import RedisStreamSource
from relaybox.brokers.spi import Incoming
from relaybox.brokers.webhook import new_key_pair, new_secret, verify
from relaybox.errors import InvalidEvent, InvalidSignature
from relaybox.ingest.webhook_events import Requests
from relaybox.ingest.webhook_request import Refused
from relaybox.types import Reading

CORPUS = json.loads((Path(__file__).parent / "corpus.json").read_text())
LONG = ["[" * 5000, "9" * 5000, "x" * 9000]
_redis = RedisStreamSource("redis://localhost", stream="s", consumer="fuzz")
_sqs = SqsSource("sqs://eu-central-1", queue="q")
_kafka = KafkaSource("kafka://localhost", topics="t", group="fuzz")
_nats = NatsSource("nats://localhost", stream="s")
_pubsub = PubSubSource("pubsub://shop", subscription="shop")
_SECRETS = [new_secret(), new_key_pair()[1]]
_requests = Requests(Reading(), (), signed=False)


def text(random: random.Random, seed: str) -> str:
    """The seed, with something cut out, put in or changed."""
    for _ in range(random.choice((0, 0, 1, 1, 2, 5))):
        at, end = sorted(random.randint(0, len(seed)) for _ in "ab")
        put = random.choice([*CORPUS["nasty"], *LONG, chr(random.randint(0, 0xFF)), seed[at:end] * 2, ""])
        seed = seed[:at] + put + seed[random.choice((at, end)) :]
    return seed


def message(random: random.Random) -> tuple[bytes, dict[str, str], str]:
    """Body, headers and content type."""
    body = text(random, random.choice(CORPUS["bodies"])).encode(errors="surrogatepass")
    names = random.sample(sorted(CORPUS["headers"]), random.randint(0, len(CORPUS["headers"])))
    headers = {text(random, n) if random.random() < 0.1 else n: text(random, CORPUS["headers"][n]) for n in names}
    return body, headers, text(random, random.choice(CORPUS["content_types"]))


def arriving(random: random.Random) -> None:
    body, headers, kind = message(random)
    took(Incoming(channel="c", place=text(random, "c/1"), body=body, headers=headers, key=text(random, "k"),
                  content_type=kind, percent_encoded=random.random() < 0.5))  # fmt: skip


def took(incoming: Incoming) -> None:
    event, reason = event_of(incoming, None)
    assert isinstance(event, Event)
    assert not any(category(sign) in ("Cc", "Zl", "Zp") for sign in event.id)
    assert event.headers is not None
    assert reason is None or event.body == incoming.body


def redis(random: random.Random) -> None:
    body, headers, kind = message(random)
    fields = {"data": body, "content_type": kind, **headers}
    content = [part if isinstance(part, bytes) else part.encode(errors="replace") for f in fields.items() for part in f]
    took(_redis._taken(b"%d-0" % random.getrandbits(random.choice((8, 41, 64))), content))


def sqs(random: random.Random) -> None:
    body, headers, _ = message(random)
    values = {name: {"StringValue": value} for name, value in headers.items()}
    given = {"MessageId": "m", "Body": body.decode(errors="replace"), "ReceiptHandle": "r", "MessageAttributes": values}
    took(_sqs._incoming(given))


def rabbitmq(random: random.Random) -> None:
    """Frames of a content header, with bytes changed behind the size of the body."""
    properties = commands.Basic.Properties(content_type="text/plain", headers={"a": 1, "b": {"c": "d"}}, message_id="m")
    whole = bytearray(frame.marshal(header.ContentHeader(0, 4, properties), 1))
    for _ in range(random.randint(1, 6)):
        whole[random.randrange(19, len(whole) - 1)] = random.randrange(256)
    frame.unmarshal(readable(bytes(whole)))


def webhook(random: random.Random) -> None:
    body, headers, kind = message(random)
    named = {name.lower().replace("_", "-"): value for name, value in headers.items()}
    with suppress(InvalidEvent, Refused), door(Refused):
        _requests.events({**named, "content-type": kind, "webhook-id": text(random, "m")}, body)


def kafka(random: random.Random) -> None:
    """As confluent-kafka hands it over: names are text, whatever else may be bytes or missing."""
    body, headers, _ = message(random)
    pairs = [(name, random.choice((value.encode(errors="replace"), None))) for name, value in headers.items()]
    taken = {
        "topic": "t",
        "partition": 0,
        "offset": 7,
        "timestamp": (random.randint(0, 2), random.choice((0, -1, 2**63 - 1, 1_700_000_000_000))),
        "value": random.choice((body, None)),
        "headers": random.choice((pairs, None)),
        "key": random.choice((random.randbytes(8), None)),
    }
    took(_kafka._incoming(SimpleNamespace(**{name: lambda value=value: value for name, value in taken.items()})))


def nats(random: random.Random) -> None:
    body, headers, _ = message(random)
    took(_nats._incoming(text(random, "s.x"), random.getrandbits(63), body, headers, None, None))


def pubsub(random: random.Random) -> None:
    body, headers, _ = message(random)
    sent = Timestamp(seconds=random.choice((0, -(2**63), 2**63 - 1, 1_700_000_000)), nanos=random.getrandbits(31))
    inner = SimpleNamespace(
        message_id="7", attributes=headers, data=body, ordering_key=text(random, "k"), publish_time=sent
    )
    took(_pubsub._incoming(SimpleNamespace(message=inner, ack_id="r")))


def signature(random: random.Random) -> None:
    """Nothing is genuine that we have not signed."""
    names = {"webhook-id": "m", "webhook-timestamp": "1700000000", "webhook-signature": "v1,AAAA v1a,AAAA"}
    headers = {text(random, name) if random.random() < 0.1 else name: text(random, names[name]) for name in names}
    with suppress(InvalidSignature):
        verify(headers, message(random)[0], _SECRETS, tolerance=timedelta(days=36500))
        raise AssertionError("it was taken for genuine")
