"""The life of a group: what each state means for events, and every verb and job that moves a group to another. Pure.

Ops ask `MOVES` what becomes of a group and `effects` what else that changes; statements take their lists of states
from `STANDING`. docs/concepts/groups.md shows these tables to people.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, get_args

GroupState = Literal["active", "paused", "dead", "cancelled"]
Condition = Literal["active", "paused", "dead", "stalled", "cancelled"]  # stalled: dead, and only an operator ends that
Verb = Literal["start", "beat", "pause", "resume", "cancel", "time out", "stall"]
Effect = Literal["fence", "leave", "require again"]


class GroupStanding(NamedTuple):
    """What a group's state means for the topic's events."""

    delivered: bool  # its members are given events
    required: bool  # events that are written wait for it: their marks name it
    kept: bool  # what it has not passed stays until `max_retention`
    promised: bool  # what it was to have stays for `retention`; what goes before it had it is counted as lost


STANDING: Final[Mapping[GroupState, GroupStanding]] = {
    "active": GroupStanding(delivered=True, required=True, kept=True, promised=True),
    "paused": GroupStanding(delivered=False, required=True, kept=True, promised=True),
    "dead": GroupStanding(delivered=False, required=False, kept=False, promised=True),
    "cancelled": GroupStanding(delivered=False, required=False, kept=False, promised=False),
}

# What a verb makes of a group in each condition; None: refused. A start of a cancelled group makes a new generation.
MOVES: Final[Mapping[Verb, Mapping[Condition, Condition | None]]] = {
    "start": {
        "active": "active",
        "paused": "paused",
        "dead": "active",
        "stalled": "stalled",
        "cancelled": "active",
    },
    "beat": {
        "active": "active",
        "paused": "paused",
        "dead": "active",
        "stalled": "stalled",
        "cancelled": "cancelled",
    },
    "pause": {"active": "paused", "paused": "paused", "dead": None, "stalled": None, "cancelled": None},
    "resume": {"active": "active", "paused": "active", "dead": "active", "stalled": "active", "cancelled": None},
    "cancel": dict.fromkeys(get_args(Condition), "cancelled"),
    "time out": {"active": "dead", "paused": None, "dead": "dead", "stalled": "stalled", "cancelled": None},
    "stall": {"active": "stalled", "paused": None, "dead": "dead", "stalled": "stalled", "cancelled": None},
}
TOWARDS: Final[Mapping[GroupState, Verb]] = {
    "active": "resume",
    "paused": "pause",
    "dead": "time out",
    "cancelled": "cancel",
}


def state_of(condition: Condition) -> GroupState:
    return "dead" if condition == "stalled" else condition


def reachable(condition: Condition) -> list[GroupState]:
    """States that some verb brings this group to, other than its own."""
    to = {moves[condition] for verb, moves in MOVES.items() if verb != "start"}
    return sorted({state_of(one) for one in to if one is not None} - {state_of(condition)})


def effects(was: Condition, now: Condition) -> frozenset[Effect]:
    """What changes beside the row, in the same transaction: `fence`, what members hold is free and their word counts no
    more; `leave`, the group has no place any more; `require again`, open events wait for it again."""
    found: set[Effect] = set()
    if was == now:
        return frozenset()
    if state_of(now) in ("dead", "cancelled"):
        found.add("fence")
    if now == "cancelled":
        found.add("leave")
    if not STANDING[state_of(was)].required and STANDING[state_of(now)].required:
        found.add("require again")
    return frozenset(found)


def listed() -> dict[str, str]:
    """The states of each standing as SQL writes them: `state IN ({kept_states})`."""
    return {
        f"{name}_states": ", ".join(f"'{state}'" for state, standing in STANDING.items() if getattr(standing, name))
        for name in GroupStanding._fields
    }


def standstill(topic: str, group: str, condition: Condition, reason: str | None) -> str | None:
    """Why a group is given nothing, and what ends that; None: it is given what there is."""
    verb = {
        "paused": "`relaybox groups resume {} {}`",
        "dead": "`relaybox groups resume {} {}`, or until a member is heard of",
        "stalled": "its cause is mended and `relaybox groups resume {} {}`",
        "cancelled": "it is made anew",
    }.get(condition)
    if verb is None:
        return None
    why = f" ({reason})" if reason else ""
    return (
        f"group {group!r} of topic {topic!r} is {condition}{why}: it is given nothing until {verb.format(topic, group)}"
    )
