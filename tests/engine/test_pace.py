"""When NOTIFYs go out: pure arithmetic."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from relaybox.engine.wakeups import NotifyPace


def test_after_quiet_at_once_and_in_a_burst_together() -> None:
    pace = NotifyPace()
    pace.ask(1.0, NotifyPace.SOON)
    assert pace.next() == 1.0
    pace.sent(1.0)
    assert pace.next() == math.inf
    for now in (1.0005, 1.0008, 1.0012):
        pace.ask(now, NotifyPace.SOON)
    assert pace.next() == 1.0 + NotifyPace.BUSY
    pace.sent(1.010)
    pace.ask(1.010 + NotifyPace.QUIET, NotifyPace.SOON)
    assert pace.next() == 1.010 + NotifyPace.QUIET


def test_when_nobody_listens_the_question_is_rare() -> None:
    pace = NotifyPace()
    pace.ask(1.0, NotifyPace.SOON)
    pace.sent(1.0)
    pace.unheard(1.0)
    pace.ask(1.2, NotifyPace.SOON)
    assert pace.next() == 1.0 + NotifyPace.DEAF
    pace.sent(2.0)
    pace.ask(2.5, NotifyPace.SOON)
    assert pace.next() == 2.5


def test_asking_again_never_postpones() -> None:
    """Writes whose commits cannot be seen, faster than the first delay, must not silence the notifier."""
    pace = NotifyPace()
    sent = []
    for tick in range(1000):
        now = tick / 1000
        pace.ask(now, NotifyPace.LATER)
        if pace.next() <= now:
            pace.sent(now)
            sent.append(now)
    assert len(sent) > 50


@given(st.lists(st.tuples(st.floats(0, 0.05), st.sampled_from([NotifyPace.SOON, NotifyPace.LATER])), max_size=60))
def test_every_question_is_answered_soon_and_no_faster_than_quiet(steps: list[tuple[float, frozenset[float]]]) -> None:
    pace, now, last = NotifyPace(), 0.0, -math.inf
    for gap, delays in steps:
        until = now + gap
        while pace.next() <= until:
            at = max(pace.next(), now)
            assert at - last >= NotifyPace.QUIET - 1e-9
            pace.sent(at)
            last = now = at
        now = until
        pace.ask(now, delays)
        assert pace.next() <= now + max(min(delays), NotifyPace.BUSY) + 1e-9


def test_what_is_due_need_not_be_asked_for_again() -> None:
    pace = NotifyPace()
    assert not pace.asked(NotifyPace.SOON)
    pace.ask(1.0, NotifyPace.LATER)
    assert pace.asked(NotifyPace.LATER)
    assert not pace.asked(NotifyPace.SOON), "that would be sooner"
    pace.sent(1.01)
    assert not pace.asked(NotifyPace.LATER), "the first of them has gone"


def test_who_waits_is_told_only_of_what_comes_sooner() -> None:
    pace = NotifyPace()
    assert pace.ask(10.0, NotifyPace.LATER)
    assert not pace.ask(10.001, NotifyPace.LATER), "it is due already"
    assert pace.ask(10.002, NotifyPace.SOON)
    pace.sent(10.002)
    pace.unheard(10.002)
    assert not pace.ask(10.003, NotifyPace.SOON), "nobody listens for a while, however often it is asked"
