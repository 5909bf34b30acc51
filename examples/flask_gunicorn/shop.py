"""Orders over HTTP with Flask, each with an event in the same transaction. gunicorn.conf.py starts delivery."""

from __future__ import annotations

import os

from flask import Flask
from sqlalchemy import create_engine, text

from relaybox import Event, Listeners, Outbox
from relaybox.types import Service

engine = create_engine(os.environ.get("DATABASE_URL", "sqlite:///shop.db"))
outbox = Outbox(engine)
listeners = Listeners()
app = Flask(__name__)


@listeners.on("OrderPlaced")
def send_mail(event: Event) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO mail VALUES (:id, :process)"), {**event.payload, "process": os.getpid()})


def deliver() -> Service:
    return outbox.deliver(listeners)


@app.post("/orders/<int:number>")
def place(number: int) -> tuple[dict[str, int], int]:
    with engine.begin() as connection:  # COMMIT at the end, ROLLBACK on an error
        connection.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number})
        outbox.write(connection, Event("OrderPlaced", {"id": number}, key=f"order-{number}"))
    return {"id": number}, 201


@app.get("/ready")
def ready() -> dict[str, int]:
    return {"process": os.getpid()}


@app.cli.command("prepare")
def prepare() -> None:
    """flask --app shop prepare: before the servers start, once."""
    outbox.migrate()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)"))
        connection.execute(text("CREATE TABLE IF NOT EXISTS mail (order_id INTEGER, process INTEGER)"))
