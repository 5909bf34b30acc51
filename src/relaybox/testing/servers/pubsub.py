"""Google Pub/Sub for tests: the official emulator when one is running, else our own stand-in."""

from __future__ import annotations

import importlib
import json
import os
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from .process import LOOPBACK, RestartableServer, ServerFailed, client_library

EMULATOR_VARIABLE = "PUBSUB_EMULATOR_HOST"
GET_SERVER = f"pip install google-cloud-pubsub, or set {EMULATOR_VARIABLE} to a running emulator's host:port"
PROJECT = "relaybox"

Method = Literal["CreateTopic", "GetTopic", "DeleteTopic", "Publish", "Pull", "Acknowledge", "ModifyAckDeadline"]
Code = Literal[
    "UNAVAILABLE",
    "RESOURCE_EXHAUSTED",
    "INVALID_ARGUMENT",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "INTERNAL",
    "DEADLINE_EXCEEDED",
    "ABORTED",
]


class PubSubServer(RestartableServer):
    """Pub/Sub on a loopback port: a stand-in (see `pubsub_standin`) whose messages survive a `kill`.

    Where PUBSUB_EMULATOR_HOST names an emulator, that one is used; it cannot be killed, paused or scripted by us.
    """

    kind = "pubsub"

    def __init__(self) -> None:
        super().__init__(None)  # runs our own interpreter, which another account may not be able to reach
        self.emulator = os.environ.get(EMULATOR_VARIABLE, "")
        client_library("google.pubsub_v1", GET_SERVER)

    @property
    def host(self) -> str:
        """host:port, as PUBSUB_EMULATOR_HOST wants it."""
        return self.emulator or f"{LOOPBACK}:{self.port}"

    @property
    def running(self) -> bool:
        return bool(self.emulator) or super().running

    def kill(self) -> None:
        self._need_standin("killed")
        super().kill()

    def stop(self) -> None:
        self._need_standin("stopped")
        super().stop()

    def pause(self) -> None:
        self._need_standin("paused")
        super().pause()

    def fail(self, method: Method, code: Code, *, times: int = 1, done_first: bool = False) -> None:
        """Let the next `times` calls of `method` fail; with `done_first` they take effect all the same."""
        self._need_standin("scripted")
        fault = {"method": method, "code": code, "times": times, "done_first": done_first}
        self._control("Fail", json.dumps(fault).encode())

    def fresh_topic(self) -> str:
        """Full name of a topic of its own."""
        name = f"projects/{PROJECT}/topics/rb_{uuid.uuid4().hex[:16]}"
        with self._client("Publisher") as publisher:
            publisher.create_topic(request={"name": name})
        return name

    def fresh_subscription(self, topic: str, *, ordered: bool = True, ack_seconds: int = 10) -> str:
        """Full name of a pull subscription of its own; it gets what is published from now on."""
        name = f"projects/{PROJECT}/subscriptions/rb_{uuid.uuid4().hex[:16]}"
        wanted = {"enable_message_ordering": ordered, "ack_deadline_seconds": ack_seconds}
        with self._client("Subscriber") as subscriber:
            subscriber.create_subscription(request={"name": name, "topic": topic, **wanted})
        return name

    def _client(self, service: Literal["Publisher", "Subscriber"]) -> Any:
        grpc: Any = importlib.import_module("grpc")
        module: Any = importlib.import_module(f"google.pubsub_v1.services.{service.lower()}")
        client = getattr(module, f"{service}Client")
        transport = client.get_transport_class("grpc")(channel=grpc.insecure_channel(self.host))
        return client(transport=transport)

    def _need_standin(self, action: str) -> None:
        if self.emulator:
            raise ServerFailed(f"the emulator at {self.emulator} is not ours to be {action}; unset {EMULATOR_VARIABLE}")

    def _surroundings(self) -> dict[str, Any]:
        surroundings = super()._surroundings()
        surroundings["env"]["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        return surroundings

    def _command(self) -> Sequence[str | Path]:
        return [sys.executable, "-m", f"{__package__}.pubsub_standin", str(self.port), self.folder]

    def _answering_folder(self) -> str:
        return self._control("Folder", b"").decode()

    def _control(self, method: str, request: bytes) -> bytes:
        grpc: Any = importlib.import_module("grpc")
        with grpc.insecure_channel(f"{LOOPBACK}:{self.port}") as channel:
            answer: bytes = channel.unary_unary(f"/relaybox.testing.PubSubStandin/{method}")(request, timeout=5)
            return answer
