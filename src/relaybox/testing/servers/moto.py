"""Private SQS and SNS: moto's imitation of AWS in a process of its own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .process import LOOPBACK, RestartableServer, ServerUnavailable

GET_SERVER = "pip install 'moto[server]>=5'"


class MotoServer(RestartableServer):
    """SQS, SNS and whatever else moto imitates, on a loopback port; any credentials will do.

    moto keeps everything in memory: `kill`, `stop` and `restart` lose queues, topics and messages. For an outage
    that loses nothing `pause` it, or put a `TcpGate` in front of it.
    """

    kind = "moto"
    region = "us-east-1"

    def __init__(self) -> None:
        if importlib.util.find_spec("moto") is None or importlib.util.find_spec("flask") is None:
            raise ServerUnavailable("moto", GET_SERVER)
        super().__init__(None)  # runs our own interpreter, which another account may not be able to reach

    @property
    def url(self) -> str:
        """For `endpoint_url`."""
        return f"http://{LOOPBACK}:{self.port}"

    def client(self, service: str, url: str | None = None) -> Any:
        """A boto3 client of `service`, by way of `url` (a gate's) if given."""
        boto3: Any = importlib.import_module("boto3")
        return boto3.client(
            service,
            endpoint_url=url or self.url,
            region_name=self.region,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    def _command(self) -> Sequence[str | Path]:
        return [sys.executable, "-m", "relaybox.testing.servers.moto_main", "-H", LOOPBACK, "-p", str(self.port)]

    def _answering_folder(self) -> str:
        """It has nothing to tell it from another moto, but it says so when it has got its port."""
        if b"Running on" not in self._said_since_start():
            raise ConnectionError("not listening yet")
        with urllib.request.urlopen(f"{self.url}/moto-api/data.json", timeout=5):
            pass
        self.client("sqs").list_queues()  # the first call of each loads it, which takes a while
        self.client("sns").list_topics()
        return str(self.folder)
