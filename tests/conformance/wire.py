"""The protocol itself as a client, for what no client library lets a test say."""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import ApiKey, header_versions, request_class, response_class
from hailbus_broker.protocol.definitions.request_header import RequestHeader
from hailbus_broker.protocol.definitions.response_header import ResponseHeader
from hailbus_broker.protocol.schema import Message, Struct
from hailbus_broker.records import BatchView, Record, RecordToWrite, build_batch, iterate_batches, iterate_records
from hailbus_broker.records.building import update_crc

CORRELATION_ID = 7
LAST_STABLE = 1
"""The isolation level `read_committed` as it stands on the wire."""


def build(cls: type[Struct], values: Mapping[str, Any]) -> Any:
    """Return a message from nested dictionaries and lists, named as in the protocol's definition."""
    fields = {field.name: field for field in cls.__fields__}
    built = {}
    for name, value in values.items():
        element = fields[name].element
        if isinstance(element, type) and isinstance(value, Mapping):
            built[name] = build(element, value)
        elif isinstance(element, type) and value is not None:
            built[name] = [build(element, item) for item in value]
        else:
            built[name] = value
    return cls(**built)


LEADERS = {
    ApiKey.PRODUCE: "topic_data",
    ApiKey.FETCH: "topics",
    ApiKey.LIST_OFFSETS: "topics",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "topics",
    ApiKey.DELETE_RECORDS: "topics",
    ApiKey.DESCRIBE_PRODUCERS: "topics",
}
"""Requests to the leader of a partition, and their field with the topics."""
GROUPS = {
    ApiKey.JOIN_GROUP: "group_id",
    ApiKey.SYNC_GROUP: "group_id",
    ApiKey.HEARTBEAT: "group_id",
    ApiKey.LEAVE_GROUP: "group_id",
    ApiKey.OFFSET_COMMIT: "group_id",
    ApiKey.OFFSET_FETCH: "group_id",
    ApiKey.OFFSET_DELETE: "group_id",
    ApiKey.TXN_OFFSET_COMMIT: "group_id",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "group_id",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "group_ids",
    ApiKey.DESCRIBE_GROUPS: "groups",
    ApiKey.DELETE_GROUPS: "groups_names",
}
TRANSACTIONS = {
    ApiKey.INIT_PRODUCER_ID: "transactional_id",
    ApiKey.ADD_PARTITIONS_TO_TXN: "v3_and_below_transactional_id",
    ApiKey.ADD_OFFSETS_TO_TXN: "transactional_id",
    ApiKey.END_TXN: "transactional_id",
    ApiKey.DESCRIBE_TRANSACTIONS: "transactional_ids",
}
"""Requests to the coordinator of a group or a transactional id, and their field with its name."""


LISTS = {ApiKey.LIST_GROUPS: "groups", ApiKey.LIST_TRANSACTIONS: "transaction_states"}
"""Requests that each node answers for itself, and the field of the answer that lists what it has."""


class Router:
    """Finds the node of a cluster that serves a request, on a connection of its own."""

    def __init__(self, bootstrap: str) -> None:
        self.wire = Wire(bootstrap)

    def address(self, api: ApiKey, fields: Mapping[str, Any]) -> str | None:
        """Return the node's address; None where any node will do, or where nobody knows better."""
        if api in LEADERS:
            return self.leader(next(iter(fields.get(LEADERS[api]) or ()), None))
        for names, kind in ((GROUPS, 0), (TRANSACTIONS, 1)):
            if api in names:
                key = fields.get(names[api])
                if not key and api is ApiKey.OFFSET_FETCH:
                    key = [group["group_id"] for group in fields.get("groups", ())]
                if not key and api is ApiKey.ADD_PARTITIONS_TO_TXN:
                    key = [one["transactional_id"] for one in fields.get("transactions", ())]
                return self.coordinator(key if isinstance(key, str) else next(iter(key or ()), ""), kind)
        return None

    def leader(self, topic: Mapping[str, Any] | None) -> str | None:
        """Return the leader of the first partition of a topic in a request; those that tests make have one leader."""
        if topic is None:
            return None
        partition = next(iter(topic.get("partitions", topic.get("partition_data", ()))), 0)
        if not isinstance(partition, int):
            partition = next(partition[name] for name in ("partition", "partition_index", "index") if name in partition)
        name, topic_id = topic.get("name", topic.get("topic")), topic.get("topic_id", bytes(16))
        asked = {"name": name} if name is not None else {"name": None, "topic_id": topic_id}
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            found = self.wire.call(ApiKey.METADATA, 12, topics=[asked], allow_auto_topic_creation=False)
            if found.topics[0].error_code:
                return None
            leaders = [part.leader_id for part in found.topics[0].partitions if part.partition_index == partition]
            for broker in found.brokers:
                if broker.node_id in leaders:
                    return f"{broker.host}:{broker.port}"
            time.sleep(0.02)
        return None

    def coordinator(self, key: str, kind: int) -> str | None:
        if not key:
            return None
        self.wire.find_coordinator(key, kind=kind)
        found = self.wire.call(ApiKey.FIND_COORDINATOR, 2, key=key, key_type=kind)
        return None if found.error_code else f"{found.host}:{found.port}"


class Wire:
    """A connection on which anything can be said.

    To a cluster of several nodes it is a connection to each of them: a request goes to the node that serves it, which
    is asked for first, and an answer is read from the node that was asked.
    """

    def __init__(self, bootstrap: str) -> None:
        self.addresses = bootstrap.split(",")
        self.router = Router(self.addresses[0]) if len(self.addresses) > 1 else None
        self.sockets: dict[str, socket.socket] = {}
        self.asked: deque[socket.socket] = deque()
        self.socket = self.connected(self.addresses[0])
        """The node that was asked last."""
        self.client_id = "wire"

    def connected(self, address: str) -> socket.socket:
        if address not in self.sockets:
            host, port = address.rsplit(":", 1)
            self.sockets[address] = socket.create_connection((host, int(port)), timeout=20)
            self.sockets[address].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.sockets[address]

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, frame: bytes) -> None:
        self.send(struct.pack(">i", len(frame)) + frame)

    def request(self, key: ApiKey, version: int, message: Message) -> None:
        header = RequestHeader(
            request_api_key=key,
            request_api_version=version,
            correlation_id=CORRELATION_ID,
            client_id=self.client_id,
        )
        out = codec.encode(header, header_versions(key, version)[0])
        self.send_frame(bytes(codec.encode(message, version, out)))

    def ask(self, api: ApiKey, version: int, /, **fields: Any) -> None:
        """Send a request whose answer is read later, by `answer`."""
        if self.router is not None:
            address = self.router.address(api, fields)
            if address is not None:
                self.socket = self.connected(address)
            self.asked.append(self.socket)
        self.request(api, version, build(request_class(api), fields))

    def call(self, api: ApiKey, version: int, /, **fields: Any) -> Any:
        """Send a request and return its answer; where each node has a part of it, that of all nodes."""
        if self.router is not None and api in LISTS:
            return self.from_all(api, version, fields)
        self.ask(api, version, **fields)
        return self.answer(api, version)

    def from_all(self, api: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """Ask each node, and return the first one's answer with what all of them list."""
        answers = []
        for address in self.addresses:
            self.socket = self.connected(address)
            self.asked.append(self.socket)
            self.request(api, version, build(request_class(api), fields))
            answers.append(self.answer(api, version))
        getattr(answers[0], LISTS[api]).extend(one for more in answers[1:] for one in getattr(more, LISTS[api]))
        return answers[0]

    def answer(self, key: ApiKey, version: int) -> Any:
        if self.asked:
            self.socket = self.asked.popleft()
        frame = self.read(struct.unpack(">i", self.read(4))[0])
        header, position = codec.decode_with_end(ResponseHeader, frame, header_versions(key, version)[1])
        assert header.correlation_id == CORRELATION_ID
        return codec.decode(response_class(key), frame, version, position=position)

    def has_answer(self, *, within_s: float) -> bool:
        """Whether anything comes in within that time; it is left to be read."""
        timeout = self.socket.gettimeout()
        self.socket.settimeout(within_s)
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except TimeoutError:
            return False
        finally:
            self.socket.settimeout(timeout)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionResetError
            data += part
        return data

    def is_closed_by_peer(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        for connection in self.sockets.values():
            connection.close()
        if self.router is not None:
            self.router.wire.close()

    # What most tests say.

    def produce(
        self, topic: str, batch: bytes | bytearray, *, partition: int = 0, acks: int = -1, transactional_id: Any = None
    ) -> Any:
        """Write one batch and return the partition's part of the answer. Version 9: the newest that names topics."""
        answer = self.call(
            ApiKey.PRODUCE,
            9,
            transactional_id=transactional_id,
            acks=acks,
            timeout_ms=10_000,
            topic_data=[{"name": topic, "partition_data": [{"index": partition, "records": bytes(batch)}]}],
        )
        return answer.responses[0].partition_responses[0]

    def write(self, topic: str, *values: bytes | None, partition: int = 0, timestamp: int | None = None) -> int:
        """Write values as one batch; return the base offset."""
        found = self.produce(topic, batch_of(*values, timestamp=timestamp), partition=partition)
        assert found.error_code == 0, found
        base: int = found.base_offset
        return base

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        isolation: int = 0,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int = 1 << 20,
        min_bytes: int = 1,
        max_wait_ms: int = 0,
        leader_epoch: int = -1,
    ) -> Any:
        """Fetch from one partition and return its part of the answer. Version 12: the newest that names topics."""
        where = {
            "partition": partition,
            "fetch_offset": offset,
            "partition_max_bytes": partition_max_bytes,
            "current_leader_epoch": leader_epoch,
        }
        answer = self.call(
            ApiKey.FETCH,
            12,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation,
            topics=[{"topic": topic, "partitions": [where]}],
        )
        assert answer.error_code == 0
        return answer.responses[0].partitions[0]

    def list_offset(self, topic: str, timestamp: int, *, partition: int = 0, isolation: int = 0) -> Any:
        """Ask for the offset at a timestamp, or at one of the protocol's negative marks."""
        answer = self.call(
            ApiKey.LIST_OFFSETS,
            8,
            replica_id=-1,
            isolation_level=isolation,
            topics=[{"name": topic, "partitions": [{"partition_index": partition, "timestamp": timestamp}]}],
        )
        return answer.topics[0].partitions[0]

    def new_producer(self, transactional_id: str | None = None, *, timeout_ms: int = 60_000) -> Any:
        """Ask for a producer id; with a transactional id, again while its last transaction is being ended."""
        if transactional_id is not None:
            self.find_coordinator(transactional_id, kind=1)
        deadline = time.monotonic() + 20
        while True:
            answer = self.call(
                ApiKey.INIT_PRODUCER_ID,
                4,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
            )
            if answer.error_code not in RETRIED:
                return answer
            assert time.monotonic() < deadline, answer
            time.sleep(0.02)

    def find_coordinator(self, key: str, *, kind: int = 0) -> None:
        """Wait until the coordinator of a group (0) or a transactional id (1) is there."""
        deadline = time.monotonic() + 20
        while self.call(ApiKey.FIND_COORDINATOR, 2, key=key, key_type=kind).error_code:
            assert time.monotonic() < deadline, f"{key} has no coordinator"
            time.sleep(0.02)


RETRIED = {14, 15, 16, 51}
"""Codes after which every client asks again: the coordinator loads, is not there yet, or ends a transaction."""


def names_of_one_coordinator(wire: Wire, prefix: str, count: int, *, kind: int = 0) -> list[str]:
    """Return names of groups (0) or transactional ids (1) that one node of the cluster coordinates."""
    if wire.router is None:
        return [f"{prefix}-{number}" for number in range(1, count + 1)]
    found: dict[str | None, list[str]] = {}
    for number in itertools.count(1):
        same = found.setdefault(wire.router.coordinator(f"{prefix}-{number}", kind), [])
        same.append(f"{prefix}-{number}")
        if len(same) == count:
            return same
    raise AssertionError("unreachable: the numbers do not end")


@contextmanager
def wire_to(cluster: Any) -> Iterator[Wire]:
    """A connection to a `Cluster`, closed at the end."""
    wire = Wire(cluster.bootstrap)
    try:
        yield wire
    finally:
        wire.close()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def batch_of(*values: bytes | None, timestamp: int | None = None, key: bytes | None = None, **more: Any) -> bytearray:
    """One batch with these values; `more` goes to `build_batch`."""
    when = now_ms() if timestamp is None else timestamp
    return build_batch([RecordToWrite(key=key, value=value, timestamp=when) for value in values], **more)


def claiming(batch: bytearray, count: int) -> bytearray:
    """The batch with a header that claims another number of records, and a CRC that fits."""
    batch[23:27] = (count - 1).to_bytes(4, "big")  # last offset delta
    batch[57:61] = count.to_bytes(4, "big")
    update_crc(batch)
    return batch


def batches(data: bytes | None) -> list[BatchView]:
    """The whole batches of a Fetch answer."""
    return list(iterate_batches(bytes(data or b""), whole=False))


def records(data: bytes | None) -> list[Record]:
    """The records of a Fetch answer, also those before the offset that was asked for, without markers."""
    return [record for view in batches(data) if not view.header.is_control for record in iterate_records(view)]


def values(data: bytes | None) -> Sequence[bytes | None]:
    return [record.value for record in records(data)]
