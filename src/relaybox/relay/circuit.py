"""Outages: while the broker is away nothing is sent, nothing is counted, and somebody asks when it is back.

    closed ──BrokerUnavailable──► open ──a probe succeeds──► closed

Every publish passes `passage()` first. Batches that were under way wait there with their leases renewed, so an
outage costs neither attempts nor writes to the database. The pause between two probes grows to one second, so delivery
resumes within two of the broker's return, and a broker in trouble is never hammered.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

from ..clock import Clock
from ..errors import BrokerUnavailable, RelayboxError
from ..facts import CircuitChanged, Observers
from ..tasks import cancelled, is_cancelled

log = logging.getLogger("relaybox")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
PROBE_TIMEOUT = 5.0
LONGEST_RETRY_AFTER = timedelta(hours=1)  # a broker that asks for more gets a probe all the same


class Circuit:
    def __init__(self, name: str, probe: Callable[[], Awaitable[None]], observers: Observers, clock: Clock) -> None:
        self._name = name
        self._probe = probe
        self._observers = observers
        self._clock = clock
        self._closed = asyncio.Event()
        self._closed.set()
        self._pause = FIRST_PAUSE
        self._prober: asyncio.Task[None] | None = None
        self._halted = False
        self.reason: str | None = None  # why it is open

    @property
    def is_open(self) -> bool:
        return self.reason is not None

    async def passage(self) -> None:
        """Returns at once while the broker is there, otherwise when it is back, or when the relay stops."""
        await self._closed.wait()

    def trip(self, error: BrokerUnavailable) -> None:
        if self.is_open or self._halted:
            return
        self.reason = str(error)
        self._closed.clear()
        log.warning("%s is unavailable: %s; events wait, no attempt is counted", self._name, self.reason)
        self._observers(CircuitChanged(self._name, True, self.reason))
        self._prober = asyncio.create_task(self._until_back(error.retry_after), name="relaybox-probe")

    def succeeded(self) -> None:
        """A message went out: the next outage starts with short pauses again."""
        self._pause = FIRST_PAUSE

    def halt(self) -> None:
        """Nobody waits for the broker any more: what waited is given back to the database."""
        self._halted = True
        self._closed.set()

    async def stop(self) -> None:
        self.halt()
        await cancelled(self._prober)

    async def _until_back(self, retry_after: timedelta | None) -> None:
        started = self._clock.monotonic()
        while True:
            if retry_after is not None:
                await self._clock.sleep(min(retry_after, LONGEST_RETRY_AFTER).total_seconds())
            await self._clock.sleep(self._pause * random.uniform(0.5, 1.0))
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            away = await self._ask()
            if away is None:
                break
            self.reason, retry_after = str(away), away.retry_after
        took = self._clock.monotonic() - started
        log.warning("%s is back after %.1f s", self._name, took)
        self.reason = None
        self._closed.set()
        self._observers(CircuitChanged(self._name, False, f"back after {took:.1f} s"))

    async def _ask(self) -> BrokerUnavailable | None:
        """None when the broker is there. Whatever else happens to a probe is a reason to ask again."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                await self._probe()
        except BrokerUnavailable as error:
            return error
        except TimeoutError:
            return BrokerUnavailable(f"no answer to a probe within {PROBE_TIMEOUT:g} s")
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return BrokerUnavailable("the client gave up a probe")
        except RelayboxError as error:
            return self._failed(str(error))
        except Exception as error:
            return self._failed(type(error).__name__)
        return None

    def _failed(self, reason: str) -> BrokerUnavailable:
        """No outage, but what only an operator can change: told once."""
        if reason != self.reason:
            log.error("a probe of %s failed: %s", self._name, reason)
        return BrokerUnavailable(reason)
