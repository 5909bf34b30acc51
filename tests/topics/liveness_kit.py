"""Members of groups with real heartbeats, in time that the test moves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from relaybox import Retry, Settings
from relaybox.clock import SYSTEM_CLOCK, Clock
from relaybox.codec import JSON_CODEC
from relaybox.facts import Fact, Observers
from relaybox.store.topics import GroupRow, GroupState
from relaybox.topics.context import TopicContext
from relaybox.topics.group import AsyncGroup, Group
from relaybox.topics.join import Joining
from relaybox.topics.liveness import Heartbeats, Membership
from relaybox.types import DeliverySettings

from .kit import World

PATIENCE = 20.0
QUICK = Settings(delivery=DeliverySettings(instance_ttl="500ms", retry=Retry(base="5ms")))


@dataclass
class Told:
    """What a member was told, for tests to wait on."""

    states: list[GroupState] = field(default_factory=list)
    losses: int = 0

    def told(self, state: GroupState) -> None:
        self.states.append(state)

    def lost(self) -> None:
        self.losses += 1


@asynccontextmanager
async def beating(
    world: World, *, url: str | None = None, settings: Settings = QUICK, clock: Clock = SYSTEM_CLOCK
) -> AsyncIterator[Heartbeats]:
    heartbeats = Heartbeats(url or world.url, world.store, settings, clock, Observers([]))
    try:
        yield heartbeats
    finally:
        await heartbeats.close()


async def joined(heartbeats: Heartbeats, group: GroupRow, name: str = "m", **options: Any) -> tuple[Membership, Told]:
    told = Told()
    membership = await heartbeats.join(group, name, told=told.told, lost=told.lost, **options)
    return membership, told


def state_of(world: World, name: str = "g") -> GroupState:
    group = world.run(world.store.group("t", name))
    assert group is not None
    state: GroupState = group.state
    return state


def check(world: World) -> list[Any]:
    """What the maintenance leader does every minute."""
    verdicts: list[Any] = []
    for topic in world.run(world.store.to_check(world.now), tx=False):
        verdicts += world.run(world.store.check_groups(topic, world.now))
    return verdicts


def context(
    world: World, facts: list[Fact] | None = None, clock: Clock = SYSTEM_CLOCK, db: Any = None
) -> TopicContext[Any]:
    def seen(fact: Fact) -> None:
        if facts is not None:
            facts.append(fact)

    return TopicContext(
        target=world.url,
        db=db or world.db,
        store=world.store,
        settings=QUICK,
        clock=clock,
        observers=Observers([seen]),
        codec=JSON_CODEC,
        wake=lambda: None,
    )


def group_at(context: TopicContext[Any], name: str = "g", topic: str = "t", **options: Any) -> Group:
    return Group(context, _Box(), Joining(topic=topic, group=name, clock=context.clock, **options))


def async_group_at(context: TopicContext[Any], name: str = "g", topic: str = "t", **options: Any) -> AsyncGroup:
    return AsyncGroup(context, _Box(), Joining(topic=topic, group=name, clock=context.clock, **options))


class _Box:
    """Groups of a test that makes no service of them."""

    settings = QUICK

    def _topic_context(self, closing: Any) -> TopicContext[Any]:
        raise NotImplementedError

    def _works(self, service: Any, running: bool) -> None:
        raise NotImplementedError
