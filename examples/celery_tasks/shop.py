"""A task that writes an event in its transaction, and a listener that triggers a task."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown
from sqlalchemy import create_engine, text

from relaybox import Event, Listeners, Outbox

app = Celery("shop", broker=os.environ.get("BROKER_URL", "redis://localhost:6379/0"))
app.conf.task_acks_late = True  # a task that a crash cut off runs again, as an event does
engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///shop.db"))
outbox = Outbox(engine)
listeners = Listeners()
delivery = None


@app.task
def place_order(number: int) -> None:
    with engine.begin() as connection:  # COMMIT at the end, ROLLBACK on an error
        done = connection.execute(text("INSERT INTO orders VALUES (:id) ON CONFLICT DO NOTHING"), {"id": number})
        if done.rowcount:  # not a repetition
            outbox.write(connection, Event("OrderPlaced", {"id": number}, key=f"order-{number}"))


@app.task
def send_mail(number: int) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO mail VALUES (:id, :process)"), {"id": number, "process": os.getpid()})


@listeners.on("OrderPlaced")
def trigger(event: Event) -> None:
    send_mail.apply_async([event.payload["id"]], task_id=event.id)  # an event that comes again has the same task id


@worker_process_init.connect
def start(**_: Any) -> None:
    global delivery
    delivery = outbox.deliver(listeners).start()


@worker_process_shutdown.connect
def stop(**_: Any) -> None:
    if delivery is not None:
        delivery.stop()


def prepare() -> None:
    """python -c 'import shop; shop.prepare()': before the workers start, once."""
    outbox.migrate()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)"))
        connection.execute(text("CREATE TABLE IF NOT EXISTS mail (order_id INTEGER, process INTEGER)"))
