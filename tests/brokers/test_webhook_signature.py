"""Standard Webhooks signatures: the official vectors, every byte changed, rotation, clocks."""

from __future__ import annotations

import base64
import hmac
from datetime import UTC, datetime, timedelta

import pytest

from relaybox.brokers.webhook.signature import InvalidSignature, new_secret, parse_secret, sign, verify
from relaybox.errors import ConfigError, RelayboxError
from relaybox.testing.clock import ManualClock

# From the test suites of the reference libraries, which share them across languages.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
TIMESTAMP = 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
STRANGERS = ("v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc=", "v2,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc=")

HEADERS = {"webhook-id": ID, "webhook-timestamp": str(TIMESTAMP), "webhook-signature": SIGNATURE}
OTHER = "whsec_" + base64.b64encode(b"another secret, 24 bytes").decode()


def at(seconds: float = 0.0) -> ManualClock:
    return ManualClock(datetime.fromtimestamp(TIMESTAMP, UTC) + timedelta(seconds=seconds))


def check(
    headers: dict[str, str] = HEADERS, body: bytes = BODY, *secrets: str, clock: ManualClock | None = None
) -> str:
    return verify(headers, body, secrets or [SECRET], clock=clock or at())


def test_the_official_signature() -> None:
    assert sign([parse_secret(SECRET)], ID, TIMESTAMP, BODY) == SIGNATURE
    assert check() == ID


def test_the_prefix_of_a_secret_may_be_missing() -> None:
    assert check(HEADERS, BODY, SECRET.removeprefix("whsec_")) == ID


def test_header_names_in_any_case() -> None:
    assert check({name.title(): value for name, value in HEADERS.items()}) == ID


def test_one_of_several_signatures_is_enough() -> None:
    both = " ".join((*STRANGERS, SIGNATURE, STRANGERS[0]))
    assert check(HEADERS | {"webhook-signature": both}) == ID


@pytest.mark.parametrize("name", HEADERS)
def test_a_missing_header(name: str) -> None:
    with pytest.raises(InvalidSignature, match=f"{name} is missing"):
        check({given: value for given, value in HEADERS.items() if given != name})


@pytest.mark.parametrize(
    "signature",
    [
        "v1,dawfeoifkpqwoekfpqoekf",
        SIGNATURE[:8],
        "v1,",
        ",",
        SIGNATURE.removeprefix("v1,"),
        SIGNATURE.replace("v1", "v2"),
        SIGNATURE.replace("v1", "v1a"),
        SIGNATURE + "=",
        SIGNATURE.replace("=", ""),
        SIGNATURE.replace(",", ", "),
        SIGNATURE.upper(),
        "v1,\udcff\u00e9",
        *STRANGERS,
    ],
)
def test_a_signature_that_is_not_one(signature: str) -> None:
    with pytest.raises(InvalidSignature, match="no signature fits"):
        check(HEADERS | {"webhook-signature": signature})


def test_every_byte_counts() -> None:
    """Each byte of body, id, timestamp and signature replaced by each of a few others."""
    tries = 0
    for place, original in (("body", BODY), *((name, value.encode()) for name, value in HEADERS.items())):
        for index, old in enumerate(original):
            for new in {old ^ 1, old ^ 0x20, (old + 1) % 128, ord("0"), ord("A")} - {old}:
                changed = original[:index] + bytes([new]) + original[index + 1 :]
                if place == "body":
                    headers, body = HEADERS, changed
                else:
                    headers, body = HEADERS | {place: changed.decode()}, BODY
                with pytest.raises(InvalidSignature):
                    check(headers, body)
                tries += 1
    assert tries > 400


@pytest.mark.parametrize("body", [BODY + b"\n", b" " + BODY, BODY[:-1], b""])
def test_longer_or_shorter(body: bytes) -> None:
    with pytest.raises(InvalidSignature):
        check(HEADERS, body)


def test_what_is_signed_cannot_be_cut_elsewhere() -> None:
    """Without the rule about dots `a.1.b` would be id `a` at 1 and id `a.1` at b."""
    key = parse_secret(SECRET)
    with pytest.raises(ConfigError, match="without dots"):
        sign([key], "a.1", TIMESTAMP, b"")
    moved = {**HEADERS, "webhook-id": f"{ID}.{TIMESTAMP}"}
    with pytest.raises(InvalidSignature, match="without dots"):
        check(moved)


@pytest.mark.parametrize("id", ["", "a b", "a\nb", "é", "a.b", "\x7f"])
def test_ids_that_are_none(id: str) -> None:
    with pytest.raises(ConfigError):
        sign([parse_secret(SECRET)], id, TIMESTAMP, b"")


# -- clocks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [-300, -1, 0, 1, 300])
def test_within_five_minutes(seconds: float) -> None:
    assert check(clock=at(seconds)) == ID


@pytest.mark.parametrize(("seconds", "said"), [(301, "301 s old"), (-301, "301 s in the future"), (1e9, "old")])
def test_beyond_five_minutes(seconds: float, said: str) -> None:
    with pytest.raises(InvalidSignature, match=said):
        check(clock=at(seconds))


def test_another_tolerance() -> None:
    assert verify(HEADERS, BODY, [SECRET], tolerance=timedelta(hours=1), clock=at(3000)) == ID


@pytest.mark.parametrize("timestamp", ["hello", "", "-1", "1.5", "1e9", "١٦١٤٢٦٥٣٣٠", "9" * 40, "nan", " 1614265330"])
def test_a_timestamp_that_is_none(timestamp: str) -> None:
    with pytest.raises(InvalidSignature, match="webhook-timestamp"):
        check(HEADERS | {"webhook-timestamp": timestamp})


# -- secrets ----------------------------------------------------------------------------------------


def test_rotation() -> None:
    """First the sender signs with both, then receivers change one by one, then the old secret goes."""
    new, old = new_secret(), SECRET
    sent_by = {
        "before": [old],
        "overlap": [new, old],
        "after": [new],
    }
    accepted = set()
    for phase, secrets in sent_by.items():
        signature = sign([parse_secret(secret) for secret in secrets], ID, TIMESTAMP, BODY)
        assert len(signature.split(" ")) == len(secrets)
        for receiver, known in {"old": [old], "both": [old, new], "new": [new], "stranger": [OTHER]}.items():
            try:
                check(HEADERS | {"webhook-signature": signature}, BODY, *known)
                accepted.add((phase, receiver))
            except InvalidSignature:
                continue
    assert accepted == {
        ("before", "old"),
        ("before", "both"),
        ("overlap", "old"),
        ("overlap", "both"),
        ("overlap", "new"),
        ("after", "both"),
        ("after", "new"),
    }


def test_a_new_secret() -> None:
    assert new_secret() != new_secret()
    assert new_secret().startswith("whsec_")
    assert len(parse_secret(new_secret())) == 32


@pytest.mark.parametrize("size", [0, 1, 23, 65])
def test_secrets_too_short_or_too_long(size: int) -> None:
    with pytest.raises(ConfigError, match=f"24 to 64 bytes, got {size}"):
        parse_secret("whsec_" + base64.b64encode(b"x" * size).decode())


@pytest.mark.parametrize("size", [24, 64])
def test_secrets_just_right(size: int) -> None:
    assert parse_secret("whsec_" + base64.b64encode(b"x" * size).decode()) == b"x" * size


@pytest.mark.parametrize("text", ["whsec_canary!canary!canary!canary!", "canary", "whsec_canary canary", "canaryé"])
def test_what_is_no_secret_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_secret(text)
    assert "canary" not in str(caught.value)


def test_no_secret_at_all_is_no_pass() -> None:
    with pytest.raises(ConfigError, match="at least one secret"):
        verify(HEADERS, BODY, [], clock=at())


def test_errors_are_ours_and_say_no_secret() -> None:
    with pytest.raises(RelayboxError) as caught:
        check(HEADERS, BODY, OTHER)
    said = repr(caught.value)
    assert OTHER.removeprefix("whsec_") not in said
    assert SIGNATURE not in said


def test_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that stops at the first difference tells a guesser how many bytes were right."""
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    with pytest.raises(InvalidSignature):
        check()
    assert compared == [(SIGNATURE.encode(), SIGNATURE.encode())]
