"""What one message can be refused for, and that the others of its batch do not suffer."""

from __future__ import annotations

import traceback

import pytest

from ...brokers.spi import Sink
from ...errors import BrokerUnavailable, ConfigError, DeliveryError, Reject, RetryLater
from .harness import Fixtures, SinkHarness, arrived, check_discreet, messages, publish


class RefusalContract(Fixtures):
    async def test_no_destination_is_never_success(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        nowhere = await harness.missing()
        if nowhere is None:
            pytest.skip("every destination exists here")
        sent = messages(sink, destination, ["a", "b"])
        lost = messages(sink, nowhere, ["c"])
        for message in sent:
            failed, accepted = await publish(sink, [*lost, message])
            assert accepted is None
            assert isinstance(failed, DeliveryError)
            assert not isinstance(failed, (BrokerUnavailable, Reject, RetryLater)), "tried again, and counted"
            assert nowhere in str(failed), "say which destination"
        await arrived(harness, destination, sent)

    async def test_too_large_is_rejected_alone(self, harness: SinkHarness, sink: Sink, destination: str) -> None:
        if harness.oversize is None:
            pytest.skip("no size is too large here")
        before, after = messages(sink, destination, ["a", "c"])
        large = messages(sink, destination, ["b"], b"x" * harness.oversize)
        answers = await publish(sink, [before, *large, after])
        assert [answers[0], answers[2]] == [None, None]
        assert isinstance(answers[1], Reject)
        if sink.features.max_bytes is not None:
            assert sink.features.max_bytes < harness.oversize
        await arrived(harness, destination, [before, after])

    async def test_wrong_credentials_are_nobodys_attempt(self, harness: SinkHarness, destination: str) -> None:
        """An operator must act; events must not die of it, and the secret stays one."""
        sink = harness.wrong_credentials()
        if sink is None:
            pytest.skip("there are no credentials here")
        check_discreet(repr(sink))
        try:
            await sink.open()
        except (BrokerUnavailable, ConfigError) as error:
            check_discreet("".join(traceback.format_exception(error)))
        else:
            [answer] = await publish(sink, messages(sink, destination, ["a"]))
            assert isinstance(answer, (BrokerUnavailable, ConfigError))
        finally:
            await sink.close()
