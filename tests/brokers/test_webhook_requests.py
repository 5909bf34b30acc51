"""What a request looks like, where it goes, and what becomes of odd events and odd settings."""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import Authority, Request, answer, endpoint, hang, raw, reset
from test_webhook_faults import SECRET, send, sink_for

from relaybox.brokers.formats import MessageFormat, renderer
from relaybox.brokers.webhook.signature import new_secret, verify
from relaybox.brokers.webhook.sink import Endpoint, WebhookSink
from relaybox.errors import BrokerUnavailable, Closed, ConfigError, DeliveryError, Reject
from relaybox.event import Event
from relaybox.spi import Message
from relaybox.testing.clock import ManualClock
from relaybox.testing.sink_contract import CANARY, messages


def message(event: Event, url: str, form: MessageFormat = "plain") -> Message:
    return renderer(form, "https://shop.example/orders", WebhookSink.features)(event, url)


async def sent(event: Event, form: MessageFormat = "plain", **options: Any) -> Request:
    """What the endpoint got."""
    async with endpoint(answer(200)) as server, sink_for(server, **options) as sink:
        assert await sink.publish([message(event, server.url("/in?x=1"), form)]) == [None]
    [request] = server.requests
    return request


# -- requests ---------------------------------------------------------------------------------------


async def test_a_request() -> None:
    event = Event("OrderPlaced", {"id": 7}, key="Zürich 7", aggregate_type="order", tenant="acme")
    request = await sent(event)
    assert request.path == "/in?x=1"
    assert request.body == event.body
    assert verify(request.headers, request.body, [SECRET]) == event.id
    expected = {
        "content-type": "application/json",
        "content-length": str(len(event.body)),
        "accept-encoding": "identity",
        "user-agent": "relaybox",
        "webhook-id": event.id,
        "event-id": event.id,
        "event-type": "OrderPlaced",
        "aggregate-type": "order",
        "aggregate-id": "Z%C3%BCrich%207",
        "tenant": "acme",
    }
    assert request.headers | expected == request.headers
    assert len(request.names) == len(set(request.names))
    assert not {"cookie", "transfer-encoding", "expect"} & set(request.names)
    assert not any("_" in name for name in request.names), "servers drop such headers without a word"


async def test_cloudevents_binary() -> None:
    event = Event("OrderPlaced", {"id": 7}, key='a "b"', headers={"traceparent": "00-ab-cd-01"})
    request = await sent(event, "cloudevents")
    assert request.headers["ce-specversion"] == "1.0"
    assert request.headers["ce-id"] == request.headers["webhook-id"] == event.id
    assert request.headers["ce-subject"] == "a%20%22b%22"
    assert request.headers["ce-source"] == "https://shop.example/orders"
    assert request.headers["traceparent"] == "00-ab-cd-01"
    assert request.headers["content-type"] == "application/json"


async def test_cloudevents_structured() -> None:
    request = await sent(Event("OrderPlaced", {"id": 7}), "cloudevents-structured")
    assert request.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert b'"data":{"id":7}' in request.body.replace(b" ", b"")
    assert verify(request.headers, request.body, [SECRET])


async def test_an_event_cannot_replace_our_headers() -> None:
    """Not even with underscores, which WSGI and others take for hyphens."""
    names = ["Webhook-Signature", "webhook_id", "HOST", "content_length", "Transfer-Encoding", "connection", "te"]
    names += ["Authorization", "cookie", "Expect", "upgrade", "proxy-authorization", "accept_encoding", "trailer"]
    event = Event("T", {}, headers=dict.fromkeys(names, "forged"))
    request = await sent(event)
    assert "forged" not in request.headers.values()
    assert request.headers["webhook-id"] == event.id


async def test_an_endpoints_headers_win_over_an_events() -> None:
    async with endpoint(answer(200)) as server:
        crm = Endpoint(url=server.url(), secrets=[SECRET], headers={"Authorization": "Bearer x", "x-shop": "ours"})
        async with sink_for(server, endpoints={"crm": crm}, event_headers=["x-more", "x-shop"]) as sink:
            event = Event("T", {}, headers={"X-Shop": "theirs", "Authorization": "theirs", "x-more": "1"})
            assert await sink.publish([message(event, "crm")]) == [None]
    [request] = server.requests
    assert (request.headers["authorization"], request.headers["x-shop"]) == ("Bearer x", "ours")
    assert request.headers["x-more"] == "1"


async def test_odd_header_names_and_values() -> None:
    headers = {"größe": "42 €", "a b": "c", "x(y)": "%", "X-Case": 'quo"te', "ok!#$": "~", "tab": "a\tb"}
    request = await sent(Event("T", {}, headers=headers), event_headers="*")
    got = request.headers
    assert got["gr%c3%b6%c3%9fe"] == "42%20%E2%82%AC"
    assert got["a%20b"] == "c"
    assert got["x%28y%29"] == "%25"
    assert got["x-case"] == "quo%22te"
    assert got["ok!#$"] == "~"
    assert got["tab"] == "a%09b"


@pytest.mark.parametrize("id", ["a.b", "é", "a b"])
async def test_ids_that_cannot_be_webhook_ids(id: str) -> None:
    async with endpoint(answer(200)) as server, sink_for(server) as sink:
        [refused] = await sink.publish([message(Event("T", {}, id=id), server.url())])
        assert isinstance(refused, Reject)
        assert "webhook id" in str(refused)
        assert server.requests == []


@pytest.mark.parametrize("kind", ["a\r\nx: y", "a\nb", "text/größe", "a\x7fb"])
async def test_content_types_that_cannot_be_headers(kind: str) -> None:
    async with endpoint(answer(200)) as server, sink_for(server) as sink:
        good = message(Event("T", {}), server.url())
        answers = await sink.publish([good._replace(content_type=kind), good])
        assert isinstance(answers[0], Reject)
        assert answers[1] is None
        assert len(server.requests) == 1


# -- signatures -------------------------------------------------------------------------------------


async def test_every_attempt_has_its_own_time() -> None:
    clock = ManualClock()
    async with endpoint(answer(500)) as server, sink_for(server, clock=clock) as sink:
        [one] = messages(sink, server.url(), ["a"])
        for _ in range(3):
            assert await sink.publish([one]) != [None]
            assert verify(server.requests[-1].headers, server.requests[-1].body, [SECRET], clock=clock) == one.id
            clock.advance(minutes=10)
    times = [int(request.headers["webhook-timestamp"]) for request in server.requests]
    assert [later - times[0] for later in times] == [0, 600, 1200]
    assert len({request.headers["webhook-signature"] for request in server.requests}) == 3
    assert {request.headers["webhook-id"] for request in server.requests} == {one.id}


async def test_rotation() -> None:
    new, old = new_secret(), new_secret()
    async with endpoint(answer(200)) as server:
        crm = {"url": server.url(), "secrets": [new, old]}
        async with sink_for(server, endpoints={"crm": crm}) as sink:
            assert await send(sink, "crm") == [None]
    [request] = server.requests
    for known in (new, old):
        assert verify(request.headers, request.body, [known])
    assert len(request.headers["webhook-signature"].split(" ")) == 2


async def test_unsigned_has_to_be_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="insecure_unsigned"):
        WebhookSink(endpoints={"crm": {"url": "https://crm.example/"}})
    async with endpoint(answer(200)) as server:
        async with sink_for(server, secrets=[]) as sink:
            [refused] = await send(sink, server.url())
            assert isinstance(refused, DeliveryError)
        async with sink_for(server, secrets=[], insecure_unsigned=True) as sink:
            assert await send(sink, server.url()) == [None]
    assert "webhook-signature" not in server.requests[0].headers
    assert "insecure_unsigned is on" in caplog.text


# -- outages and poison -----------------------------------------------------------------------------


async def test_an_event_that_kills_the_receiver_is_counted_in_the_end() -> None:
    """The first time it looks like an outage; the second time others got through."""

    async def behave(request: Request, writer: Any) -> None:
        await (reset if b"poison" in request.body else answer(200))(request, writer)

    clock = ManualClock()
    async with endpoint(behave) as server, sink_for(server, clock=clock) as sink:
        bad = messages(sink, server.url(), ["a"], b"poison")
        good = messages(sink, server.url(), ["b"])
        for _ in range(3):
            [outage] = await sink.publish(bad)
            assert isinstance(outage, BrokerUnavailable), "as long as nobody gets through it may be an outage"
        for _ in range(3):
            clock.advance(1)
            assert await sink.publish(good) == [None]
            [failure] = await sink.publish(bad)
            assert type(failure) is DeliveryError
            assert "took others meanwhile" in str(failure)


async def test_a_crash_costs_no_attempt() -> None:
    """What was under way when the receiver went is sent again for free, however busy it was."""
    clock = ManualClock()
    async with endpoint(answer(200)) as server, sink_for(server, clock=clock) as sink:
        for _ in range(5):
            clock.advance(1)
            assert await send(sink, server.url(), 8) == [None] * 8
            server.behaviour = reset
            assert {type(each) for each in await send(sink, server.url(), 8)} == {BrokerUnavailable}
            server.behaviour = answer(200)


async def test_patience_ends() -> None:
    clock = ManualClock()
    async with endpoint(answer(503)) as server, sink_for(server, clock=clock) as sink:
        [one] = messages(sink, server.url(), ["a"])
        for _ in range(3):
            assert [type(each) for each in await sink.publish([one])] == [BrokerUnavailable]
            clock.advance(timedelta(days=1))
        clock.advance(1)
        [failure] = await sink.publish([one])
        assert type(failure) is DeliveryError
        assert "more than 3d" in str(failure)
        server.behaviour = answer(404)
        await sink.publish([one])
        server.behaviour = answer(503)
        assert [type(each) for each in await sink.publish([one])] == [BrokerUnavailable], "any answer starts anew"


# -- where it goes ----------------------------------------------------------------------------------


class Names:
    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


async def test_rebinding() -> None:
    """The name points outside when it is checked, and inside when it is asked again: nobody asks again."""
    async with endpoint(answer(200), host="127.0.0.2") as outside:
        async with endpoint(answer(200), host="127.0.0.1", port=outside.port) as inside:
            names = Names(["127.0.0.2"], ["127.0.0.1"])
            async with sink_for(outside, allow_networks=["127.0.0.2/32"], resolver=names) as sink:
                url = outside.url(host="hooks.example")
                for _ in range(3):
                    assert await send(sink, url) == [None]
                assert names.asked == ["hooks.example"], "one connection, one lookup"
                await sink.close()
                await sink.open()
                [refused] = await send(sink, url)
                assert type(refused) is DeliveryError
                assert "127.0.0.1 (loopback)" in str(refused)
            assert inside.connections == 0
            assert len(outside.requests) == 3
            assert outside.requests[0].headers["host"] == f"hooks.example:{outside.port}"


async def test_the_checked_address_is_dialled_and_the_name_kept_for_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with endpoint(answer(200), tls=authority.server("hooks.example"), host="127.0.0.2") as server:
        options = {"insecure_http": False, "ca_file": authority.file, "resolver": Names(["127.0.0.2"])}
        async with sink_for(server, **options) as sink:
            assert await send(sink, server.url(scheme="https", host="hooks.example")) == [None]


async def test_the_next_address_if_one_is_dead() -> None:
    async with endpoint(answer(200), host="127.0.0.3") as server:
        names = Names(["127.0.0.1", "127.0.0.2", "127.0.0.3"])
        async with sink_for(server, resolver=names) as sink:
            assert await send(sink, server.url(host="hooks.example")) == [None]
        async with sink_for(server, resolver=Names(["127.0.0.1"] * 4 + ["127.0.0.3"])) as sink:
            [outage] = await send(sink, server.url(host="hooks.example"))
            assert isinstance(outage, BrokerUnavailable), "a name with thousands of addresses is not walked through"


@pytest.mark.parametrize(
    ("destination", "said"),
    [
        ("http://hooks.example/", "insecure_http"),
        ("https://user:canary@hooks.example/", "no user or password"),
        ("https://hooks.example:22/", "port 22"),
        ("https://0x7f.1/", "neither a name nor an address"),
        ("https://169.254.169.254/latest", "link-local"),
        ("https://localhost/", "loopback"),
        ("crm", "no webhook endpoint; configured: erp"),
    ],
)
async def test_destinations_that_are_refused(destination: str, said: str) -> None:
    """Counted: with a template for `to` one wrong setting must not bury every event at once."""
    async with sink_for(
        insecure_http=False,
        ports=None,
        allow_networks=[],
        endpoints={"erp": Endpoint(url="https://erp.example/", secrets=[SECRET])},
    ) as sink:
        [refused] = await send(sink, destination)
    assert type(refused) is DeliveryError
    assert said in str(refused)
    assert "canary" not in str(refused)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"])
async def test_the_environment_has_no_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login canary password canary")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    async with endpoint(answer(200)) as proxy, endpoint(answer(200)) as server:
        monkeypatch.setenv(name, proxy.url(""))
        async with sink_for(server) as sink:
            assert await send(sink, server.url()) == [None]
        assert proxy.connections == 0
        assert "authorization" not in server.requests[0].headers


async def test_cookies_are_not_kept() -> None:
    async with endpoint(answer(200, set_cookie="a=b; Path=/")) as server, sink_for(server) as sink:
        for _ in range(2):
            assert await send(sink, server.url()) == [None]
    assert all("cookie" not in request.headers for request in server.requests)


async def test_many_urls_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relaybox.brokers.webhook.sink.MOST_LANES", 5)
    async with endpoint(answer(200)) as server, sink_for(server) as sink:
        for number in range(20):
            assert await send(sink, server.url(f"/{number}")) == [None]
        assert len(sink._by_url) == 5
        assert len(sink._host_slots) == 1


# -- settings ---------------------------------------------------------------------------------------


def test_from_url() -> None:
    options = {
        "endpoints": {"crm": {"url": "https://crm.example/", "secrets": [SECRET], "timeout": "3s"}},
        "timeout": "20s",
        "max_in_flight": "4",
        "ports": "443, 9443",
        "insecure_http": "true",
    }
    sink = WebhookSink.from_url("webhook://?allow_networks=10.0.0.0/8,fd00::/8&timeout=1s", options)
    assert repr(sink) == "WebhookSink(crm)"
    assert (sink._timeout, sink._max_in_flight, sink._named["crm"].timeout) == (20, 4, 3)
    assert sink._rules.target("http://10.1.2.3:9443/").port == 9443


async def test_the_url_of_one_endpoint() -> None:
    """Its query is its own, not a list of options."""
    async with endpoint(answer(200)) as server:
        options = {
            "insecure_http": "yes",
            "ports": str(server.port),
            "allow_networks": "127.0.0.0/8",
            "secrets": SECRET,
        }
        sink = WebhookSink.from_url(server.url("/in?timeout=1s"), options)
        await sink.open()
        assert await send(sink, "default") == [None]
        await sink.close()
    assert server.requests[0].path == "/in?timeout=1s"


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("webhook://hooks.example", {}, "without a host"),
        ("https://user:canary@hooks.example/", {"secrets": SECRET}, "no user or password"),
        ("http://hooks.example/canary", {"secrets": SECRET}, "insecure_http"),
        ("webhook://", {"colour": "red"}, "unknown option 'colour' of WebhookSink; known: allow_networks, ca_file"),
        ("webhook://", {"clock": "x"}, "unknown option 'clock'"),
        ("webhook://", {"timeout": "soon"}, "timeout"),
        ("webhook://", {"timeout": "0s"}, "timeout"),
        ("webhook://", {"max_in_flight": "0"}, "max_in_flight"),
        ("webhook://", {"ports": "443,x"}, "ports"),
        ("webhook://", {"ports": [70000]}, "ports"),
        ("webhook://", {"allow_networks": "10.0.0.1/8"}, "allow_networks"),
        ("webhook://", {"secrets": "whsec_canary"}, "webhook secret"),
        ("webhook://", {"endpoints": {"crm": {}}}, "'crm': it needs a url"),
        ("webhook://", {"endpoints": {"crm": {"url": "https://crm.example", "color": 1}}}, "unknown option 'color'"),
        ("webhook://", {"endpoints": {"crm": {"url": "https://crm.example", "secrets": "canary"}}}, "'crm': "),
        ("webhook://", {"endpoints": {"crm": {"url": "http://crm.example"}}}, "'crm': expected https"),
        ("webhook://", {"endpoints": {"https://x": {"url": "https://crm.example"}}}, "no URL"),
        ("webhook://", {"endpoints": "canary"}, "table"),
    ],
)
def test_settings_that_are_wrong(url: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WebhookSink.from_url(url, options)
    assert said in str(caught.value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    "headers",
    [{"webhook-id": "x"}, {"Host": "x"}, {"content-length": "1"}, {"a b": "x"}, {"x": "canary\r\ny: z"}, {"x": "é"}],
)
def test_headers_an_endpoint_cannot_have(headers: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="'crm': ") as caught:
        WebhookSink(endpoints={"crm": Endpoint(url="https://crm.example", secrets=[SECRET], headers=headers)})
    assert "canary" not in str(caught.value)


async def test_probe_and_publish_need_an_open_sink() -> None:
    sink = WebhookSink(secrets=[SECRET])
    with pytest.raises(Closed):
        await sink.probe()
    with pytest.raises(Closed):
        await sink.publish([])


# -- discretion -------------------------------------------------------------------------------------


async def echo(request: Request, writer: Any) -> None:
    writer.write(request.body + repr(request.headers).encode() + b"\r\n\r\n")
    writer.close()


async def redirect(request: Request, writer: Any) -> None:
    await answer(302, request.body, location=request.path)(request, writer)


@pytest.mark.parametrize(
    "behaviour",
    [*(answer(status) for status in (200, 404, 410, 413, 429, 500, 502)), redirect, echo, reset, hang, raw(b""), None],
)
async def test_no_secret_is_seen_on_any_path(caplog: pytest.LogCaptureFixture, behaviour: Any) -> None:
    """Signing secret, endpoint header, token in the URL, payload, and an endpoint that repeats what it was sent.

    httpcore logs what it receives if told to log at DEBUG; that is the endpoint's to choose, so not asked of echoes.
    """
    caplog.set_level(logging.INFO if behaviour in (echo, redirect) else logging.DEBUG, logger="httpcore")
    caplog.set_level(logging.DEBUG, logger="relaybox")
    secret = "whsec_" + base64.b64encode(b"canary-key-0123456789abcdef").decode()
    said = ""
    async with endpoint(behaviour) as server:
        url = server.url("/canary-token?canary-token", "http" if behaviour else "https")
        headers = {"authorization": "canary-bearer"}
        crm = Endpoint(url=url, secrets=[secret], headers=headers, timeout=timedelta(seconds=0.3))
        options = {"secrets": secret, "endpoints": {"crm": crm}, "timeout": timedelta(seconds=0.3)}
        async with sink_for(server, **options) as sink:
            said += repr(sink) + repr(crm) + repr(sink._rules.target(url))
            for failure in [*await send(sink, "crm", 2), *await send(sink, url, 2)]:
                if failure is not None:
                    said += repr(failure) + "".join(traceback.format_exception(failure))
    said += "".join(logging.Formatter().format(record) for record in caplog.records)
    assert "insecure_http is on" in said
    canaries = ["canary-key", secret[6:], "canary-token", "canary-bearer", CANARY]
    assert [canary for canary in canaries if canary in said] == []
