"""What hailbus needs of aiokafka beside its public interface is still there, and is used in one module alone."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hailbus
import pytest
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import KafkaError
from aiokafka.producer.sender import Sender
from hailbus import ConfigurationError, KafkaBus, PublisherSettings, SubscriberSettings
from hailbus._transport import aiokafka_private, cluster, record_bytes
from hailbus._transport.aiokafka_client import connection
from hailbus._transport.librdkafka_client import Connection
from hailbus.partitioner import Murmur2

SOURCE = Path(hailbus.__file__).parent


def test_aiokafka_still_has_every_private_attribute_that_is_used() -> None:
    assert aiokafka_private.missing() == []


def test_an_attribute_that_was_renamed_is_named_in_a_sentence() -> None:
    (sentence,) = aiokafka_private.missing([(Sender, "_renamed", "to see whether a producer still sends")])
    assert re.fullmatch(
        r"aiokafka [\d.]+ has no aiokafka\.producer\.sender\.Sender\._renamed, which "
        r"hailbus\._transport\.aiokafka_private needs to see whether a producer still sends",
        sentence,
    )


def test_private_attributes_of_the_client_library_are_used_in_one_module() -> None:
    private = re.compile(
        r"(?<!self)\.(_sender|_coordinator|_coordination_task|_heartbeat_task|_conns|_wait_on_metadata|_get_cluster_metadata"
        r"|_send_request_to_node|force_metadata_update|_client\._client|_fetcher|_partition_records)\b"
    )
    found = {
        path.name
        for path in SOURCE.rglob("*.py")
        if private.search(path.read_text()) and "aiokafka" in path.read_text()
    }
    assert found == {"aiokafka_private.py"}


def test_every_listed_attribute_is_used_in_the_module() -> None:
    functions = Path(aiokafka_private.__file__).read_text().partition("def sender_ended")[2]
    unused = [name for _, name, _ in aiokafka_private.PRIVATE if not re.search(rf"[.\"]{name}\b", functions)]
    assert unused == []


async def test_a_consumer_whose_heartbeat_has_failed_is_no_member_any_more() -> None:
    async def ends(error: Exception | None) -> None:
        if error is not None:
            raise error

    async def consumer(error: Exception | None) -> Any:  # Any: all that is looked at of a consumer
        heartbeat = asyncio.create_task(ends(error))
        await asyncio.wait([heartbeat])
        coordination: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return SimpleNamespace(_coordinator=SimpleNamespace(_coordination_task=coordination, _heartbeat_task=heartbeat))

    assert aiokafka_private.membership_ended(await consumer(KafkaError("unexpected exception in heartbeat task")))
    assert not aiokafka_private.membership_ended(await consumer(None)), "it ends before each rebalance"


async def test_without_the_attributes_of_the_fetcher_the_consumer_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    renamed = (Fetcher, "_renamed", "to read fetched batches into records of hailbus")
    monkeypatch.setattr(aiokafka_private, "_FETCHING", [renamed])
    untouched: Any = object()  # Any: any use of its attributes would raise
    aiokafka_private.read_into_records(untouched)


SERVER = {"bootstrap_servers": "127.0.0.1:9092"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"client": "confluent"}, "neither 'aiokafka' nor 'librdkafka'"),
        ({"assignor": "cooperative-sticky"}, "needs client='librdkafka'"),
        ({"assignor": "sticky", "client": "librdkafka"}, "needs client='aiokafka'"),
        ({"rebalance_timeout_ms": 5_000, "client": "librdkafka"}, "rebalance_timeout_ms=5000 shorter than"),
        ({"acks": 1}, "exclude each other"),
        ({"heartbeat_interval_ms": 10_000}, "not shorter than session_timeout_ms=10000"),
        ({"ssl_ca_file": "ca.pem"}, "does not encrypt; give security_protocol='SSL'"),
        ({"ssl_cert_file": "a.pem", "security_protocol": "SSL"}, "belong together"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_username= and sasl_password="),
        ({"sasl_username": "me", "sasl_password": "x"}, "does not authenticate"),
    ],
)
def test_settings_that_contradict_are_refused_by_a_sentence(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        KafkaBus(**SERVER, **settings)  # type: ignore[arg-type]  # the point of the test


def test_tls_is_on_without_a_context_of_ones_own() -> None:
    bus = KafkaBus(bootstrap_servers="127.0.0.1:9093", security_protocol="SSL", ssl_check_hostname=False)
    context = connection(bus, "x")["ssl_context"]
    assert context is not None
    assert not context.check_hostname
    assert connection(KafkaBus(bootstrap_servers="127.0.0.1:9093", security_protocol="SSL"), "x")[
        "ssl_context"
    ].check_hostname
    assert connection(KafkaBus(bootstrap_servers="127.0.0.1:9092"), "x")["ssl_context"] is None


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8_191, 8_192, 1_000_000])
def test_the_size_of_a_record_is_that_of_the_batch_that_holds_it(size: int) -> None:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder  # the same bytes by other code

    record = (b"k" * (size % 100), b"v" * size, [("ce_id", b"x" * (size % 70)), ("é", b"")])
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=2**30,
    )
    builder.append(0, 1_700_000_000_000, record[0], record[1], record[2])
    assert record_bytes(record) == len(builder.build())
    assert record_bytes((None, None, [])) == 61 + 1 + 6


def test_the_extra_of_a_missing_client_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'hailbus\[librdkafka\]'"):
        KafkaBus(bootstrap_servers="127.0.0.1:9092", client="librdkafka")


def test_librdkafka_gets_the_same_security_settings() -> None:
    loop = asyncio.new_event_loop()
    try:
        bus = KafkaBus(
            bootstrap_servers="127.0.0.1:9093",
            client="librdkafka",
            client_id="till",
            security_protocol="SASL_SSL",
            ssl_ca_file="ca.pem",
            ssl_cert_file="a.pem",
            ssl_key_file="a.key",
            ssl_key_password="secret",
            ssl_check_hostname=False,
            sasl_mechanism="SCRAM-SHA-512",
            sasl_username="me",
            sasl_password="hidden",
        )
        config = Connection(bus, "x", loop).config()
        plain = Connection(KafkaBus(bootstrap_servers="127.0.0.1:9093"), "x", loop).config()
    finally:
        loop.close()
    assert {name: config[name] for name in config if name.startswith(("ssl.", "sasl.", "security.", "client."))} == {
        "client.id": "till-x",
        "security.protocol": "SASL_SSL",
        "ssl.endpoint.identification.algorithm": "none",
        "ssl.ca.location": "ca.pem",
        "ssl.certificate.location": "a.pem",
        "ssl.key.location": "a.key",
        "ssl.key.password": "secret",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": "hidden",
    }
    assert not [name for name in plain if name.startswith(("ssl.", "sasl."))]
    assert "hidden" not in repr(bus)
    assert "secret" not in repr(bus)


@pytest.mark.parametrize("settings", [KafkaBus, PublisherSettings, SubscriberSettings])
def test_the_page_on_configuration_lists_every_setting_with_its_default(settings: type[Any]) -> None:
    page = (Path(__file__).parents[3] / "docs" / "sdk" / "configuration.md").read_text()
    section = page.partition(f"## {settings.__name__}\n")[2].partition("\n## ")[0]
    told = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", section, flags=re.MULTILINE))
    assert list(told) == [field.name for field in dataclasses.fields(settings)]
    for field in dataclasses.fields(settings):
        if field.name == "bootstrap_servers":
            continue
        given: Any = field  # its two ways to give a default exclude each other
        default = given.default_factory() if given.default is dataclasses.MISSING else given.default
        if isinstance(default, timedelta):
            written = f"{default.total_seconds():g} s"
        elif isinstance(default, Murmur2):
            written = "`Murmur2()`"
        else:
            written = f"`{default!r}`".replace("'", '"')
        assert told[field.name] == written, field.name
