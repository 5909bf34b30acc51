"""The private brokers of the test kit, tried for real: what was acknowledged survives a kill."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from relaybox.testing import servers
from relaybox.testing.servers import (
    KafkaServer,
    MotoServer,
    NatsServer,
    PrivateServer,
    RabbitMQServer,
    RedisServer,
    ServerFailed,
    ServerUnavailable,
    TcpGate,
    jars,
    require,
)
from relaybox.testing.servers.process import free_port

Server = TypeVar("Server", bound=PrivateServer)


def group_members(group: int) -> set[str]:
    """Living processes of a process group; a zombie waiting for some init to collect it is not one."""
    members = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, fields = entry.read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        state, _, its_group = fields.split()[:3]
        if int(its_group) == group and state != "Z":
            members.add(name.partition("(")[2])
    return members


def offer_the_port_of(neighbour: PrivateServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if somebody took the port between our choosing it and the server's asking for it."""
    offered = iter([neighbour.port])
    original = servers.process.free_port
    monkeypatch.setattr(servers.process, "free_port", lambda: next(offered, None) or original())


@contextlib.contextmanager
def gone_afterwards(server: Server) -> Iterator[Server]:
    with server:
        folder, port, group = server.folder, server.port, server.pid
        assert group_members(group)
        yield server
    assert (folder.exists(), group_members(group)) == (False, set())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


@pytest.mark.parametrize("kind", ["moto", "nats", "pubsub", "redis"])
def test_a_lost_port_is_replaced_and_nothing_is_left(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    neighbour = require(kind)
    offer_the_port_of(neighbour, monkeypatch)
    with gone_afterwards(servers._makers[kind](False)) as server:
        assert server.port != neighbour.port
    assert neighbour.running


# Redis


def redis_at(url: str) -> Any:
    return pytest.importorskip("redis").Redis.from_url(url, socket_timeout=5, decode_responses=True)


@pytest.mark.parametrize("kill", [True, False])
@pytest.mark.parametrize("durable", [True, False])
def test_redis_keeps_what_it_acknowledged(durable: bool, kill: bool) -> None:
    server = require("redis", durable=durable)
    url, port = server.fresh_url(), server.port
    with redis_at(url) as client:
        assert client.config_get("appendfsync") == {"appendfsync": "always" if durable else "no"}
        for chunk in range(20):  # enough to make it read for a while at its start
            pipe = client.pipeline(transaction=False)
            for number in range(1000):
                pipe.xadd("stream", {"n": 1000 * chunk + number})
            pipe.execute()
        server.restart(kill=kill)
        assert (server.port, client.xlen("stream")) == (port, 20_000)


def test_redis_databases_are_separate_and_emptied(monkeypatch: pytest.MonkeyPatch) -> None:
    server = require("redis")
    monkeypatch.setattr(server, "_databases", iter([7, 8, 7]))
    first, other = server.fresh_url(), server.fresh_url()
    with redis_at(first) as one, redis_at(other) as two:
        one.set("key", "value")
        assert two.get("key") is None
        assert server.fresh_url() == first
        assert one.get("key") is None


def test_redis_with_tls_and_a_password() -> None:
    redis = pytest.importorskip("redis")
    require("redis")
    with RedisServer(durable=False, password="open-sesame", tls=True) as server:
        with redis_at(server.fresh_url()) as client:
            assert client.ping()
        for wrong in (
            server.url.replace("open-sesame", "guess"),
            server.url.partition("?")[0],
            server.url.partition("?")[0].replace("rediss", "redis"),
        ):
            with pytest.raises(redis.RedisError), redis_at(wrong) as client:
                client.ping()


# NATS


async def jetstream(server: NatsServer, **options: Any) -> Any:
    nats = pytest.importorskip("nats")
    return await nats.connect(server.url, allow_reconnect=False, connect_timeout=5, **options)


@pytest.mark.parametrize("kill", [True, False])
@pytest.mark.parametrize("durable", [True, False])
async def test_nats_keeps_what_it_acknowledged(durable: bool, kill: bool) -> None:
    server = require("nats", durable=durable)
    port, stream = server.port, f"S{os.urandom(4).hex()}"
    connection = await jetstream(server)
    await connection.jetstream().add_stream(name=stream, subjects=[stream])
    await connection.jetstream().publish(stream, b"1")
    await connection.close()
    server.restart(kill=kill)
    assert server.port == port
    connection = await jetstream(server)
    assert (await connection.jetstream().get_msg(stream, 1)).data == b"1"
    await connection.close()


async def test_nats_with_tls_and_a_password() -> None:
    nats = pytest.importorskip("nats")
    require("nats")
    with NatsServer(durable=False, user="ali", password="open-sesame", tls=True) as server:
        trust = ssl.create_default_context(cafile=server.ca_file)
        connection = await jetstream(server, tls=trust)
        await connection.close()
        with pytest.raises(nats.errors.Error):
            await jetstream(server, tls=trust, user="ali", password="guess")
        with pytest.raises(ssl.SSLCertVerificationError):
            await jetstream(server, tls=ssl.create_default_context())


# RabbitMQ


def amqp(url: str, trust: ssl.SSLContext | None = None) -> Any:
    pika = pytest.importorskip("pika")
    parameters = pika.URLParameters(url)
    if trust is not None:
        parameters.ssl_options = pika.SSLOptions(trust, "127.0.0.1")
    return pika.BlockingConnection(parameters)


def test_rabbitmq_keeps_what_it_confirmed() -> None:
    pika = pytest.importorskip("pika")
    server = require("rabbitmq")
    url, port = server.fresh_vhost(), server.port
    channel = amqp(url).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"1", pika.BasicProperties(delivery_mode=2))
    server.restart()
    assert server.port == port
    with amqp(url) as connection:
        assert connection.channel().basic_get("q")[2] == b"1"


def test_rabbitmq_virtual_hosts_are_separate_and_ctl_reaches_the_node() -> None:
    pika = pytest.importorskip("pika")
    server = require("rabbitmq")
    with amqp(server.fresh_vhost()) as one, amqp(server.fresh_vhost()) as other:
        one.channel().queue_declare("q")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
            other.channel().queue_declare("q", passive=True)
    with pytest.raises(ServerFailed, match="status 64"):
        server.ctl("nonsense")
    with amqp(server.url) as publisher:
        blocked = threading.Event()
        publisher.add_on_connection_blocked_callback(lambda *_: blocked.set())
        server.ctl("set_vm_memory_high_watermark", "0.00001")
        try:
            publisher.channel().basic_publish("", "nowhere", b"1")
            while not blocked.is_set():
                publisher.process_data_events(time_limit=10)
        finally:
            server.ctl("set_vm_memory_high_watermark", "0.4")


def test_rabbitmq_with_tls_beside_another_node(monkeypatch: pytest.MonkeyPatch) -> None:
    pika = pytest.importorskip("pika")
    neighbour = require("rabbitmq")
    offer_the_port_of(neighbour, monkeypatch)
    with gone_afterwards(RabbitMQServer(tls=True)) as server:
        url = server.fresh_vhost()
        with amqp(url, ssl.create_default_context(cafile=server.ca_file)) as connection:
            connection.channel().queue_declare("q")
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            amqp(url.replace("amqps", "amqp"))
    with amqp(neighbour.url) as connection:
        assert connection.is_open


# Kafka


def produce(settings: dict[str, Any], topic: str, value: bytes) -> None:
    producer = pytest.importorskip("confluent_kafka").Producer({**settings, "acks": "all", "log_level": 0})
    outcomes: list[Any] = []
    producer.produce(topic, value, partition=0, on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(10)
    assert outcomes == [None]


def consume(server: KafkaServer, topic: str, count: int) -> list[bytes]:
    kafka = pytest.importorskip("confluent_kafka")
    consumer = kafka.Consumer({**server.client_settings, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([kafka.TopicPartition(topic, 0, kafka.OFFSET_BEGINNING)])
        return [message.value() for message in consumer.consume(count, timeout=10)]
    finally:
        consumer.close()


@pytest.mark.parametrize("kill", [True, False])
def test_kafka_keeps_what_it_acknowledged(kill: bool) -> None:
    server = require("kafka")
    topic, bootstrap = server.fresh_topic(), server.bootstrap
    produce(server.client_settings, topic, b"1")
    server.restart(kill=kill)
    assert server.bootstrap == bootstrap
    produce(server.client_settings, topic, b"2")
    assert consume(server, topic, 2) == [b"1", b"2"]


def test_kafka_creates_topics_only_when_asked() -> None:
    kafka = pytest.importorskip("confluent_kafka")
    server = require("kafka")
    name = f"t{os.urandom(4).hex()}"
    producer = kafka.Producer({**server.client_settings, "topic.metadata.propagation.max.ms": 0, "log_level": 0})
    outcomes: list[Any] = []
    producer.produce(name, b"1", on_delivery=lambda error, _: outcomes.append(error.name()))
    producer.flush(10)
    assert outcomes == ["UNKNOWN_TOPIC_OR_PART"]
    server.create_topic(name, partitions=3, settings={"max.message.bytes": "2000"})
    assert len(producer.list_topics(name).topics[name].partitions) == 3
    with pytest.raises(kafka.KafkaException, match="exists"):
        server.create_topic(name)


def test_a_silent_kafka_says_where_its_start_stands() -> None:
    said = require("kafka")._last_words()
    assert '"main"' in said
    assert "kafka.Kafka" in said


def test_kafka_starts_while_nobody_listens_where_it_says_it_is() -> None:
    """A client that learned of that address asks nowhere else."""
    with KafkaServer(settings={"advertised.listeners": f"PLAINTEXT://127.0.0.1:{free_port()}"}) as server:
        assert server.running


@pytest.mark.parametrize("kind", ["nats", "pubsub", "redis"])
def test_a_paused_server_has_stopped(kind: str) -> None:
    server = require(kind)
    for _ in range(20):
        server.pause()
        try:
            state = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state == "T"
        finally:
            server.resume()


def test_kafka_with_tls_and_a_password_behind_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = pytest.importorskip("confluent_kafka")
    offer_the_port_of(require("kafka"), monkeypatch)
    with TcpGate() as gate:
        advertised = {"advertised.listeners": f"SASL_SSL://127.0.0.1:{gate.port}"}
        secured = KafkaServer(user="ali", password="open-sesame", tls=True, settings=advertised)
        with gone_afterwards(secured) as server:
            gate.target_port = server.port
            topic = server.fresh_topic()
            settings = {**server.client_settings, "bootstrap.servers": f"127.0.0.1:{gate.port}", "log_level": 0}
            produce(settings, topic, b"1")
            with pytest.raises(kafka.KafkaException):
                kafka.Producer({**settings, "sasl.password": "guess"}).list_topics(timeout=1)
            client = kafka.Producer(settings)
            gate.refuse()
            with pytest.raises(kafka.KafkaException):
                client.list_topics(timeout=1)
            gate.open()
            assert topic in client.list_topics(timeout=10).topics


def test_kafka_jars_are_fetched_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "cache" / "kafka"
    monkeypatch.setenv(jars.JARS_VARIABLE, str(target))
    monkeypatch.setattr(jars, "find_program", lambda name: None)
    with pytest.raises(ServerUnavailable, match="Maven"):
        jars.KAFKA.fetch()
    broken = tmp_path / "mvn"
    broken.write_text("#!/bin/sh\nmkdir jars && touch jars/kafka_2.13.jar && echo no route && exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(jars, "find_program", lambda name: broken)
    with pytest.raises(ServerFailed, match="no route"):
        jars.KAFKA.fetch()
    assert list(target.parent.iterdir()) == []
    broken.write_text(broken.read_text().replace("exit 1", "exit 0"))
    assert jars.KAFKA.fetch() == target
    assert jars.KAFKA.there
    if shutil.which("java"):
        monkeypatch.setenv(jars.JARS_VARIABLE, str(tmp_path))
        with pytest.raises(ServerUnavailable, match=r"python -m relaybox\.testing\.servers"):
            KafkaServer()


# SQS and SNS


@pytest.fixture
def moto() -> MotoServer:
    return require("moto")


def test_moto_carries_messages_from_topic_to_queue(moto: MotoServer) -> None:
    queues, topics = moto.client("sqs"), moto.client("sns")
    queue = queues.create_queue(QueueName=f"q{os.urandom(4).hex()}")["QueueUrl"]
    arn = queues.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    topic = topics.create_topic(Name=f"t{os.urandom(4).hex()}")["TopicArn"]
    topics.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=arn)
    topics.publish(TopicArn=topic, Message="hello")
    (message,) = queues.receive_message(QueueUrl=queue, WaitTimeSeconds=5)["Messages"]
    assert json.loads(message["Body"])["Message"] == "hello"


def test_moto_gives_what_was_given_back_in_order(moto: MotoServer) -> None:
    client = moto.client("sqs")
    queue = client.create_queue(QueueName="given-back.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    for n in range(3):
        client.send_message(QueueUrl=queue, MessageBody=str(n), MessageGroupId="a", MessageDeduplicationId=str(n))
    for _ in range(200):  # most times it did so in any case
        found = client.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, VisibilityTimeout=60)["Messages"]
        assert [message["Body"] for message in found] == ["0", "1", "2"]
        entries = [{"Id": m["Body"], "ReceiptHandle": m["ReceiptHandle"], "VisibilityTimeout": 0} for m in found]
        client.change_message_visibility_batch(QueueUrl=queue, Entries=entries)


def test_moto_keeps_its_queues_over_a_pause_and_a_closed_gate_but_not_over_a_kill(moto: MotoServer) -> None:
    with TcpGate(moto.port) as gate:
        client = moto.client("sqs", gate.through(moto.url))
        queue = client.create_queue(QueueName="kept")["QueueUrl"]
        gate.refuse()
        with pytest.raises(ConnectionRefusedError):
            through(gate)
        gate.open()
        assert client.list_queues()["QueueUrls"]
        moto.pause()
        with socket.create_connection(("127.0.0.1", moto.port), timeout=0.2) as silent:
            silent.sendall(b"GET /moto-api/data.json HTTP/1.0\r\n\r\n")
            with pytest.raises(TimeoutError):
                silent.recv(1)
        moto.resume()
        client.send_message(QueueUrl=queue, MessageBody="1")
        port = moto.port
        moto.restart()
        assert moto.port == port
        assert "QueueUrls" not in client.list_queues()


# The gate


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            heard.append(line)
            self.wfile.write(line)
        hung_up.set()


heard: list[bytes] = []
hung_up = threading.Event()


@pytest.fixture
def gate() -> Iterator[TcpGate]:
    heard.clear()
    hung_up.clear()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with TcpGate(server.server_address[1]) as gate:
            yield gate
        server.shutdown()


def through(gate: TcpGate) -> socket.socket:
    return socket.create_connection(("127.0.0.1", gate.port), timeout=5)


def ask(client: socket.socket, line: bytes) -> bytes:
    client.sendall(line)
    return client.recv(100)


def test_gate_rewrites_the_address_only() -> None:
    with TcpGate(1) as gate:
        url = gate.through("amqp://user:p%40ss@127.0.0.1:5672/v%2Fhost?heartbeat=3")
        assert url == f"amqp://user:p%40ss@127.0.0.1:{gate.port}/v%2Fhost?heartbeat=3"
        assert gate.through("http://localhost:1") == f"http://127.0.0.1:{gate.port}"


def test_gate_refuses_and_opens_on_the_same_port(gate: TcpGate) -> None:
    for _ in range(3):
        with through(gate) as client:
            assert ask(client, b"1\n") == b"1\n"
            gate.refuse()
            assert client.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            through(gate)
        gate.open()


def test_gate_forwards_nothing_once_it_refuses(gate: TcpGate) -> None:
    for _ in range(200):
        with through(gate) as client:  # accepted, but perhaps not yet among the connections to be cut
            gate.refuse()
            with contextlib.suppress(ConnectionError):
                assert ask(client, b"1\n") == b""
        gate.open()
    assert heard == []


def test_gate_holds_everything_back_as_a_black_hole(gate: TcpGate) -> None:
    with through(gate) as old:
        assert ask(old, b"1\n") == b"1\n"
        gate.blackhole()
        with through(gate) as new:
            for client, line in ((old, b"2\n"), (new, b"3\n")):
                client.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    ask(client, line)
                client.settimeout(5)
            assert heard == [b"1\n"]
            gate.open()
            assert (old.recv(100), new.recv(100)) == (b"2\n", b"3\n")


def test_gate_drops_replies_and_then_cuts_the_torn_connections(gate: TcpGate) -> None:
    with through(gate) as torn, through(gate) as whole:
        assert ask(whole, b"1\n") == b"1\n"
        gate.drop_replies()
        torn.settimeout(0.1)
        with pytest.raises(TimeoutError):
            ask(torn, b"2\n")
        assert heard == [b"1\n", b"2\n"]
        gate.open()
        torn.settimeout(5)
        assert torn.recv(1) == b""
        assert ask(whole, b"3\n") == b"3\n"


def test_gate_hangs_up_when_the_client_dies(gate: TcpGate) -> None:
    client = through(gate)
    assert ask(client, b"1\n") == b"1\n"
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close by reset
    client.close()
    assert hung_up.wait(5)


def test_gate_before_a_dead_server_cuts_connections_off() -> None:
    with TcpGate(servers.process.free_port()) as gate, through(gate) as client:
        assert client.recv(1) == b""
