"""Private Kafka Connect workers with Debezium's connectors, for change data capture."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from .jars import CONNECT
from .kafka import GET_JAVA, JAVA_OPTIONS, LOGGING, KafkaServer
from .process import (
    LOOPBACK,
    RestartableServer,
    ServerFailed,
    ServerUnavailable,
    program,
    unprivileged_account,
)

GET_JARS = "python -m relaybox.testing.servers (needs Maven)"
RUNNING_SECONDS = 60.0


class ConnectServer(RestartableServer):
    """One standalone worker beside a private Kafka. Offsets survive a `kill`, connectors have to be given again.

    `environment` is what `${env:…}` in a connector's configuration reads.
    """

    kind = "connect"

    def __init__(self, kafka: KafkaServer, *, environment: Mapping[str, str] | None = None) -> None:
        self._java = program("Java (to run Kafka Connect)", GET_JAVA, "java")
        self._jars = CONNECT.folder
        if not CONNECT.there:
            raise ServerUnavailable(f"Kafka Connect with {CONNECT.what}", GET_JARS)
        super().__init__(unprivileged_account("kafka"))
        self._kafka = kafka
        self._environment = dict(environment or {})

    def create_connector(self, document: Mapping[str, Any]) -> None:
        """POST it, as an operator would, and wait until its task runs."""
        self.post_connector(document)
        self.wait_for(document["name"])

    def post_connector(self, document: Mapping[str, Any]) -> None:
        self._call("POST", "/connectors", document)

    def wait_for(self, name: str) -> None:
        deadline = time.monotonic() + RUNNING_SECONDS
        while (states := self.states(name)) != ["RUNNING", "RUNNING"]:
            if "FAILED" in states or time.monotonic() > deadline:
                raise ServerFailed(f"connector {name} is {states}\n{self.log_tail(60)}")
            time.sleep(0.05)

    def states(self, name: str) -> list[str]:
        """States of the connector and its tasks; empty while the worker does not know it yet."""
        try:
            status = self._call("GET", f"/connectors/{name}/status")
        except HTTPError as error:
            if error.code != 404:
                raise
            return []
        return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]

    def delete_connector(self, name: str) -> None:
        self._call("DELETE", f"/connectors/{name}")

    def _call(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Any:
        body = None if document is None else json.dumps(document).encode()
        request = Request(
            f"http://{LOOPBACK}:{self.port}{path}", body, {"Content-Type": "application/json"}, method=method
        )
        try:
            with urlopen(request, timeout=30) as response:
                answer = response.read()
        except HTTPError as error:
            if error.code == 400:
                raise ServerFailed(f"Kafka Connect refuses the configuration: {error.read().decode()}") from error
            raise
        return json.loads(answer) if answer else None

    def _prepare(self) -> None:
        self._jars = self._within_reach(self._jars)
        self._write("log4j2.properties", LOGGING)

    def _command(self) -> Sequence[str | Path]:
        converter = "org.apache.kafka.connect.storage.StringConverter"
        settings = {
            "bootstrap.servers": self._kafka.bootstrap,
            "listeners": f"http://{LOOPBACK}:{self.port}",
            "key.converter": converter,
            "value.converter": converter,
            "offset.storage.file.filename": self.folder / "offsets",
            "offset.flush.interval.ms": 500,
            "config.providers": "env",
            "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        }
        worker = self._write("worker.properties", "".join(f"{key}={value}\n" for key, value in settings.items()))
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        return [self._java, *JAVA_OPTIONS, logging, "-cp", f"{self._jars}/*", main, worker]

    def _surroundings(self) -> dict[str, Any]:
        around = super()._surroundings()
        return {**around, "env": {**around["env"], **self._environment}}

    def _answering_folder(self) -> str:
        root = self._call("GET", "/")
        return str(self.folder if root["kafka_cluster_id"] == self._kafka.cluster_id else root["kafka_cluster_id"])
