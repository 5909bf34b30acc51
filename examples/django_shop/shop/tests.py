"""`manage.py test`."""

from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from relaybox import Event
from relaybox.contrib.django import inbox, outbox
from relaybox.testing import assert_published, deliver_pending

from .events import delivery, listeners, processing
from .models import Order


class InTheTransactionOfTheTest(TestCase):
    def test_an_order_is_confirmed(self) -> None:
        answer = self.client.post("/orders/", {"item": "tea"})
        assert_published(outbox(), "OrderPlaced", payload={"id": answer.json()["id"]}, count=1)
        deliver_pending(outbox(), listeners)
        assert Order.objects.get().confirmed

    def test_what_fails_leaves_no_event(self) -> None:
        assert self.client.post("/orders/", {"item": "coffee"}).status_code == 409
        assert outbox().status().due == 0

    def test_async_listeners_use_the_orm(self) -> None:
        order = Order.objects.create(item="tea")
        with transaction.atomic():
            outbox().write(connection, Event("OrderCancelled", {"id": order.pk}))
        deliver_pending(outbox(), listeners)
        assert not Order.objects.exists()

    async def test_the_same_from_an_async_test(self) -> None:
        await self.async_client.post("/orders/", {"item": "tea"})
        await sync_to_async(deliver_pending)(outbox(), listeners)
        assert (await Order.objects.aget()).confirmed


class InTheBackground(TransactionTestCase):
    def setUp(self) -> None:
        assert outbox().status().events == 0  # nothing of the test before

    def cancelled(self) -> None:
        order = Order.objects.create(item="milk")
        with transaction.atomic():
            outbox().write(connection, Event("OrderCancelled", {"id": order.pk}))

    def test_an_order_is_confirmed(self) -> None:
        with delivery() as service:
            self.client.post("/orders/", {"item": "tea"})
            self.cancelled()
            assert service.drain(timeout="20s").dead == 0
        assert Order.objects.get().confirmed

    def test_once(self) -> None:
        self.cancelled()
        assert delivery().once().done == 1
        assert not Order.objects.exists()

    def test_a_payment_counts_once(self) -> None:
        order = Order.objects.create(item="tea")
        told: dict[str, Any] = {"id": "payment-1", "order": order.pk}
        answers = [self.client.post("/payments/", told, "application/json").json()["new"] for _ in range(2)]
        assert answers == [True, False]
        processing().once()
        order.refresh_from_db()
        assert (order.paid, order.parcels) == (True, 1)
        assert inbox("payments").dead.count() == 0
