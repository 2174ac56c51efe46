"""The same through aiokafka, confluent-kafka and kafka-python; what one writes the others read, and so does kcat."""

from __future__ import annotations

import json
import subprocess
import threading
from dataclasses import replace

import pytest
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import Compression

from tests.conformance.clients import CLIENTS, Client, Entry, RefusedError, Reset
from tests.conformance.conftest import Cluster, MakeTopic
from tests.conformance.wire import Wire, batches, now_ms
from tests.support import wait_for


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest, cluster: Cluster) -> Client:
    return CLIENTS[request.param](cluster.bootstrap)


@pytest.fixture
def others(client: Client, cluster: Cluster) -> list[Client]:
    """All clients but the one that the test is about."""
    return [other(cluster.bootstrap) for name, other in CLIENTS.items() if name != client.name]


def without_offset(entries: list[Entry]) -> list[Entry]:
    return [replace(entry, offset=-1) for entry in entries]


def test_keys_values_headers_and_nulls_are_what_they_were(client: Client, others: list[Client], topic: str) -> None:
    when = now_ms() - 5000
    entries = [
        Entry(key=b"k", value=b"v", headers=(("a", b"1"), ("b", b""), ("a", b"2")), timestamp=when),
        Entry(key=None, value=b"no key", timestamp=when + 1),
        Entry(key=b"tombstone", value=None, timestamp=when + 2),
        Entry(key=b"", value=b"", timestamp=when + 3),
        Entry(key=bytes(range(256)), value="ü ☂".encode(), timestamp=when + 4),
    ]
    assert client.produce(topic, entries) == [0, 1, 2, 3, 4]
    for reader in (client, *others):
        found = reader.consume(topic, 5)
        assert without_offset(found) == entries, reader.name
        assert [entry.offset for entry in found] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("acks", ["0", "1"])
def test_acks(client: Client, topic: str, acks: str) -> None:
    offsets = client.produce(topic, [Entry(value=b"%d" % number) for number in range(10)], acks=acks)
    assert offsets == ([-1] * 10 if acks == "0" else list(range(10)))
    assert [entry.value for entry in client.consume(topic, 10)] == [b"%d" % number for number in range(10)]


def test_an_idempotent_producer(wire: Wire, client: Client, topic: str) -> None:
    assert client.produce(topic, [Entry(value=b"v")] * 50, idempotent=True) == list(range(50))
    (first, *_) = batches(wire.fetch(topic, 0).records)
    assert (first.header.producer_id >= 0, first.header.base_sequence) == (True, 0)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_what_one_compresses_the_others_read(
    cluster: Cluster, wire: Wire, client: Client, others: list[Client], topic: str, codec: str
) -> None:
    values = [b"%d-" % number * 100 for number in range(20)]
    client.produce(topic, [Entry(value=value) for value in values], codec=codec)
    assert {Compression(view.header.codec).name.lower() for view in batches(wire.fetch(topic, 0).records)} == {codec}
    for reader in others:
        assert [entry.value for entry in reader.consume(topic, 20)] == values, reader.name


@pytest.mark.needs("kcat")
@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_kcat_reads_what_one_compresses(cluster: Cluster, client: Client, topic: str, codec: str) -> None:
    values = [b"%d-" % number * 100 for number in range(20)]
    client.produce(topic, [Entry(value=value) for value in values], codec=codec)
    assert kcat(cluster, topic, 20) == [value.decode() for value in values]


def kcat(cluster: Cluster, topic: str, count: int) -> list[str]:
    """Read through kcat, an old librdkafka."""
    done = subprocess.run(
        ["kcat", "-b", cluster.bootstrap, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-c", str(count), "-J"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return [json.loads(line)["payload"] for line in done.stdout.splitlines()]


def test_a_message_above_the_topics_limit_is_refused_and_the_client_says_so(
    client: Client, make_topic: MakeTopic
) -> None:
    topic = make_topic(max_message_bytes="10000")
    with pytest.raises(RefusedError) as refused:
        client.produce(topic, [Entry(value=bytes(20_000))])
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce(topic, [Entry(value=bytes(5000))]) == [0]


def test_a_topic_is_created_by_writing_to_it(client: Client, name: str) -> None:
    assert client.produce(name, [Entry(value=b"first")]) == [0]
    assert [entry.value for entry in client.consume(name, 1)] == [b"first"]


def test_a_read_begins_within_a_batch(client: Client, wire: Wire, topic: str) -> None:
    wire.write(topic, *[b"%d" % number for number in range(10)])
    assert [entry.offset for entry in client.consume(topic, 3, offset=7)] == [7, 8, 9]


@pytest.mark.parametrize(("reset", "asked"), [("earliest", 2), ("latest", 50), ("error", 2), ("error", 50)])
def test_an_offset_out_of_range_is_reset_as_the_client_wants(
    client: Client, wire: Wire, topic: str, reset: Reset, asked: int
) -> None:
    """Below the log's start, whose records were deleted, and beyond its end."""
    for number in range(6):
        wire.write(topic, b"%d" % number)
    where = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 4}]}]
    wire.call(ApiKey.DELETE_RECORDS, 1, topics=where, timeout_ms=10_000)
    match reset:
        case "earliest":
            assert [entry.offset for entry in client.consume(topic, 2, offset=asked, reset=reset)] == [4, 5]
        case "latest":
            with Feeder(wire.socket.getpeername(), topic):
                found = client.consume(topic, 1, offset=asked, reset=reset)
            assert found[0].offset >= 6
            assert found[0].value == b"fed"
        case "error":
            with pytest.raises(RefusedError) as refused:
                client.consume(topic, 1, offset=asked, reset=reset)
            assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


class Feeder:
    """Writes a record again and again, so that a reader of what is to come gets something."""

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        self.wire, self.topic = Wire(f"{address[0]}:{address[1]}"), topic
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.feed)

    def feed(self) -> None:
        while not self.stopped.wait(0.05):
            self.wire.write(self.topic, b"fed")

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        self.thread.join()
        self.wire.close()


def test_offsets_by_time_at_the_start_and_at_the_end(client: Client, topic: str) -> None:
    noon = now_ms() - 60_000
    client.produce(topic, [Entry(value=b"%d" % n, timestamp=noon + 1000 * n) for n in range(5)])
    assert client.offsets(topic, timestamp=noon - 1) == (0, 0, 5)
    assert client.offsets(topic, timestamp=noon + 2500) == (0, 3, 5)
    assert client.offsets(topic, timestamp=noon + 3000) == (0, 3, 5)
    assert client.offsets(topic, timestamp=noon + 4001) == (0, -1, 5)


def test_a_commit_with_metadata_is_read_by_all(client: Client, others: list[Client], topic: str, name: str) -> None:
    client.produce(topic, [Entry(value=b"v")] * 9)
    assert client.committed(name, topic) == (-1, "")
    # confluent-kafka sends the NUL at the end of its C string along, and reads metadata as a C string: without a NUL
    # it reads on behind the end of its buffer.
    client.commit(name, topic, 7, "by hand ☂\0")
    for reader in (client, *others):
        offset, metadata = reader.committed(name, topic)
        assert (offset, metadata.rstrip("\0")) == (7, "by hand ☂"), reader.name


def test_transactions_and_readers_of_committed_records(
    client: Client, others: list[Client], topic: str, name: str
) -> None:
    client.transact(name, topic, [([b"a", b"b"], True), ([b"gone"], False), ([b"c"], True)])
    for reader in (client, *others):
        found = reader.consume(topic, 3, committed=True)
        assert [entry.value for entry in found] == [b"a", b"b", b"c"], reader.name
        assert [entry.value for entry in reader.consume(topic, 4)] == [b"a", b"b", b"gone", b"c"], reader.name


def test_offsets_go_with_the_transaction(client: Client, topic: str, name: str) -> None:
    client.transact(name, topic, [([b"a"], True)], offsets=(f"{name}-group", 4))
    wait_for("the offset is there", lambda: client.committed(f"{name}-group", topic)[0] == 4, 20)
    client.transact(name, topic, [([b"b"], False)], offsets=(f"{name}-group", 8))
    assert client.committed(f"{name}-group", topic)[0] == 4
