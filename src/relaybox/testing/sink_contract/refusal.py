"""What one message can be refused for, and that the others of its batch do not suffer."""

from __future__ import annotations

import json
import traceback

import pytest

from ...brokers.formats import renderer
from ...brokers.spi import Sink
from ...clock import utc_now
from ...errors import BrokerUnavailable, ConfigError, DeliveryError, Reject, RetryLater
from ...event import Event
from .harness import Fixtures, SinkHarness, arrived, check_discreet, messages, publish

# What no Event takes, and a row of another program may have: id, type, key, content type and headers.
STRANGE: dict[str, tuple[str, str, str | None, str, str | None]] = {
    "control characters": ("a\r\nb\x00-{}", "T\nX: y", "\x00\n", "text/plain\r\nX-Forged: 1", None),
    "headers that are lines": ("h-{}", "T", "k", "text/plain", '{"a: b\\r\\nX-Forged": "c\\r\\nX-Forged: 1\\u0000"}'),
    "a header without a name": ("n-{}", "T", "k", "text/plain", '{"": "x"}'),
    "many headers": ("m-{}", "T", "k", "text/plain", json.dumps({f"h{n}": "x" for n in range(300)})),
    "long texts": ("l" * 600 + "-{}", "T" * 600, "k" * 600, "c" * 600, json.dumps({"h" * 600: "x" * 3000})),
    "nothing": ("e-{}", "", "", "", "{}"),
}


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

    @pytest.mark.parametrize("row", STRANGE.values(), ids=STRANGE)
    async def test_a_row_that_no_writer_makes_fails_alone(
        self, harness: SinkHarness, sink: Sink, destination: str, row: tuple[str, str, str | None, str, str | None]
    ) -> None:
        """It may arrive too, if nothing of it is taken for something else."""
        before, after = messages(sink, destination, ["a", "c"])
        id, type, key, content_type, headers = row
        now = utc_now()
        found = (1, id.format(before.id), type, None, key, None, content_type, b"{}", headers, now, None, now)
        strange = renderer("plain", "", sink.features)(Event.stored(found), destination)
        answers = await publish(sink, [before, strange, after])
        assert [answers[0], answers[2]] == [None, None], answers
        assert not isinstance(answers[1], BrokerUnavailable)
        arriving = await harness.read(destination, 2 if answers[1] is not None else 3)
        assert {before.id, after.id} <= {received.id for received in arriving}
        assert not any(name.lower() == "x-forged" for received in arriving for name in received.attributes)

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
