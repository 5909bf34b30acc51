"""What encryption costs per event: a vault with a remembered key, payloads of 256 bytes, one process.

    python -m benchmarks.encryption

Of an outbox, where payloads are encrypted, and of an inbox with a vault, where payload and headers are.

A line per step: microseconds of processor time for a plain event and for an encrypted one, and how many times as much
that is. The median of several rounds, plain and encrypted in turn.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median

from relaybox import Event, Inbox, Keyring, Outbox, Vault

EVENTS = 1_000
ROUNDS = 15
PAYLOAD = {"order": 4711, "text": "x" * (256 - 27)}


def made() -> list[Event]:
    return [Event("OrderPlaced", PAYLOAD, tenant="shop", key=f"order-{n % 50}") for n in range(EVENTS)]


def timed(work: Callable[[], object]) -> float:
    """Microseconds of this process for an event: other work of the machine does not count."""
    began = time.process_time()
    work()
    return (time.process_time() - began) / EVENTS * 1e6


def written(box: Outbox) -> None:
    with box.transaction() as tx:
        box.write_all(tx, made())


def opened(events: Sequence[Event]) -> None:
    for event in events:
        _ = event.payload


def sealed(vault: Vault, events: Sequence[Event]) -> list[Event]:
    try:
        next(vault.seal(events))
    except StopIteration as ended:
        found: list[Event] = ended.value
        return found
    raise RuntimeError("the key was not remembered")


def tell(name: str, plain: float, encrypted: float) -> None:
    print(f"{name:<34} {plain:8.2f} {encrypted:10.2f} {encrypted / plain:7.2f}")


def main() -> None:
    assert 250 <= len(made()[0].body) <= 262
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        url = f"sqlite:///{Path(folder) / 'bench.db'}"
        with Vault(url, Keyring({"bench": b"k" * 32})) as vault, closing(Outbox(url)) as plain:
            plain.migrate()
            vault.migrate()
            with closing(Outbox(url, codec=vault)) as secret:
                written(secret)
                written(secret)
                boxes = [
                    stack.enter_context(Inbox(url, name, vault=v)) for name, v in (("clear", None), ("dark", vault))
                ]
                for box in boxes:
                    box.migrate()
                    box.accept_all(None, made())
                    processed(box)
                measure(plain, secret, vault, *boxes)


def processed(box: Inbox) -> None:
    done = box.process(lambda event: event.payload, batch=100).once().done
    assert done == EVENTS, done


def accepted(box: Inbox) -> None:
    box.accept_all(None, made())


def measure(plain: Outbox, secret: Outbox, vault: Vault, clear: Inbox, dark: Inbox) -> None:
    steps: dict[str, tuple[list[float], list[float]]] = {}
    for _ in range(ROUNDS):
        events = made()
        hidden = sealed(vault, events)  # anew: an event remembers its headers once they were read
        for name, first, second in (
            ("make an event, and encrypt it", made, lambda: sealed(vault, made())),
            ("event.payload, decrypted", partial(opened, events), partial(opened, hidden)),
            ("write in batches of 1000 (SQLite)", lambda: written(plain), lambda: written(secret)),
            ("accept 1000 in an inbox (SQLite)", partial(accepted, clear), partial(accepted, dark)),
            ("process them, 100 at a time", partial(processed, clear), partial(processed, dark)),
        ):
            ours = steps.setdefault(name, ([], []))
            ours[0].append(timed(first))
            ours[1].append(timed(second))
    print(f"{'µs per event':<34} {'plain':>8} {'encrypted':>10} {'ratio':>7}")
    for name, (without, with_) in steps.items():
        tell(name, median(without), median(with_))


if __name__ == "__main__":
    main()
