"""Parts of messages that many have: what somebody may have meant, and how many there were."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The end of a message about a name that nobody knows: the one that is most like it, or what is said instead."""
    by_letters = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_letters, 1, cutoff=0.65)
    return f"; did you mean {by_letters[near[0]]!r}?" if near else otherwise


def counted(number: int, thing: str) -> str:
    """1 event, 2 events, no events."""
    return f"1 {thing}" if number == 1 else f"{f'{number:,}' if number else 'no'} {thing}s"
