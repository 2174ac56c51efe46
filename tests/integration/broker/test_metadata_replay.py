"""A start replays the metadata log as it is: no record is skipped, no half transaction is applied."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hailbus_broker.cluster.metadata.image import ResourceType
from hailbus_broker.cluster.metadata.records import encode_record
from hailbus_broker.protocol.definitions.begin_transaction_record import BeginTransactionRecord
from hailbus_broker.protocol.definitions.config_record import ConfigRecord
from hailbus_broker.protocol.errors import ApiError
from hailbus_broker.records import RecordToWrite, build_batch
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.testing import RunningBroker, running_broker

if TYPE_CHECKING:
    from pathlib import Path


async def append(broker: RunningBroker, *values: bytes) -> int:
    """Write values that the controller did not decide about; return the offset of the first one."""
    quorum = broker.node.metadata.quorum
    end_offset = quorum.append(build_batch([RecordToWrite(key=None, value=value, timestamp=0) for value in values]))
    await quorum.sync()
    return end_offset - len(values)


async def test_a_node_stops_at_a_record_that_it_does_not_know(tmp_path: Path) -> None:
    async with running_broker(data_dir=str(tmp_path)) as broker:
        offset = await append(broker, bytes([1, 99, 0, 0]))
        async with asyncio.timeout(10):
            while broker.node.core.reason_to_stop is None:  # noqa: ASYNC110 a record is read by a thread
                await asyncio.sleep(0.01)
        assert f"offset {offset} " in str(broker.node.core.reason_to_stop)
        with pytest.raises(ApiError, match="not the active controller"):
            broker.node.metadata.write(broker.node.controller.allocate_producer_ids()[1])
    with pytest.raises(StartError, match=rf"record at offset {offset} has type 99 \(unknown\) in version 0"):
        async with running_broker(data_dir=str(tmp_path)):
            pass


async def test_a_transaction_that_a_stop_cut_off_is_aborted(tmp_path: Path) -> None:
    half = ConfigRecord(resource_type=ResourceType.GROUP, resource_name="g", name="a", value="b")
    async with running_broker(data_dir=str(tmp_path)) as broker:
        await append(broker, encode_record(BeginTransactionRecord()), encode_record(half))
    for _ in range(2):
        async with running_broker(data_dir=str(tmp_path)) as broker:
            image = broker.node.image
            assert image.config_resources(ResourceType.GROUP) == []
            assert len(image.brokers) == 1, "what follows the transaction is applied"
            assert image.version == broker.node.metadata.quorum.log.log_end_offset
