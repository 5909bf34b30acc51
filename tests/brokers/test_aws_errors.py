"""What the AWS sinks make of partial failures, refusals and nonsense, said by a scripted endpoint."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aws_script import Entries, Reply, ScriptedSqs, accepted, raw, refused, scripted_sqs

from kit.certificates import Authority, Pair
from relaybox.brokers.aws.connection import AwsConnection
from relaybox.brokers.aws.sns_sink import SnsSink
from relaybox.brokers.aws.sqs_sink import SqsSink
from relaybox.errors import BrokerUnavailable, ConfigError, DeliveryError, Reject
from relaybox.testing.sink_contract import SECRET, messages, publish


async def open_to(service: ScriptedSqs, **options: Any) -> SqsSink:
    given = {"region": "eu-central-1", "access_key_id": "canary", "secret_access_key": SECRET}
    sink = SqsSink.from_url("sqs://", {**given, "endpoint_url": service.url, **options})
    await sink.open()
    return sink


@asynccontextmanager
async def talking(service: ScriptedSqs, **options: Any) -> AsyncIterator[SqsSink]:
    sink = await open_to(service, **options)
    try:
        yield sink
    finally:
        await sink.close()


async def test_each_failure_in_a_batch_is_its_own() -> None:
    said = {  # Id: (SenderFault, Code)
        "1": (True, "InvalidParameterValue"),
        "2": (False, "RequestThrottled"),
        "3": (False, "InternalError"),
        "4": (True, "KMS.AccessDeniedException"),
        "5": (True, "AccessDenied"),
        "6": (True, "KMS.ThrottlingException"),
    }

    def reply(entries: Entries) -> tuple[int, Any]:
        failed = [{"Id": i, "SenderFault": fault, "Code": code, "Message": "no"} for i, (fault, code) in said.items()]
        return 200, {"Successful": [{"Id": "0", "MessageId": "m", "MD5OfMessageBody": ""}], "Failed": failed}

    async with scripted_sqs() as service, talking(service) as sink:
        service.reply = reply
        answers = await publish(sink, messages(sink, "orders", [f"key-{n}" for n in range(8)]))
    kinds = [type(answer) for answer in answers]
    unavailable = BrokerUnavailable
    assert kinds == [
        type(None), Reject, unavailable, DeliveryError, unavailable, unavailable, unavailable, unavailable
    ]  # fmt: skip
    pauses = [getattr(answer, "retry_after", None) for answer in answers]
    assert pauses[2] == pauses[6] == timedelta(seconds=1)
    assert [getattr(answer, "destination", None) for answer in answers[4:]] == ["orders", "orders", None, None]
    assert "no answer" in str(answers[7]), "neither successful nor failed"


@pytest.mark.parametrize(
    ("reply", "kind", "destination"),
    [
        (refused(400, "QueueDoesNotExist"), DeliveryError, None),
        (refused(403, "InvalidClientTokenId"), BrokerUnavailable, None),
        (refused(403, "SignatureDoesNotMatch"), BrokerUnavailable, None),
        (refused(400, "ExpiredToken"), BrokerUnavailable, None),
        (refused(403, "SomethingNew"), BrokerUnavailable, None),
        (refused(403, "AccessDeniedException"), BrokerUnavailable, "orders"),
        (refused(400, "KmsDisabled"), BrokerUnavailable, "orders"),
        (refused(400, "ThrottlingException"), BrokerUnavailable, None),
        (refused(500, "InternalFailure"), BrokerUnavailable, None),
        (refused(503, "ServiceUnavailable"), BrokerUnavailable, None),
        (refused(400, "InvalidMessageContents"), Reject, None),
        (refused(400, "UnsupportedOperation"), DeliveryError, None),
        (raw(502, "<html>a proxy says this</html>"), BrokerUnavailable, None),
        (raw(200, "<html>a captive portal says this</html>"), BrokerUnavailable, None),
        (raw(200, "{}"), BrokerUnavailable, None),
    ],
)
async def test_a_request_that_fails(reply: Reply, kind: type, destination: str | None) -> None:
    async with scripted_sqs() as service, talking(service) as sink:
        service.reply = reply
        answers = await publish(sink, messages(sink, "orders", ["a", "b"]))
        assert [type(answer) for answer in answers] == [kind, kind]
        assert [getattr(answer, "destination", None) for answer in answers] == [destination, destination]
        service.reply = accepted
        assert await publish(sink, messages(sink, "orders", ["a", "b"])) == [None, None]


async def test_one_bad_message_does_not_refuse_the_request() -> None:
    def picky(entries: Entries) -> tuple[int, Any]:
        bad = any(entry["MessageBody"] == "bad" for entry in entries)
        return refused(400, "InvalidMessageContents")(entries) if bad else accepted(entries)

    async with scripted_sqs() as service, talking(service) as sink:
        service.reply = picky
        sent = messages(sink, "orders", ["a", "b", "c"])
        sent[1] = sent[1]._replace(body=b"bad")
        first, bad, last = await publish(sink, sent)
        assert (first, type(bad), last) == (None, Reject, None)


def test_a_wrong_arn_is_not_the_messages_fault() -> None:
    text = "Invalid parameter: TopicArn Reason: An ARN must have at least 6 elements, not 1"
    assert type(SnsSink()._meaning("InvalidParameter", text, "arn:orders", status=400)) is DeliveryError


async def test_requests_are_bounded() -> None:
    async with scripted_sqs() as service, talking(service) as sink:
        small = messages(sink, "orders", [f"key-{n}" for n in range(25)])
        assert await publish(sink, small) == [None] * 25
        assert sorted(len(entries) for entries in service.requests) == [5, 10, 10]
        service.requests.clear()
        large = messages(sink, "orders", ["a", "b", "c", "d", "e"], b"x" * 120_000)
        assert await publish(sink, large) == [None] * 5
        assert sorted(len(entries) for entries in service.requests) == [1, 2, 2]


async def test_a_service_that_hangs() -> None:
    async with scripted_sqs() as service, talking(service, read_timeout=timedelta(milliseconds=300)) as sink:
        service.reply = raw(0, "")
        [answer] = await publish(sink, messages(sink, "orders", ["a"]))
        assert isinstance(answer, BrokerUnavailable)
        await sink.probe()


async def test_closing_while_a_request_hangs() -> None:
    async with scripted_sqs() as service, talking(service) as sink:
        service.reply = raw(0, "")
        pending = asyncio.create_task(publish(sink, messages(sink, "orders", ["a"])))
        await service.hanging.wait()
        await sink.close()
        [answer] = await pending
        assert isinstance(answer, BrokerUnavailable)


async def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def server(identity: Pair) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(identity.cert_file, identity.key_file)
        return context

    async with scripted_sqs(server(authority.issue("good", "127.0.0.1"))) as service:
        async with talking(service, ca_file=authority.ca_file) as sink:
            assert await publish(sink, messages(sink, "orders", ["a"])) == [None]
        with pytest.raises(BrokerUnavailable, match="SSL"):
            await open_to(service)
    for identity in (authority.issue("elsewhere", "10.0.0.1"), authority.issue("expired", "127.0.0.1", days=-1)):
        async with scripted_sqs(server(identity)) as service:
            with pytest.raises(BrokerUnavailable, match="SSL"):
                await open_to(service, ca_file=authority.ca_file)


async def test_no_credentials_no_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(BrokerUnavailable, match="credentials"):
        await SqsSink("sqs://eu-central-1").open()
    with pytest.raises(ConfigError, match="region"):
        await SnsSink().open()
    with pytest.raises(ConfigError, match="shop"):
        await SnsSink(AwsConnection(region="eu-central-1", profile="shop")).open()
    with pytest.raises(ConfigError, match="endpoint"):
        await SqsSink("sqs://eu-central-1?endpoint_url=http://").open()


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("kafka://eu-central-1", {}, "expected sqs://region"),
        (f"sqs://me:{SECRET}@eu-central-1", {}, "expected sqs://region"),
        ("sqs://eu-central-1/orders", {}, "expected sqs://region"),
        ("sqs://", {"fif": "true"}, "unknown option 'fif'.*fifo"),
        ("sqs://", {"fifo": "maybe"}, "fifo"),
        ("sqs://", {"access_key_id": "AKIA"}, "together"),
        ("sqs://", {"connections": "0"}, "connections"),
        ("sqs://", {"max_bytes": "2000000"}, "max_bytes"),
        ("sqs://", {"read_timeout": "0s"}, "read_timeout"),
        ("sqs://", {"endpoint_url": f"http://me:{SECRET}@host"}, "endpoint_url"),
        ("sqs://", {"key_file": "/key.pem"}, "cert_file"),
        ("sqs://", {"ca_file": "/no/such/file"}, "TLS files /no/such/file"),
    ],
)
def test_wrong_options(url: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        SqsSink.from_url(url, options)
    assert SECRET not in str(caught.value)


def test_options_of_a_url() -> None:
    sink = SnsSink.from_url(
        "sns://eu-central-1?fifo=true", {"connections": "3", "secret_access_key": SECRET, "access_key_id": "A"}
    )
    assert sink.features.dedup_window == timedelta(minutes=5)
    assert sink.features.keyed_order
    assert sink.features.batch == 30
    assert repr(sink) == "SnsSink('eu-central-1')"
