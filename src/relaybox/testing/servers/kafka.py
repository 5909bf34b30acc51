"""Private Apache Kafka brokers: the real one, in KRaft mode, from its published jars."""

from __future__ import annotations

import base64
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .jars import JARS_VARIABLE, KAFKA, KAFKA_VERSION
from .process import (
    LOOPBACK,
    RestartableServer,
    ServerUnavailable,
    client_library,
    free_port,
    program,
    unprivileged_account,
)

GET_JAVA = "apt-get install openjdk-17-jre-headless (or another Java runtime, 17 or newer)"
GET_JARS = (
    "python -m relaybox.testing.servers (needs Maven), "
    f"or point {JARS_VARIABLE} at the libs folder of an unpacked Kafka {KAFKA_VERSION}"
)
GET_CLIENT = "pip install 'confluent-kafka>=2.4'"

LOGGING = """rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c: %m%n
"""
JAVA_OPTIONS = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]  # starts in half the time


class KafkaServer(RestartableServer):
    """One broker that is its own controller, on a loopback port; what it acknowledged survives a `kill`.

    Topics are never created by being used. With `user` clients have to log in (SASL PLAIN); `settings` overrides
    any line of its configuration.
    """

    kind = "kafka"

    def __init__(
        self,
        *,
        user: str | None = None,
        password: str | None = None,
        tls: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._java = program("Java (to run Kafka)", GET_JAVA, "java")
        self._origin = self._jars = KAFKA.folder
        if not KAFKA.there:
            raise ServerUnavailable(f"Apache {KAFKA.what}", GET_JARS)
        super().__init__(unprivileged_account("kafka"), tls=tls)
        self._user = user
        self._password = password
        self._settings = dict(settings or {})
        self.cluster_id = ""
        self._admin: Any = None

    @property
    def bootstrap(self) -> str:
        """For `bootstrap.servers`."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def client_settings(self) -> dict[str, Any]:
        """What a client of librdkafka needs to get in."""
        settings: dict[str, Any] = {"bootstrap.servers": self.bootstrap, "security.protocol": self._protocol}
        if self._tls:
            settings["ssl.ca.location"] = str(self.ca_file)
        if self._user:
            login = {"sasl.username": self._user, "sasl.password": self._password}
            settings |= {"sasl.mechanism": "PLAIN", **login}
        return settings

    def create_topic(self, name: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        topic = admin_api().NewTopic(name, partitions, replication_factor=1, config=dict(settings or {}))
        self._client().create_topics([topic])[name].result(timeout=30)

    def fresh_topic(self, partitions: int = 1) -> str:
        """Name of an empty topic of its own."""
        name = f"rb_{uuid.uuid4().hex[:16]}"
        self.create_topic(name, partitions)
        return name

    @property
    def _protocol(self) -> str:
        secured = "SSL" if self._tls else "PLAINTEXT"
        return f"SASL_{secured}" if self._user else secured

    def _prepare(self) -> None:
        super()._prepare()
        if self._tls:
            self._write("keystore.pem", (self.folder / "key.pem").read_text() + self.ca_file.read_text())
        self._jars = self._within_reach(self._origin)
        self._write("log4j2.properties", LOGGING)
        self.cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        configuration = self._configure(broker_port=1)  # the format does not depend on ports
        format_storage = ["kafka.tools.StorageTool", "format", f"--cluster-id={self.cluster_id}"]
        self._run([*self._virtual_machine(), *format_storage, "--config", configuration])

    def _command(self) -> Sequence[str | Path]:
        self._admin = None  # the port may be another one
        return [*self._virtual_machine(), "kafka.Kafka", self._configure(self.port)]

    def _virtual_machine(self) -> list[str | Path]:
        logging = f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"
        return [self._java, *JAVA_OPTIONS, logging, "-cp", f"{self._jars}/*"]

    def _configure(self, broker_port: int) -> Path:
        controller_port = free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"{self._protocol}://{LOOPBACK}:{broker_port},CONTROLLER://{LOOPBACK}:{controller_port}",
            "listener.security.protocol.map": f"{self._protocol}:{self._protocol},CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": self._protocol,
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "log.cleaner.dedupe.buffer.size": str(2 << 20),
            # After a kill the controller waits for the session of the broker's former life to run out.
            "broker.session.timeout.ms": "1500",
            "broker.heartbeat.interval.ms": "250",
            **self._security(),
            **self._settings,
        }
        return self._write("server.properties", "".join(f"{key}={value}\n" for key, value in settings.items()))

    def _security(self) -> dict[str, str]:
        settings: dict[str, str] = {}
        if self._tls:
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self.folder / "keystore.pem")}
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ca_file)}
        if self._user:
            module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
            own = f'username="{self._user}" password="{self._password}"'  # the broker is its own client at times
            accepted = f'user_{self._user}="{self._password}"'
            settings |= {"sasl.enabled.mechanisms": "PLAIN", "sasl.mechanism.inter.broker.protocol": "PLAIN"}
            listener = f"listener.name.{self._protocol.lower()}.plain.sasl.jaas.config"
            settings[listener] = f"{module} {own} {accepted};"
        return settings

    def _answering_folder(self) -> str:
        try:
            metadata = self._client().list_topics(timeout=1)
        except Exception:
            self._admin = None  # a late answer sends it on to the advertised address: nobody may be there
            raise
        if not metadata.brokers:
            raise ConnectionError("the controller has not let the broker in yet")
        return str(self.folder if metadata.cluster_id == self.cluster_id else metadata.cluster_id)

    def _last_words(self) -> str:
        """Its log, and where the thread that starts it stands."""
        said = self.log_tail()
        self._signal_group(signal.SIGQUIT)  # a Java machine then writes out its threads
        for _ in range(500):
            *written, _ = (
                self._said_since_start().decode(errors="replace").split("\n\n")
            )  # the last may be half a stack
            starting = [stack for stack in written if '"main"' in stack]
            if starting:
                return "\n\n".join([said, *starting])
            time.sleep(0.02)
        return said

    def _client(self) -> Any:
        if self._admin is None:
            impatient = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100}
            self._admin = admin_api().AdminClient({**self.client_settings, "log_level": 0, **impatient})
        return self._admin


def admin_api() -> Any:
    return client_library("confluent_kafka.admin", GET_CLIENT)
