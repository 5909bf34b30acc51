"""The seam trials in short, and their checker on records made by hand: it must see every kind of violation."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from chaos.seams.checker import AFTER, BEFORE, SECOND, Message, Promise, Report, Window, judge  # noqa: E402
from chaos.seams.notes import Note, Notes, Reader  # noqa: E402
from chaos.seams.plan import SHORT, chosen, missing_here, not_tried, plans  # noqa: E402
from chaos.seams.planted import PLANTS, Plant, fits  # noqa: E402
from chaos.seams.run import run  # noqa: E402

T = 1_000 * SECOND
TRUTH = {"a": Message("k", 1), "b": Message("k", 2)}


def note(op: str, at: float, id: str = "", who: str = "r1", stream: str = "") -> Note:
    message = TRUTH.get(id, Message("k", 9))
    return Note(op, int(T + at * SECOND), who, id, message.key, message.n, stream)


def handled(id: str, at: float, who: str = "r1") -> list[Note]:
    return [note("begin", at, id, who), note("done", at + 0.01, id, who)]


GOOD = [note("acked", 0.0, "a"), note("acked", 0.0, "b"), *handled("a", 1.0), *handled("b", 2.0)]


def window(begin: float, end: float, **how: bool) -> Window:
    return Window("fault", int(T + begin * SECOND), int(T + end * SECOND), **how)


def kinds(report: Report) -> set[str]:
    return {kind for kind, found in report.violations.items() if found}


def test_nothing_wrong() -> None:
    report = judge(TRUTH, GOOD, [], Promise(ordered=True))
    assert report.verdict == "PASS"
    assert report.figures == {"messages": 2, "deliveries": 2, "duplicates": 0}


def test_lost() -> None:
    assert kinds(judge(TRUTH, GOOD[:4], [], Promise())) == {"lost"}
    begun = [*GOOD[:5]]
    assert kinds(judge(TRUTH, begun, [], Promise())) == {"lost"}, "begun is not handled"


def test_lost_to_one_of_two_groups() -> None:
    other = [Note(n.op, n.at, n.who, n.id, n.key, n.n, "late") for n in handled("a", 1.0)]
    assert kinds(judge(TRUTH, [*GOOD, *other], [], Promise(streams=("", "late")))) == {"lost"}


def test_ghost() -> None:
    assert kinds(judge(TRUTH, [*GOOD, *handled("x", 3.0)], [], Promise())) == {"ghost"}


def test_what_a_fail_over_forgot_may_be_in_hand_for_a_while() -> None:
    over = window(2.5, 3.0, forgets=True)
    assert judge(TRUTH, [*GOOD, *handled("x", 3.5)], [over], Promise()).passed
    late = 3.0 + AFTER / SECOND + 0.1
    assert kinds(judge(TRUTH, [*GOOD, *handled("x", late)], [over], Promise())) == {"ghost"}


def test_untruth() -> None:
    lie = note("acked", 3.0, "x")
    assert kinds(judge(TRUTH, [*GOOD, lie], [], Promise())) == {"untruth"}
    assert judge(TRUTH, [*GOOD, lie], [window(2.5, 3.5, forgets=True)], Promise()).passed
    assert kinds(judge(TRUTH, [*GOOD, lie], [window(1.0, 2.5, forgets=True)], Promise())) == {"untruth"}


def test_order() -> None:
    swapped = [*GOOD[:2], *handled("b", 1.0), *handled("a", 2.0)]
    assert kinds(judge(TRUTH, swapped, [], Promise(ordered=True))) == {"order"}
    assert judge(TRUTH, swapped, [], Promise()).passed
    overlapping = [
        *GOOD[:2],
        note("begin", 1.0, "a"),
        note("begin", 1.5, "b"),
        note("done", 2, "a"),
        note("done", 2, "b"),
    ]
    assert kinds(judge(TRUTH, overlapping, [], Promise(ordered=True))) == {"order"}


def test_a_repetition_keeps_the_order() -> None:
    again = [*GOOD, *handled("a", 2.5, "r2")]
    assert judge(TRUTH, again, [window(1.0, 2.0)], Promise(ordered=True)).passed


def test_duplicates_need_a_reason() -> None:
    again = [*GOOD, *handled("a", 2.5, "r2")]
    assert kinds(judge(TRUTH, again, [], Promise())) == {"duplicate"}
    assert kinds(judge(TRUTH, again, [window(1.0, 2.0, duplicates=False)], Promise())) == {"duplicate"}
    assert judge(TRUTH, again, [window(1.5, 2.0)], Promise()).passed
    long_before = 1.0 + BEFORE / SECOND + 0.1
    assert kinds(judge(TRUTH, again, [window(long_before, long_before + 1)], Promise())) == {"duplicate"}


def test_a_seek_repeats_everything_before_it() -> None:
    again = [*GOOD, *handled("a", 100.0)]
    assert judge(TRUTH, again, [window(99.0, 99.5, again=True)], Promise()).passed
    assert kinds(judge(TRUTH, again, [window(101.0, 102.0, again=True)], Promise())) == {"duplicate"}


def test_a_failure_explains_one_repetition() -> None:
    failed = [note("begin", 0.5, "a"), note("failed", 0.6, "a"), *GOOD]
    assert judge(TRUTH, failed, [], Promise()).passed
    twice = [*failed, *handled("a", 3.0)]
    assert kinds(judge(TRUTH, twice, [], Promise())) == {"duplicate"}


def test_a_failure_explains_the_repetition_after_it() -> None:
    """Not the one that a fault explains."""
    later = [note("begin", 20.0, "a"), note("failed", 20.1, "a"), *handled("a", 20.5)]
    explained = [note("begin", 0.5, "a"), note("failed", 0.6, "a"), *GOOD, *later]
    assert judge(TRUTH, explained, [window(1.0, 2.0)], Promise()).passed
    assert kinds(judge(TRUTH, explained, [window(30.0, 32.0)], Promise())) == {"duplicate"}


def test_a_process_without_a_processor_says_so() -> None:
    stalled = Note("stall", int(T + 2 * SECOND), "r1", seconds=1.5)
    assert judge(TRUTH, [*GOOD, *handled("a", 2.5, "r2"), stalled], [], Promise()).passed


def test_effects_are_there_once() -> None:
    promise = Promise(effects=True)
    assert judge(TRUTH, GOOD, [], promise, {"a": 1, "b": 1}).passed
    again = [*GOOD, *handled("a", 3.0)]
    assert judge(TRUTH, again, [], promise, {"a": 1, "b": 1}).passed, "a run that was rolled back"
    assert kinds(judge(TRUTH, again, [], promise, {"a": 2, "b": 1})) == {"effect"}
    assert kinds(judge(TRUTH, GOOD, [], promise, {"a": 1})) == {"lost"}
    assert kinds(judge(TRUTH, GOOD, [], promise, {"a": 1, "b": 1, "x": 1})) == {"effect"}


def test_nothing_begins_after_the_stop() -> None:
    late = [*GOOD[:4], note("stopping", 1.5), *handled("b", 2.0)]
    assert kinds(judge(TRUTH, late, [], Promise())) == {"late"}
    elsewhere = [*GOOD[:4], note("stopping", 1.5), *handled("b", 2.0, "r2")]
    assert judge(TRUTH, elsewhere, [], Promise()).passed


@given(st.data())
def test_whatever_is_taken_away_or_exchanged_is_seen(data: st.DataObject) -> None:
    size = data.draw(st.integers(2, 30))
    keys = data.draw(st.integers(1, 3))
    truth = {f"m{n}": Message(f"k{n % keys}", n // keys + 1) for n in range(size)}
    notes = [
        Note(op, T + (2 * n + half) * SECOND // 100, "r1", f"m{n}")
        for n in range(size)
        for half, op in enumerate(("begin", "done"))
    ]
    assert judge(truth, notes, [], Promise(ordered=True)).passed
    victim = data.draw(st.integers(0, size - 1))
    what = data.draw(st.sampled_from(("lost", "duplicate", "ghost", "order")))
    if what == "lost":
        notes = [n for n in notes if n.id != f"m{victim}"]
    elif what == "duplicate":
        notes += [Note("begin", T + 10 * SECOND, "r2", f"m{victim}"), Note("done", T + 11 * SECOND, "r2", f"m{victim}")]
    elif what == "ghost":
        del truth[f"m{victim}"]
    else:
        if victim < keys:
            victim = keys - 1 + 1 if size > keys else 0
        if size <= keys:
            return
        notes = [Note(n.op, n.at - SECOND * 100, n.who, n.id) if n.id == f"m{victim}" else n for n in notes]
    assert what in kinds(judge(truth, notes, [], Promise(ordered=True)))


def test_notes_are_read_while_they_are_written(tmp_path: Path) -> None:
    notes, reader = Notes(tmp_path / "r1.notes"), Reader(tmp_path)
    notes.note("ready")
    assert [n.op for n in reader.more()] == ["ready"]
    notes.note("begin", id="a", key="k", n=3)
    with (tmp_path / "r1.notes").open("a") as file:
        file.write('{"op": "do')
    assert [(n.op, n.id, n.who) for n in reader.more()] == [("ready", "", "r1"), ("begin", "a", "r1")]


def test_every_pair_is_tried_or_has_a_reason() -> None:
    from chaos.seams.faults import FAULTS
    from chaos.seams.life import LIVES
    from chaos.seams.products import PRODUCTS

    everything = plans()
    names = [plan.name for plan in everything]
    assert len(names) == len(set(names))
    alone = {
        (plan.fault or plan.life, plan.product, plan.engine) for plan in everything if not (plan.fault and plan.life)
    }
    wanted = {
        (what, product.name, engine)
        for what in (*FAULTS, *LIVES)
        for product in PRODUCTS.values()
        for engine in product.engines
    }
    assert alone | not_tried().keys() == wanted
    assert not alone & not_tried().keys()
    assert {(p.fault, p.life) for p in everything if p.fault and p.life} == {(f, e) for f in FAULTS for e in LIVES}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_every_repair_that_is_taken_back_is_still_there(plant: Plant) -> None:
    assert fits(plant), "the source has changed: write down again what the repair was"
    assert plant.trial in [plan.name for plan in plans()]


@pytest.mark.timeout(400)
def test_short_trials(tmp_path: Path) -> None:
    chosen_plans = chosen([], short=True)
    assert [plan.name for plan in chosen_plans] == list(SHORT)
    todo = [plan for plan in chosen_plans if not missing_here(plan)]
    results = run(todo, 1, tmp_path / "results.jsonl")  # side by side they starve each other: a start takes too long
    assert len(results) == len(todo)
    assert [(r["trial"], r["verdict"], r.get("examples")) for r in results if r["verdict"] != "PASS"] == []
