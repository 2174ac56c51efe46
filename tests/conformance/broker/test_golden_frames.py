"""Frames recorded between nine client families and Apache Kafka 4.3.1, decoded and re-encoded byte for byte."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import APIS, header_versions, request_class, response_class
from hailbus_broker.protocol.definitions.request_header import RequestHeader
from hailbus_broker.protocol.definitions.response_header import ResponseHeader


def frames_folder() -> Path | None:
    candidates = [Path(os.environ["HAILBUS_SHARED"])] if "HAILBUS_SHARED" in os.environ else []
    candidates.append(Path(__file__).resolve().parents[3].parent / "shared")
    return next((folder / "frames" for folder in candidates if (folder / "frames").is_dir()), None)


FRAMES = frames_folder()
CLIENTS = sorted(path.stem for path in FRAMES.glob("*.jsonl")) if FRAMES else []

pytestmark = pytest.mark.skipif(FRAMES is None, reason="the recorded frames are not beside this clone (HAILBUS_SHARED)")


def pairs(client: str) -> list[dict[str, Any]]:
    assert FRAMES is not None
    return [json.loads(line) for line in (FRAMES / f"{client}.jsonl").read_text().splitlines()]


# librdkafka ends AlterUserScramCredentials v0 with one zero byte too many; the API is not described here.
@pytest.mark.parametrize("client", CLIENTS)
def test_frames_survive_decoding_and_encoding(client: str) -> None:
    checked = 0
    for pair in pairs(client):
        key, version = pair["key"], pair["version"]
        if key not in APIS or version > APIS[key].last:
            continue
        request_header, response_header = header_versions(key, version)
        for data, header_class, header_version, body_class in (
            (pair["request"], RequestHeader, request_header, request_class(key)),
            (pair["response"], ResponseHeader, response_header, response_class(key)),
        ):
            frame = bytes.fromhex(data)
            if not frame:
                continue
            header, position = codec.decode_with_end(header_class, frame, header_version)
            body, end = codec.decode_with_end(body_class, frame, version, position=position)
            again = codec.encode(header, header_version)
            codec.encode(body, version, again)
            assert end == len(frame), (pair["api"], version)
            assert bytes(again) == frame, (pair["api"], version)
            checked += 1
    assert checked > 0
