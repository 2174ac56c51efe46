"""Frames recorded between nine client families and Apache Kafka 4.3.1, decoded and re-encoded byte for byte."""

from __future__ import annotations

import json
import struct
from collections import Counter
from typing import Any

import pytest
from hailbus_broker.cluster.raft import wire
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import APIS, ApiKey, header_versions, request_class, response_class
from hailbus_broker.protocol.definitions.fetch_request import FetchRequest
from hailbus_broker.protocol.definitions.request_header import RequestHeader
from hailbus_broker.protocol.definitions.response_header import ResponseHeader
from hailbus_broker.server.handlers.table import HANDLERS
from hailbus_broker.testing import ThreadedBroker
from hailbus_devtools.tools import shared_folder

from tests.conformance.wire import Wire
from tests.servers import FAST_PROPERTIES

FRAMES = shared_folder() / "frames"
CLIENTS = sorted(path.stem for path in FRAMES.glob("*.jsonl"))
FUTURE = ("franz-go", "ApiVersions", 5)
"""The one pair in a version that Apache Kafka 4.3.1 itself does not know: it is answered in version 0."""

pytestmark = pytest.mark.needs("shared folder")


def pairs(client: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FRAMES / f"{client}.jsonl").read_text().splitlines()]


def is_future(client: str, pair: dict[str, Any]) -> bool:
    return (client, pair["api"], pair["version"]) == FUTURE


def again(header_class: Any, header_version: int, body_class: Any, version: int, frame: bytes) -> bytes:
    header, position = codec.decode_with_end(header_class, frame, header_version)
    body, end = codec.decode_with_end(body_class, frame, version, position=position)
    assert end == len(frame)
    return bytes(codec.encode(body, version, codec.encode(header, header_version)))


@pytest.mark.parametrize("client", CLIENTS)
def test_frames_survive_decoding_and_encoding(client: str) -> None:
    """Every pair of every API that is described here, whether or not it is served."""
    for pair in pairs(client):
        key, version = pair["key"], pair["version"]
        if key not in APIS or is_future(client, pair):
            continue
        request, response = bytes.fromhex(pair["request"]), bytes.fromhex(pair["response"])
        versions = header_versions(key, version)
        what = f"{pair['api']} v{version}"
        assert again(RequestHeader, versions[0], request_class(key), version, request) == request, what
        if response:  # there is none to acks=0
            assert again(ResponseHeader, versions[1], response_class(key), version, response) == response, what


def test_no_frame_of_an_api_that_is_served_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Count what is covered, and print it; a pair is out only if its API is not described, and so not served."""
    covered: Counter[str] = Counter()
    left: Counter[str] = Counter()
    beyond: set[str] = set()
    for client in CLIENTS:
        for pair in pairs(client):
            key, version, name = pair["key"], pair["version"], pair["api"]
            if is_future(client, pair):
                continue
            if key not in APIS:
                assert key not in HANDLERS, f"{name} is served and its frames cannot be read"
                left[name] += 1
                continue
            assert version in APIS[key], f"{name} v{version} is not described"
            covered[name] += 1
            if not is_served(pair):
                beyond.add(f"{name} v{version}")
    with capsys.disabled():
        print(f"\n{covered.total()} pairs of {len(covered)} APIs compared; not described here: {dict(left)}")
        if beyond:
            print(f"compared although they are not served: {sorted(beyond)}")
    assert covered.total() + left.total() + 1 == PAIRS


PAIRS = 884 + 105
"""Those of nine client families, and those between Apache Kafka's own nodes."""


def test_the_frames_are_all_there() -> None:
    assert sum(len(pairs(client)) for client in CLIENTS) == PAIRS


def is_served(pair: dict[str, Any]) -> bool:
    key, version = pair["key"], pair["version"]
    if key not in APIS or version not in APIS[key]:
        return False
    return ApiKey(key) in HANDLERS


def test_every_request_of_an_api_that_is_served_is_answered_in_its_version() -> None:
    """The topics and groups of the recordings are not there: codes differ, shape and correlation id must not."""
    asked = [pair for client in CLIENTS for pair in pairs(client) if is_served(pair) and not is_future(client, pair)]
    assert len(asked) > PAIRS / 2
    with ThreadedBroker(FAST_PROPERTIES) as broker:
        for pair in asked:
            key, version, request = pair["key"], pair["version"], bytes.fromhex(pair["request"])
            wire = Wire(broker.bootstrap)
            try:
                wire.send_frame(request)
                if not pair["response"]:
                    continue  # acks=0 has no answer
                frame = wire.read(struct.unpack(">i", wire.read(4))[0])
            finally:
                wire.close()
            what = f"{pair['api']} v{version}"
            assert frame[:4] == request[4:8], f"{what}: the correlation id of the answer is another"
            header = header_versions(key, version)[1]
            assert again(ResponseHeader, header, response_class(key), version, frame) == frame, what


QUORUM = {ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH, ApiKey.FETCH}


def test_what_controllers_say_to_each_other_is_understood_as_a_whole() -> None:
    """Their frames become the quorum's own messages, and these become the same frames again."""
    covered: Counter[str] = Counter()
    for pair in pairs("inter-node"):
        key, version = pair["key"], pair["version"]
        if key not in QUORUM or pair["listener"] != "controller":
            continue
        versions = header_versions(key, version)
        frame = bytes.fromhex(pair["request"])
        _, position = codec.decode_with_end(RequestHeader, frame, versions[0])
        request = codec.decode(request_class(key), frame, version, position=position)
        understood = wire.decode_request(request)
        said = wire.encode_request(understood)
        if isinstance(request, FetchRequest) and isinstance(said, FetchRequest):
            # What a replica chooses for itself.
            said.max_bytes, said.topics[0].partitions[0].partition_max_bytes = request.max_bytes, 0
            said.replica_state = request.replica_state
            said.replica_id = request.replica_id
        assert codec.encode(said, version) == codec.encode(request, version), pair["api"]
        frame = bytes.fromhex(pair["response"])
        _, position = codec.decode_with_end(ResponseHeader, frame, versions[1])
        response = codec.decode(response_class(key), frame, version, position=position)
        again_said = wire.encode_response(understood, wire.decode_response(response))
        assert codec.encode(again_said, version) == codec.encode(response, version), pair["api"]
        covered[pair["api"]] += 1
    assert len(covered) == len(QUORUM), covered
