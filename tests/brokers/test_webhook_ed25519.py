"""Asymmetric signatures (v1a), and secrets of each destination."""

from __future__ import annotations

import base64
import builtins
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from scripted_endpoint import answer, endpoint
from test_webhook_faults import SECRET, send, sink_for

from relaybox import AsyncInbox
from relaybox.brokers.webhook import WebhookReceiver, new_key_pair, new_secret, parse_secret, sign, verify
from relaybox.brokers.webhook.sink import WebhookSink
from relaybox.errors import ConfigError, DeliveryError, InvalidSignature, MissingExtra
from relaybox.testing.clock import ManualClock

PRIVATE, PUBLIC = new_key_pair()
AT = 1614265330
CLOCK = ManualClock(datetime.fromtimestamp(AT, UTC))


def signed(*secrets: str, body: bytes = b"{}") -> dict[str, str]:
    signature = sign([parse_secret(secret) for secret in secrets], "e1", AT, body)
    return {"webhook-id": "e1", "webhook-timestamp": str(AT), "webhook-signature": signature}


def test_it_is_ed25519_over_id_timestamp_and_body() -> None:
    version, _, text = signed(PRIVATE)["webhook-signature"].partition(",")
    assert version == "v1a"
    public = Ed25519PublicKey.from_public_bytes(base64.b64decode(PUBLIC.removeprefix("whpk_")))
    public.verify(base64.b64decode(text), f"e1.{AT}.".encode() + b"{}")
    assert verify(signed(PRIVATE), b"{}", [PUBLIC], clock=CLOCK) == "e1"


def test_both_halves_in_one_private_key() -> None:
    """As libsodium writes it, and the reference libraries after it."""
    seed = base64.b64decode(PRIVATE.removeprefix("whsk_"))
    public = base64.b64decode(PUBLIC.removeprefix("whpk_"))
    both = "whsk_" + base64.b64encode(seed + public).decode()
    assert signed(both) == signed(PRIVATE)
    wrong = "whsk_" + base64.b64encode(seed + seed).decode()
    with pytest.raises(ConfigError, match="second half"):
        parse_secret(wrong)


def test_rotation_side_by_side() -> None:
    """From a shared secret to a pair, and from one pair to the next."""
    newer, newer_public = new_key_pair()
    headers = signed(newer, PRIVATE, SECRET)
    assert [part.partition(",")[0] for part in headers["webhook-signature"].split(" ")] == ["v1a", "v1a", "v1"]
    for known in (newer_public, PUBLIC, SECRET):
        assert verify(headers, b"{}", [known], clock=CLOCK) == "e1"
    with pytest.raises(InvalidSignature, match="no signature fits"):
        verify(headers, b"{}", [new_key_pair()[1], new_secret()], clock=CLOCK)


def test_every_bit_counts() -> None:
    headers = signed(PRIVATE)
    raw = base64.b64decode(headers["webhook-signature"].partition(",")[2])
    for place in range(len(raw)):
        forged = raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]
        changed = {**headers, "webhook-signature": "v1a," + base64.b64encode(forged).decode()}
        with pytest.raises(InvalidSignature):
            verify(changed, b"{}", [PUBLIC], clock=CLOCK)
    with pytest.raises(InvalidSignature):
        verify(headers, b"{ }", [PUBLIC], clock=CLOCK)
    with pytest.raises(InvalidSignature):
        verify({**headers, "webhook-id": "e2"}, b"{}", [PUBLIC], clock=CLOCK)


@pytest.mark.parametrize("text", ["v1a,", "v1a,%%%", "v1a," + "A" * 100_000, "v1a,\udcff", "v2a,AAAA", "v1a"])
def test_a_signature_that_is_none(text: str) -> None:
    with pytest.raises(InvalidSignature):
        verify({**signed(PRIVATE), "webhook-signature": text}, b"{}", [PUBLIC], clock=CLOCK)


def test_a_public_key_is_no_shared_secret() -> None:
    """Somebody who knows the public key, as all may, signs with its bytes by HMAC."""
    as_secret = "whsec_" + PUBLIC.removeprefix("whpk_")
    with pytest.raises(InvalidSignature):
        verify(signed(as_secret), b"{}", [PUBLIC], clock=CLOCK)
    relabelled = signed(as_secret)["webhook-signature"].replace("v1,", "v1a,")
    with pytest.raises(InvalidSignature):
        verify({**signed(PRIVATE), "webhook-signature": relabelled}, b"{}", [PUBLIC], clock=CLOCK)


def test_keys_in_the_wrong_place() -> None:
    with pytest.raises(ConfigError, match="cannot sign"):
        WebhookSink(secrets=[PUBLIC])
    with pytest.raises(ConfigError, match="cannot sign"):
        WebhookSink(endpoints={"crm": {"url": "https://crm.example/", "secrets": [PUBLIC]}})
    with pytest.raises(ConfigError, match="cannot sign"):
        sign([parse_secret(PUBLIC)], "e1", AT, b"")
    with pytest.raises(ConfigError, match="sender's alone"):
        verify(signed(PRIVATE), b"{}", [PRIVATE], clock=CLOCK)


async def test_a_receiver_with_a_public_key() -> None:
    inbox = AsyncInbox("sqlite:///unused.db")
    assert PUBLIC not in repr(WebhookReceiver(inbox, secrets=[PUBLIC]))
    with pytest.raises(ConfigError, match="sender's alone"):
        WebhookReceiver(inbox, secrets=[PRIVATE])


@pytest.mark.parametrize("text", ["whsk_canary!", "whpk_canary canary", "whsk_Y2FuYXJ5", "whpk_Y2FuYXJ5", "whsk_"])
def test_what_is_no_key_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_secret(text)
    assert "canary" not in str(caught.value)
    assert "Y2FuYXJ5" not in str(caught.value)


def test_keys_are_not_shown() -> None:
    key = parse_secret(PRIVATE)
    assert PRIVATE[5:] not in repr(key)
    assert "key" not in repr(key)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.delitem(sys.modules, "relaybox.brokers.webhook.ed25519", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"relaybox\[crypto\]"):
        parse_secret(PRIVATE)
    assert parse_secret(SECRET)


# -- of each destination ----------------------------------------------------------------------------


async def test_a_pair_on_the_wire() -> None:
    async with endpoint(answer(200)) as server:
        crm = {"url": server.url(), "secrets": [PRIVATE, SECRET]}
        async with sink_for(server, secrets=[], endpoints={"crm": crm}) as sink:
            assert await send(sink, "crm") == [None]
            assert PRIVATE[5:] not in repr(sink)
    [request] = server.requests
    assert verify(request.headers, request.body, [PUBLIC])
    assert verify(request.headers, request.body, [SECRET])


@pytest.mark.parametrize("as_function", [False, True])
async def test_every_url_has_secrets_of_its_own(as_function: bool) -> None:
    """A customer who knows the secret of one URL can sign nothing for another's."""
    async with endpoint(answer(200)) as server:
        one, two, three = (server.url(f"/{n}") for n in (1, 2, 3))
        secrets = {one: [new_secret(), new_secret()], two: PRIVATE}
        given: Any = (lambda url: secrets.get(url)) if as_function else secrets
        async with sink_for(server, url_secrets=given) as sink:
            for url in (one, two, three):
                assert await send(sink, url) == [None]
    first, second, third = server.requests
    for secret in secrets[one]:
        assert verify(first.headers, first.body, [secret])
    assert verify(second.headers, second.body, [PUBLIC])
    assert verify(third.headers, third.body, [SECRET]), "the others have that of the sink"
    with pytest.raises(InvalidSignature):
        verify(first.headers, first.body, [SECRET])


async def test_a_function_is_asked_each_time() -> None:
    now = [SECRET]
    async with endpoint(answer(200)) as server, sink_for(server, secrets=[], url_secrets=lambda url: now) as sink:
        assert await send(sink, server.url()) == [None]
        newer = new_secret()
        now[:] = [newer, SECRET]
        assert await send(sink, server.url()) == [None]
    assert [len(request.headers["webhook-signature"].split(" ")) for request in server.requests] == [1, 2]
    assert verify(server.requests[1].headers, server.requests[1].body, [newer])


async def test_a_function_that_fails_says_no_secret() -> None:
    def ask(url: str) -> list[str]:
        raise RuntimeError(f"no connection as {SECRET}")

    async with endpoint(answer(200)) as server, sink_for(server, url_secrets=ask) as sink:
        [failure] = await send(sink, server.url())
    assert type(failure) is DeliveryError
    assert "RuntimeError" in str(failure)
    assert SECRET[6:] not in repr(failure)
    assert failure.__cause__ is None
    assert server.requests == []


@pytest.mark.parametrize("given", [{"https://a.example/": "canary"}, {"https://a.example/": [PUBLIC]}])
def test_secrets_that_are_none(given: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        WebhookSink(url_secrets=given)
    assert "canary" not in str(caught.value)
