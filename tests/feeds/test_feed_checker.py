"""The trial of `python -m chaos.feeds`, in short: and it finds a bug that is planted."""

from __future__ import annotations

from chaos.feed_shapes import FEEDS
from chaos.feeds import Trial

from kit import make_postgres


def test_no_refresh_is_torn_and_the_deltas_make_the_tables() -> None:
    trial = Trial(make_postgres(), 150)
    trial.run()
    assert trial.errors == []
    assert trial.torn == []
    assert trial.replayed >= 150
    assert trial.claim_checks > 20
    assert trial.replayed > trial.claim_checks
    assert trial.refreshes["differential"] > 50
    assert trial.refreshes["full"] > len(FEEDS)


def test_the_judge_finds_changes_that_go_unseen() -> None:
    trial = Trial(make_postgres(), 60, deaf=True)
    trial.run()
    assert trial.errors == []
    assert any(line.startswith("filter:") for line in trial.torn)
