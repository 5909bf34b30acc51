"""The same with pytest-django: `pytest`."""

import pytest
from django.test import Client
from shop.events import delivery, listeners
from shop.models import Order

from relaybox.contrib.django import outbox
from relaybox.testing import assert_published, deliver_pending


@pytest.mark.django_db
def test_an_order_is_confirmed(client: Client) -> None:
    client.post("/orders/", {"item": "tea"})
    assert_published(outbox(), "OrderPlaced", count=1)
    deliver_pending(outbox(), listeners)
    assert Order.objects.get().confirmed


@pytest.mark.parametrize("time", ["first", "second"])
@pytest.mark.django_db(transaction=True)
def test_in_the_background(client: Client, time: str) -> None:
    assert outbox().status().events == 0
    with delivery() as service:
        client.post("/orders/", {"item": "tea"})
        service.drain(timeout="20s")
    assert Order.objects.get().confirmed
