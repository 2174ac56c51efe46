"""The protocol itself as a client, for what no client library lets a test say."""

from __future__ import annotations

import socket
import struct
import time
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


class Wire:
    """A connection on which anything can be said."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client_id = "wire"

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
        self.request(api, version, build(request_class(api), fields))

    def call(self, api: ApiKey, version: int, /, **fields: Any) -> Any:
        """Send a request and return its answer."""
        self.ask(api, version, **fields)
        return self.answer(api, version)

    def answer(self, key: ApiKey, version: int) -> Any:
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
        self.socket.close()

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
