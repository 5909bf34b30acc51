"""Which trials there are: every pair of fault and product, of life event and product, and for topics every pair of
fault and life event, each with one of the topic products in turn. Always the same list in the same order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from .faults import FAULTS, unfit
from .life import LIVES
from .products import POSTGRES, PRODUCTS, Product
from .trial import Plan

# A few that meet most of the machinery, for the tests: each pair is one that went wrong once.
SHORT = (
    "database away × push group, ordered",
    "black hole × plain",
    "fail-over × ordered by shards",
    "SIGTERM × ordered by shards",
    "pool exhausted × push group, ordered",
    "kill -9 × inbox, sync on sqlite",
    "fork × plain",
    "replay × inbox, async",
    "rebalance × push group, bitmap",
)


def plans() -> list[Plan]:
    return list(chain(_faults(), _lives(), _pairs()))


def _faults() -> Iterator[Plan]:
    for fault in FAULTS.values():
        for product in PRODUCTS.values():
            for engine in product.engines:
                if not unfit(fault, product, engine):
                    yield Plan(product.name, engine, fault=fault.name)


def _lives() -> Iterator[Plan]:
    for life in LIVES.values():
        for product in PRODUCTS.values():
            for engine in product.engines:
                if not life.fits(product):
                    yield Plan(product.name, engine, life=life.name)


def _pairs() -> Iterator[Plan]:
    topics = [product for product in PRODUCTS.values() if product.topic]
    turn = 0
    for fault in FAULTS.values():
        for life in LIVES.values():
            fitting = [p for p in topics if not life.fits(p) and not unfit(fault, p, POSTGRES)]
            turn += 1
            yield Plan(fitting[turn % len(fitting)].name, POSTGRES, fault=fault.name, life=life.name)


def not_tried() -> dict[tuple[str, str, str], str]:
    """Fault or life event, product, engine: why there is no such pair."""
    found = {}
    for product in PRODUCTS.values():
        for engine in product.engines:
            for fault in FAULTS.values():
                if why := unfit(fault, product, engine):
                    found[fault.name, product.name, engine] = why
            for life in LIVES.values():
                if why := life.fits(product):
                    found[life.name, product.name, engine] = why
    return found


def missing_here(plan: Plan) -> str:
    """What this machine lacks for the trial; empty if nothing."""
    return FAULTS[plan.fault].needs() if plan.fault else ""


def chosen(only: list[str], short: bool) -> list[Plan]:
    """By whole names, or by patterns."""
    everything = plans()
    if short:
        return [plan for name in SHORT for plan in everything if plan.name == name]
    if not only:
        return everything
    exact = [plan for plan in everything if plan.name in only]
    return exact or [plan for plan in everything if any(re.search(part, plan.name) for part in only)]


def products_in(found: list[Plan]) -> list[Product]:
    names = {plan.product for plan in found}
    return [product for product in PRODUCTS.values() if product.name in names]
