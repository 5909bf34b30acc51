"""Judges an end-to-end trial by what two databases and a file hold at its end. Imports nothing of relaybox.

lost         committed by A, without an effect in B
ghosts       an effect in B of something A has never committed
twice        more than one effect
wrong        an effect that says something else than A did, or a balance that is not the sum of what A did
inversions   ordered inbox: an effect that was not committed as the next one of its account
replies      an effect without its one reply in B's outbox, or a reply without an effect
unsent       a reply that did not come out of B, or came first after a later one of its account
died         dead letters, anywhere
left         what still waits, anywhere
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

EXAMPLES = 5


class Movement(NamedTuple):
    """What A did to an account, and under which number among all that was done to it."""

    account: str
    number: int
    amount: int


class Effect(NamedTuple):
    event_id: str
    movement: Movement
    turn: int  # how many effects the account has had, this one included: drawn under its lock


class Reply(NamedTuple):
    cause: str
    account: str
    turn: int


@dataclass
class History:
    truth: dict[str, Movement]
    effects: list[Effect]
    balances: dict[str, tuple[int, int]]  # amount and turns
    replies: list[Reply]
    sent: list[Reply]
    arrived: list[tuple[str, int]] = field(default_factory=list)  # account and number, in the order of the inbox
    died: int = 0
    left: int = 0


def judge(history: History, *, ordered: bool) -> dict[str, Any]:
    found: dict[str, list[str]] = defaultdict(list)
    truth, effects = history.truth, history.effects
    copies = Counter(effect.event_id for effect in effects)
    found["lost"] += truth.keys() - copies.keys()
    found["ghosts"] += copies.keys() - truth.keys()
    found["twice"] += [event_id for event_id, count in copies.items() if count > 1]
    found["wrong"] += [e.event_id for e in effects if truth.get(e.event_id, e.movement) != e.movement]
    found["wrong"] += _off_balance(history)
    if ordered:
        found["inversions"] += [e.event_id for e in effects if e.turn != e.movement.number]
    answered = Counter(reply.cause for reply in history.replies)
    found["replies"] += (answered - Counter(copies.keys())).keys() | (copies.keys() - answered.keys())
    found["unsent"] += {reply.cause for reply in history.replies} - {reply.cause for reply in history.sent}
    found["unsent"] += _out_of_order((reply.account, reply.turn) for reply in history.sent)
    bad = {name: len(what) for name, what in found.items() if what}
    bad |= {name: count for name, count in (("died", history.died), ("left", history.left)) if count}
    return {
        "committed": len(truth),
        "effects": len(effects),
        "replies": len(history.replies),
        "reply_copies": len(history.sent) - len({reply.cause for reply in history.sent}),
        "arrived_out_of_order": len(_out_of_order(history.arrived)),
        "violations": bad,
        "examples": {name: sorted(what)[:EXAMPLES] for name, what in found.items() if what},
        "verdict": "FAIL" if bad else "PASS",
    }


def _off_balance(history: History) -> list[str]:
    amounts: Counter[str] = Counter()
    moves: Counter[str] = Counter()
    for movement in history.truth.values():
        amounts[movement.account] += movement.amount
        moves[movement.account] += 1
    accounts = moves.keys() | history.balances.keys()
    return [name for name in accounts if history.balances.get(name, (0, 0)) != (amounts[name], moves[name])]


def _out_of_order(pairs: Any) -> list[str]:
    """Accounts and numbers whose first copy comes after that of a later number."""
    highest: dict[str, int] = defaultdict(int)
    seen: set[tuple[str, int]] = set()
    late = []
    for account, number in pairs:
        if number < highest[account] and (account, number) not in seen:
            late.append(f"{account}: {number}")
        seen.add((account, number))
        highest[account] = max(highest[account], number)
    return late


def read(url_a: str, url_b: str, sent: Path) -> History:
    with psycopg.connect(url_a) as a, psycopg.connect(url_b) as b:
        truth = a.execute("SELECT event_id, account, number, amount FROM movement").fetchall()
        effects = b.execute("SELECT event_id, account, number, amount, turn FROM ledger").fetchall()
        balances = b.execute("SELECT account, amount, turn FROM balance").fetchall()
        replies = b.execute("SELECT convert_from(payload, 'UTF8') FROM outbox_event").fetchall()
        arrived = b.execute("SELECT aggregate_id, headers FROM inbox ORDER BY seq").fetchall()
        died = [count(a, "outbox_event_dead"), count(b, "outbox_event_dead"), count(b, "inbox_dead")]
        left = waiting(a, b)
    return History(
        truth={row[0]: Movement(*row[1:]) for row in truth},
        effects=[Effect(event_id, Movement(*movement), turn) for event_id, *movement, turn in effects],
        balances={account: (amount, turn) for account, amount, turn in balances},
        replies=[Reply(**json.loads(row[0])) for row in replies],
        sent=[Reply(**json.loads(line)["data"]) for line in sent.read_text().splitlines()] if sent.exists() else [],
        arrived=[(account, int(json.loads(headers)["sequence"])) for account, headers in arrived],
        died=sum(died),
        left=left,
    )


def count(connection: psycopg.Connection[Any], table: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
    assert row is not None
    return int(row[0])


def waiting(a: psycopg.Connection[Any], b: psycopg.Connection[Any]) -> int:
    """What nobody has finished: also what a relay has claimed."""
    outbox = "(SELECT seq FROM outbox_event_pending UNION ALL SELECT unnest(items) FROM outbox_event_claim) waiting"
    return count(a, outbox) + count(b, outbox) + count(b, "inbox_pending")
