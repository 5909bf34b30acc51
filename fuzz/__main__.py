"""python -m fuzz TARGET [--inputs 200000] [--first 0]: nothing but the declared errors may escape.

Every input follows from its number alone. A run that was cut goes on with `--first`, and a failure names the number
that makes it again. What a failure shows is added to the corpus.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pamqp import commands, frame, header

from relaybox import Event
from relaybox.brokers.aws.sqs_source import SqsSource
from relaybox.brokers.door import door, event_of
from relaybox.brokers.rabbitmq.frames import readable
from relaybox.brokers.redis.source import RedisStreamSource
from relaybox.brokers.spi import Incoming
from relaybox.contracts.encoding import decoded
from relaybox.errors import ContractViolation, InvalidEvent
from relaybox.ingest.webhook_events import Requests
from relaybox.ingest.webhook_request import Refused
from relaybox.types import Reading

CORPUS = json.loads((Path(__file__).parent / "corpus.json").read_text())
LONG = ["[" * 5000, "9" * 5000, "x" * 9000]
_redis = RedisStreamSource("redis://localhost", stream="s", consumer="fuzz")
_sqs = SqsSource("sqs://eu-central-1", queue="q")
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
    assert event.id.isprintable()
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


def contracts(random: random.Random) -> None:
    with suppress(ContractViolation):
        decoded(message(random)[0])


TARGETS: dict[str, Callable[[random.Random], Any]] = {
    target.__name__: target for target in (arriving, redis, sqs, rabbitmq, webhook, contracts)
}


def run(target: str, first: int, inputs: int) -> None:
    for number in range(first, first + inputs):
        try:
            TARGETS[target](random.Random(f"{target} {number}"))
        except Exception as error:
            raise AssertionError(f"input {number} of {target} escapes: {error!r:.300}") from error


if __name__ == "__main__":
    parser = argparse.ArgumentParser("fuzz", description=__doc__)
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    for name in TARGETS if given.target == "all" else [given.target]:
        run(name, given.first, given.inputs)
        print(f"{name}: inputs {given.first} to {given.first + given.inputs - 1}, nothing escaped")
