"""Kafka: the sink contract against a broker that wants TLS and a password, and the ways to log in."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
import traceback
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from kafka_harness import SecuredHarness

from relaybox.brokers.kafka.sink import KafkaSink
from relaybox.errors import BrokerUnavailable
from relaybox.testing.servers import ServerUnavailable, require
from relaybox.testing.servers.kafka import KafkaServer
from relaybox.testing.sink_contract import SECRET, SinkContract, arrived, messages, publish
from relaybox.testing.sink_contract.harness import check_discreet

OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
MECHANISMS = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": f'{OAUTH} unsecuredLoginStringClaim_sub="broker";',
}


@pytest.fixture(scope="module")
def server() -> Iterator[KafkaServer]:
    try:
        secured = KafkaServer(user="relaybox", password=SECRET, tls=True, settings=MECHANISMS)
    except ServerUnavailable:
        require("kafka")
        raise
    with secured:
        yield secured


@pytest.fixture
def harness(server: KafkaServer) -> SecuredHarness:
    return SecuredHarness(server)


class TestKafka(SinkContract):
    pass


# -- Who we are -------------------------------------------------------------------------------------


async def goes_through(harness: SecuredHarness, sink: KafkaSink) -> None:
    await sink.open()
    topic = await harness.destination()
    sent = messages(sink, topic, ["a", "b"])
    assert await publish(sink, sent) == [None, None]
    await sink.close()
    await arrived(harness, topic, sent)


async def refused(sink: KafkaSink, because: str) -> None:
    check_discreet(repr(sink))
    with pytest.raises(BrokerUnavailable, match=because) as caught:
        await sink.open()
    check_discreet("".join(traceback.format_exception(caught.value)))
    await sink.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_scram(harness: SecuredHarness, mechanism: str) -> None:
    user = f"{mechanism}-user"
    kind = ScramMechanism[mechanism.replace("-", "_")]
    change = UserScramCredentialUpsertion(user, ScramCredentialInfo(kind, 4096), SECRET.encode())
    admin = AdminClient(harness.server.client_settings)
    await asyncio.wrap_future(admin.alter_user_scram_credentials([change])[user])
    await goes_through(harness, harness.sink(sasl=mechanism, username=user))
    await refused(harness.sink(sasl=mechanism, username=user, password=f"{SECRET}!"), "(?i)authentication")


def unsecured_token(lifetime: float) -> tuple[str, float]:
    """What the broker's test mode for OAUTHBEARER takes: a JSON web token that nobody signed."""
    now = time.time()
    parts = {"alg": "none"}, {"sub": "relaybox", "iat": now, "exp": now + lifetime}
    head, claims = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
    return f"{head}.{claims}.", now + lifetime


async def test_tokens(harness: SecuredHarness) -> None:
    asked: list[threading.Thread] = []
    renewed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def token() -> tuple[str, float]:
        asked.append(threading.current_thread())
        if len(asked) > 1:
            loop.call_soon_threadsafe(renewed.set)
        return unsecured_token(3)

    sink = harness.sink(sasl="OAUTHBEARER", username=None, password=None, token=token)
    await sink.open()
    async with asyncio.timeout(20):
        await renewed.wait()
    await goes_through(harness, sink)
    assert threading.main_thread() not in asked, "it may block"


async def test_no_token(harness: SecuredHarness, caplog: pytest.LogCaptureFixture) -> None:
    def token() -> tuple[str, float]:
        raise OSError(f"the token service is away; its password is {SECRET}")

    await refused(harness.sink(sasl="OAUTHBEARER", username=None, password=None, token=token), "OAuth token not set")
    assert "no token for Kafka: the callback raised OSError" in caplog.text
    check_discreet(caplog.text)
