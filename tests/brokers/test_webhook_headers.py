"""A program that writes events must not speak for the sender of a webhook, or for a proxy in front of its receiver."""

from __future__ import annotations

import pytest
from scripted_endpoint import answer, endpoint
from test_webhook_faults import sink_for
from test_webhook_requests import message, sent

from relaybox.brokers.formats import MessageFormat
from relaybox.brokers.webhook.sink import WebhookSink
from relaybox.errors import ConfigError
from relaybox.event import Event

PROXIES = [
    *["x-forwarded-for", "X-Forwarded-Host", "x_forwarded_proto", "Forwarded", "via", "X-Real-IP", "true-client-ip"],
    *["cf-connecting-ip", "X-Original-URL", "x-rewrite-url", "X-HTTP-Method-Override", "x-envoy-external-address"],
    *[
        "x-remote-user",
        "remote-user",
        "x-auth-request-email",
        "x-amzn-oidc-identity",
        "X-Client-Cert",
        "x-ssl-client-dn",
    ],
]
LOGIN = ["host", "authorization", "cookie", "proxy-authorization", "content-encoding", "webhook-signature"]


@pytest.mark.parametrize("form", ["plain", "cloudevents", "cloudevents-structured"])
async def test_nothing_that_is_not_named(form: MessageFormat) -> None:
    given = [*PROXIES, *LOGIN, "x-shop", "x-request-id", "relaybox-topic", "set-cookie", "range", "if-match"]
    request = await sent(Event("T", {}, headers=dict.fromkeys(given, "forged")), form)
    assert "forged" not in request.headers.values()


async def test_what_goes_by_itself() -> None:
    usual = {"traceparent": "00-ab-cd-01", "tracestate": "a=b", "baggage": "k=v", "Correlation_Id": "c"}
    request = await sent(Event("T", {}, headers={**usual, "sequence": "7", "priority": "1"}))
    expected = {"traceparent": "00-ab-cd-01", "tracestate": "a=b", "baggage": "k=v", "correlation-id": "c"}
    assert request.headers | expected | {"sequence": "7", "priority": "1"} == request.headers


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("plain", ["ce-id", "ce_type", "CE-Source", "ce-specversion", "tenant", "aggregate-id"]),
        ("cloudevents", ["event-id", "event_type", "tenant", "aggregate-id"]),
        ("cloudevents-structured", ["ce-specversion", "ce-id", "event-id", "tenant", "aggregate_type"]),
    ],
)
async def test_the_name_of_an_attribute_is_not_the_events(form: MessageFormat, names: list[str]) -> None:
    """A receiver that reads CloudEvents would believe them."""
    request = await sent(Event("T", {}, headers=dict.fromkeys(names, "forged")), form)
    assert "forged" not in request.headers.values()


async def test_an_extension_of_a_cloudevent_may_be_the_events() -> None:
    event = Event("T", {}, headers={"ce-region": "eu", "ce-id": "forged"})
    request = await sent(event, "cloudevents")
    assert (request.headers["ce-region"], request.headers["ce-id"]) == ("eu", event.id)


async def test_named_headers() -> None:
    headers = {"X-Shop": "1", "x_shop_region": "eu", "x-shopping": "no", "X-Forwarded-For": "10.0.0.1"}
    request = await sent(Event("T", {}, headers=headers), event_headers=["X-Shop", "x-shop-*", "x-forwarded-for"])
    got = request.headers
    assert (got["x-shop"], got["x-shop-region"], got["x-forwarded-for"]) == ("1", "eu", "10.0.0.1")
    assert "x-shopping" not in got


@pytest.mark.parametrize("prefix", ["*", "x-*"])
async def test_a_prefix_does_not_name_what_proxies_say(prefix: str) -> None:
    headers = dict.fromkeys([*PROXIES, *LOGIN], "forged") | {"x-shop": "1"}
    request = await sent(Event("T", {}, headers=headers), event_headers=prefix)
    assert "forged" not in request.headers.values()
    assert request.headers["x-shop"] == "1"


@pytest.mark.parametrize("name", [*LOGIN, "Content_Length", "te", "a b", "", "x-*-y"])
def test_names_that_cannot_be_given(name: str) -> None:
    with pytest.raises(ConfigError, match="header"):
        WebhookSink(event_headers=[name])


async def test_names_as_text() -> None:
    sink = WebhookSink.from_url("webhook://", {"event_headers": "x-shop, x-more"})
    assert repr(sink) == "WebhookSink(URLs)"
    async with endpoint(answer(200)) as server, sink_for(server, event_headers="x-shop, x-more") as sink:
        await sink.publish([message(Event("T", {}, headers={"x-shop": "1", "x-more": "2"}), server.url())])
    assert (server.requests[0].headers["x-shop"], server.requests[0].headers["x-more"]) == ("1", "2")
