"""python -m fuzz TARGET [--inputs 200000] [--first 0]: nothing but the declared errors may escape.

Every input follows from its number alone. A run that was cut goes on with `--first`, and a failure names the number
that makes it again. What a failure shows is added to the corpus.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from typing import Any

from . import arriving, inside

TARGETS: dict[str, Callable[[random.Random], Any]] = {
    target.__name__: target
    for target in (
        *(arriving.arriving, arriving.kafka, arriving.nats, arriving.rabbitmq, arriving.redis, arriving.pubsub),
        *(arriving.sqs, arriving.webhook, arriving.signature),
        *(inside.contracts, inside.events, inside.stored, inside.urls),
    )
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
