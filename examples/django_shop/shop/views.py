import json

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from relaybox import Event
from relaybox.contrib.django import inbox, outbox

from .models import Order


@csrf_exempt
def place_order(request: HttpRequest) -> JsonResponse:
    try:
        with transaction.atomic():  # the order and its event, or neither
            order = Order.objects.create(item=request.POST["item"])
            outbox().write(connection, Event("OrderPlaced", {"id": order.pk}, key=f"order-{order.pk}"))
            if order.item == "coffee":
                raise ValueError("we are out of coffee")
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=409)
    return JsonResponse({"id": order.pk}, status=201)


@csrf_exempt
def receive_payment(request: HttpRequest) -> JsonResponse:
    """The bank repeats itself until it has an answer; each payment is stored once. A real one would be signed."""
    told = json.loads(request.body)
    with transaction.atomic():
        event = Event("PaymentReceived", {"order": told["order"]}, id=told["id"])
        new = inbox("payments").accept(connection, event, sender="bank")
    return JsonResponse({"new": new})
