"""TLS and SASL over both client libraries, against Apache Kafka: what works, and what the errors say."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from hailbus import (
    BrokerUnreachableError,
    ConfigurationError,
    ConnectionRejectedError,
    Context,
    Event,
    KafkaBus,
    Service,
    SubscriberSettings,
    Topic,
)
from hailbus.environment import bus_from_environment

from tests.secure_kafka import KEY_PASSWORD, MECHANISMS, PASSWORD, USER, SecureKafka, secure_kafka

Until = Callable[..., Awaitable[None]]
Settings = dict[str, Any]  # Any: settings of `KafkaBus`


@pytest.fixture(scope="module")
def kafka() -> SecureKafka:
    return secure_kafka()


@pytest.fixture(autouse=True)
async def connections_are_closed(until: Until) -> AsyncIterator[None]:
    """Keep the loop until the ends of TLS have been exchanged: aiokafka does not wait for the end of a refused one.

    Closed with its loop before that, a socket would be left to the garbage collector, and to some later test.
    """
    yield
    watched = asyncio.get_running_loop()._selector.get_map()  # type: ignore[attr-defined]  # no public name
    await until(lambda: len(watched) == 1)  # the loop's own, by which other threads wake it


def tls(kafka: SecureKafka, address: str, **more: Any) -> Settings:
    return {"bootstrap_servers": address, "security_protocol": "SSL", "ssl_ca_file": kafka.ca, **more}


def sasl(kafka: SecureKafka, mechanism: str = "PLAIN", **more: Any) -> Settings:
    return {
        "bootstrap_servers": kafka.sasl_ssl,
        "security_protocol": "SASL_SSL",
        "ssl_ca_file": kafka.ca,
        "sasl_mechanism": mechanism,
        "sasl_username": USER,
        "sasl_password": PASSWORD,
        **more,
    }


def open_sasl(kafka: SecureKafka, mechanism: str = "PLAIN", **more: Any) -> Settings:
    found = sasl(kafka, mechanism, bootstrap_servers=kafka.sasl_plaintext, security_protocol="SASL_PLAINTEXT", **more)
    del found["ssl_ca_file"]
    return found


WORKS: dict[str, Callable[[SecureKafka], Settings]] = {
    "SSL": lambda k: tls(k, k.ssl),
    "SSL, another host name": lambda k: tls(k, k.ssl.replace("127.0.0.1", "localhost"), ssl_check_hostname=False),
    "SSL, client certificate": lambda k: tls(k, k.mutual, ssl_cert_file=k.certificate, ssl_key_file=k.key),
    "SSL, client certificate with a password": lambda k: tls(
        k,
        k.mutual,
        ssl_cert_file=k.certificate_with_password,
        ssl_key_file=k.encrypted_key,
        ssl_key_password=KEY_PASSWORD,
    ),
    "SASL_PLAINTEXT, PLAIN": open_sasl,
    "SASL_PLAINTEXT, SCRAM-SHA-512": lambda k: open_sasl(k, "SCRAM-SHA-512"),
    **{f"SASL_SSL, {name}": lambda k, name=name: sasl(k, name) for name in MECHANISMS},  # type: ignore[misc]  # mypy infers no lambda with a default
}


@pytest.mark.parametrize("how", WORKS)
async def test_events_go_round(how: str, kafka: SecureKafka, client: str, until: Until) -> None:
    topic = Topic(f"secure-{random.randrange(10**9)}", partitions=1)

    class Placed(Event, topic=topic, key="order_id", type="order.placed"):
        order_id: str

    svc = Service(topic.name, subscribing=SubscriberSettings(commit_interval=timedelta(milliseconds=50)))
    orders = svc.publishes(Placed)
    seen: list[str] = []

    @svc.on(Placed)
    async def take(event: Placed, ctx: Context) -> None:
        seen.append(event.order_id)

    # From the environment, as deployments have it.
    given = {f"HAILBUS_{name.upper()}": str(value) for name, value in WORKS[how](kafka).items()}
    bus = bus_from_environment({**given, "HAILBUS_CLIENT": client})
    async with svc.running(bus):
        await orders.publish(Placed(order_id="a"))
        await until(lambda: seen == ["a"])


REJECTED: dict[str, tuple[Callable[[SecureKafka], Settings], str, str]] = {
    "an authority that did not sign": (
        lambda k: tls(k, k.ssl, ssl_ca_file=k.other_ca),
        "another-authority.pem' did not sign the broker's certificate",
        "give the authority that did by ssl_ca_file=",
    ),
    "the system's authorities": (
        lambda k: {"bootstrap_servers": k.ssl, "security_protocol": "SSL"},
        "the system's authorities did not sign the broker's certificate",
        "give the authority that did by ssl_ca_file=",
    ),
    "another host name": (
        lambda k: tls(k, k.ssl.replace("127.0.0.1", "localhost")),
        "the broker's certificate is not valid for 'localhost'",
        "connect by a name that it has",
    ),
    "no client certificate": (
        lambda k: tls(k, k.mutual),
        "the broker wants a certificate of this client that it trusts, and got no certificate",
        "give one by ssl_cert_file= and ssl_key_file=",
    ),
    "no TLS": (
        lambda k: {"bootstrap_servers": k.ssl},
        "the listener speaks TLS",
        "give security_protocol='SSL'",
    ),
    **{
        f"a wrong password, {name}": (
            lambda k, name=name: sasl(k, name, sasl_password="wrong"),  # type: ignore[misc]  # as above
            "SASL: Authentication failed",
            f"check sasl_username= and sasl_password=, and that the user may use {name}",
        )
        for name in MECHANISMS
    },
    "an unknown user": (
        lambda k: sasl(k, "SCRAM-SHA-256", sasl_username="nobody"),
        "SASL: Authentication failed",
        "check sasl_username= and sasl_password=, and that the user may use SCRAM-SHA-256",
    ),
    "a mechanism that is not enabled": (
        lambda k: open_sasl(k, "SCRAM-SHA-256") | {"bootstrap_servers": k.plain_only},
        "the listener does not offer sasl_mechanism='SCRAM-SHA-256'",
        "give a mechanism that it has enabled",
    ),
    "SASL where there is none": (
        lambda k: open_sasl(k) | {"bootstrap_servers": k.plaintext},
        "the listener has no SASL",
        "give security_protocol='PLAINTEXT', or the address of a listener with SASL",
    ),
}
"""Settings, what is wrong with them, and what to do."""


async def start(settings: Settings, client: str, *, connect_timeout_s: float) -> None:
    """Start a service that only publishes: its producer is the first to connect, or the admin of aiokafka."""
    svc = Service("refused", provision=client == "aiokafka")
    svc.publishes(Refused)
    async with svc.running(KafkaBus(client=client, connect_timeout_s=connect_timeout_s, **settings)):  # type: ignore[arg-type]  # a name of a client
        pass


class Refused(Event, topic=Topic("refused.v1"), type="order.refused"):
    order_id: str


@pytest.mark.parametrize("what", REJECTED)
async def test_the_error_says_what_does_not_fit_and_what_to_do(what: str, kafka: SecureKafka, client: str) -> None:
    settings, reason, advice = REJECTED[what]
    # aiokafka ends at once; librdkafka does not tell of each refusal, and then tries until the end.
    wait_s = 60.0 if client == "aiokafka" else 1.5
    with pytest.raises(ConnectionRejectedError) as refusal:
        async with asyncio.timeout(50):
            await start(settings(kafka), client, connect_timeout_s=wait_s)
    address = settings(kafka)["bootstrap_servers"]
    assert str(refusal.value).startswith(f"the connection to the broker at {address} was rejected: ")
    assert reason in str(refusal.value)
    assert str(refusal.value).endswith(f"; {advice}")


@pytest.mark.parametrize(
    ("settings", "reason", "advice"),
    [
        pytest.param(
            lambda k: tls(k, k.plaintext),
            "the listener closed the connection during the TLS handshake",
            "if it has no TLS, give security_protocol='PLAINTEXT'; else look at the broker's log",
            id="TLS where there is none",
        ),
        pytest.param(
            lambda k: {"bootstrap_servers": k.sasl_plaintext},
            "the listener closed the connection after the first request",
            "if it wants SASL, give security_protocol='SASL_PLAINTEXT'; else look at the broker's log",
            id="no SASL",
        ),
    ],
)
async def test_what_a_starting_broker_could_do_as_well_is_tried_until_the_end(
    settings: Callable[[SecureKafka], Settings], reason: str, advice: str, kafka: SecureKafka, client: str
) -> None:
    with pytest.raises(BrokerUnreachableError) as refusal:
        await start(settings(kafka), client, connect_timeout_s=1.5)
    assert not isinstance(refusal.value, ConnectionRejectedError)
    assert f": {reason}); {advice}" in str(refusal.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"ssl_ca_file": "/nowhere.pem"}, "ssl_ca_file='/nowhere.pem' cannot be used: No such file or directory"),
        ({"ssl_ca_file": __file__}, "cannot be used: "),
        ({"certificate": "client", "ssl_key_password": "wrong"}, "and the key's ssl_key_password="),
        ({"certificate": "client"}, "and the key's ssl_key_password="),
        ({"certificate": "mixed"}, "give readable PEM files that belong together"),
    ],
)
async def test_files_that_cannot_be_used_are_named(
    settings: Settings, sentence: str, kafka: SecureKafka, client: str
) -> None:
    given = tls(kafka, kafka.mutual) | settings
    if kind := given.pop("certificate", None):
        given |= {"ssl_cert_file": kafka.certificate_with_password, "ssl_key_file": kafka.encrypted_key}
        if kind == "mixed":
            given["ssl_key_file"] = kafka.key
    with pytest.raises(ConfigurationError) as refusal:
        await start(given, client, connect_timeout_s=1.5)
    assert not isinstance(refusal.value, BrokerUnreachableError)
    assert sentence in str(refusal.value)
