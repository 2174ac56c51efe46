"""What stands in the coordinators' topics: written by nobody else, and read with care at the start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from hailbus_broker.cluster.metadata.image import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from hailbus_broker.coordinators.group.classic_rebalance import ClassicRebalances
from hailbus_broker.log import Isolation, Origin
from hailbus_broker.log.log_directory import CLEAN_SHUTDOWN
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.delete_groups_request import DeleteGroupsRequest
from hailbus_broker.protocol.definitions.describe_groups_request import DescribeGroupsRequest
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
from hailbus_broker.protocol.definitions.init_producer_id_request import InitProducerIdRequest
from hailbus_broker.protocol.definitions.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from hailbus_broker.protocol.definitions.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from hailbus_broker.protocol.definitions.offset_fetch_request import OffsetFetchRequest, OffsetFetchRequestTopic
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import RecordToWrite, build_batch, iterate_batches, iterate_records
from hailbus_broker.runtime.disk import RealDisk
from hailbus_broker.runtime.errors import StartError
from structlog.testing import capture_logs

from tests.integration.broker.wire import Wire, led, server_on, until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hailbus_broker.coordinators.group.classic import ClassicGroup
    from hailbus_broker.coordinators.outcome import Outcome
    from hailbus_broker.server.listener import Server

GROUP = "rides"
SETTINGS = {"offsets.topic.num.partitions": "2"}
"""Then `rides` is in partition 1 and `other` in partition 0."""


async def commit(wire: Wire, offset: int, group: str = GROUP) -> ErrorCode:
    part = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=[part])])
    response = await wire.ask(ApiKey.OFFSET_COMMIT, 8, request)
    return ErrorCode(response.topics[0].partitions[0].error_code)


async def committed(wire: Wire, group: str = GROUP) -> tuple[ErrorCode, int]:
    request = OffsetFetchRequest(group_id=group, topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    response = await wire.ask(ApiKey.OFFSET_FETCH, 7, request)
    found = response.topics[0].partitions[0]
    return ErrorCode(response.error_code or found.error_code), found.committed_offset


async def find(wire: Wire, key: str = GROUP, kind: int = 0) -> ErrorCode:
    request = FindCoordinatorRequest(key=key, key_type=kind)
    return ErrorCode((await wire.ask(ApiKey.FIND_COORDINATOR, 2, request)).error_code)


async def new_epoch(wire: Wire) -> tuple[ErrorCode, int]:
    request = InitProducerIdRequest(transactional_id="payments", transaction_timeout_ms=60_000)
    response = await wire.ask(ApiKey.INIT_PRODUCER_ID, 4, request)
    return ErrorCode(response.error_code), response.producer_epoch


async def describe(wire: Wire) -> ErrorCode:
    response = await wire.ask(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(groups=[GROUP]))
    return ErrorCode(response.groups[0].error_code)


async def delete(wire: Wire) -> ErrorCode:
    response = await wire.ask(ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest(groups_names=[GROUP]))
    return ErrorCode(response.results[0].error_code)


async def start_using(wire: Wire) -> None:
    """A topic, a group with an offset, and a transactional id."""
    assert await wire.create("t") is ErrorCode.NONE
    assert await find(wire) is ErrorCode.NONE
    assert await find(wire, "payments", 1) is ErrorCode.NONE
    assert await commit(wire, 41) is ErrorCode.NONE
    assert await new_epoch(wire) == (ErrorCode.NONE, 0)


def write(server: Server, topic: str, records: Sequence[tuple[bytes | None, bytes | None]]) -> None:
    """Append to all partitions of a coordinator's topic what no coordinator writes."""
    batch = build_batch([RecordToWrite(key=key, value=value, timestamp=1) for key, value in records])
    for index in range(len(server.node.replicas.topics[topic])):
        led(server.node, topic, index).append(bytearray(batch), now_ms=1, origin=Origin.COORDINATOR)


FOREIGN_RECORDS = [
    (None, b"no key"),
    (b"", b"an empty key"),
    (b"\x00", b"half of a type"),
    (b"\x7f\xff", b"an unknown type"),
    (b"\x00\x01\xff\xff", b"an offset's key whose group is null"),
    (b"\x00\x01\x00\x05rides\x00\x01t\x00\x00\x00\x00", b""),
    (b"\x00\x01\x00\x05rides\x00\x01t\x00\x00\x00\x00", b"\x00\x63a version that there is not"),
    (b"\x00\x02\x00\x05rides", b"\x00\x03\xff"),
    (b"\x00\x00\x00\x08payments", b"\x00\x01 no transaction"),
    (b"\x00\x00\x00\x08payments", b"\x00\x00" + bytes(14) + b"\x63" + bytes(20)),
]


async def test_a_start_skips_foreign_records_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path), **SETTINGS) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        write(server, GROUP_METADATA_TOPIC, FOREIGN_RECORDS)
        write(server, TRANSACTION_STATE_TOPIC, FOREIGN_RECORDS)
        assert await commit(wire, 42) is ErrorCode.NONE  # behind them
        wire.close()
    with capture_logs() as lines:
        async with server_on(RealDisk(), str(tmp_path), **SETTINGS) as server:
            wire = await Wire.to(server.bootstrap)
            assert await committed(wire) == (ErrorCode.NONE, 42)
            assert await new_epoch(wire) == (ErrorCode.NONE, 1)
            wire.close()
    skipped = [line for line in lines if line["event"] == "coordinator_record_skipped"]
    assert {line["log_level"] for line in skipped} == {"error"}
    places = {(line["partition"], line["offset"]) for line in skipped}
    assert len(places) == len(skipped), "one line a record"
    for topic in (f"{GROUP_METADATA_TOPIC}-0", f"{GROUP_METADATA_TOPIC}-1", f"{TRANSACTION_STATE_TOPIC}-0"):
        assert sum(partition == topic for partition, _ in places) >= len(FOREIGN_RECORDS) - 2, topic


def records_in(server: Server, topic: str) -> list[tuple[bytes, bytes | None]]:
    """Key and value of every record in the first partition of a topic, in order."""
    log, found = led(server.node, topic).log, []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for batch in iterate_batches(log.read(offset, 2**20, isolation=Isolation.LOG_END).to_bytes(), whole=False):
            for record in iterate_records(batch):
                value = None if record.value is None else bytes(record.value)
                found.append((bytes(record.key or b""), value))
            offset = batch.header.next_offset
    return found


async def test_keys_of_share_and_streams_groups_survive_load_and_compaction(tmp_path: Path) -> None:
    """Apache Kafka writes them to the same topic; a coordinator that does not know them has to keep them."""
    settings = {
        "offsets.topic.num.partitions": "1",
        "offsets.topic.segment.bytes": "1024",
        "log.cleaner.backoff.ms": "50",
    }
    keys = [kind.to_bytes(2, "big") + b"\x06other" for kind in range(9, 24)]
    deleted = keys.pop()

    def foreign(server: Server) -> list[tuple[bytes, bytes | None]]:
        return [(key, value) for key, value in records_in(server, GROUP_METADATA_TOPIC) if key[0:2] >= b"\x00\x09"]

    async with server_on(RealDisk(), str(tmp_path), **settings) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        write(server, GROUP_METADATA_TOPIC, [(key, b"old") for key in [*keys, deleted]])
        write(server, GROUP_METADATA_TOPIC, [(key, b"new") for key in keys] + [(deleted, None)])
        for offset in range(60):  # fills segments, so that those before are compacted
            assert await commit(wire, offset) is ErrorCode.NONE
        newest = [(key, b"new") for key in keys]
        await until(lambda: foreign(server) in (newest, [*newest, (deleted, None)]), "the compaction")
        wire.close()
    async with server_on(RealDisk(), str(tmp_path), **settings) as server:
        wire = await Wire.to(server.bootstrap)
        assert await committed(wire) == (ErrorCode.NONE, 59)
        assert foreign(server) in (newest, [*newest, (deleted, None)])
        wire.close()


async def test_many_foreign_records_do_not_fill_the_log(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        write(server, GROUP_METADATA_TOPIC, [(b"\x7f\xff", b"")] * 1_000)
        wire.close()
    with capture_logs() as lines:
        async with server_on(RealDisk(), str(tmp_path)):
            pass
    assert sum(line["event"] == "coordinator_record_skipped" for line in lines) == 10
    assert [line["records"] for line in lines if line["event"] == "coordinator_records_skipped"] == [1_000]


@pytest.mark.parametrize("client_id", ["wire", "__admin_client"])
@pytest.mark.parametrize("topic", [GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC])
async def test_no_client_writes_to_the_coordinators_topics(tmp_path: Path, topic: str, client_id: str) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        wire.client_id = client_id
        await start_using(wire)
        end = led(server.node, topic).log.log_end_offset
        assert await wire.produce(topic, [b"forged"]) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
        assert led(server.node, topic).log.log_end_offset == end
        wire.close()


def flip_a_bit(folder: Path) -> None:
    """Damage the first batch of a partition."""
    (segment,) = folder.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[80] ^= 1  # in a record
    segment.write_bytes(data)


async def test_metadata_that_was_damaged_after_a_stop_are_refused(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        wire.close()
    flip_a_bit(tmp_path / "__cluster_metadata-0")
    with pytest.raises(StartError, match=r"cannot read the cluster's metadata: .*CRC.*restore the file"):
        async with server_on(RealDisk(), str(tmp_path)):
            pass


@pytest.mark.parametrize("was_killed", [False, True])
async def test_a_damaged_partition_is_not_served(tmp_path: Path, was_killed: bool) -> None:
    """A damaged batch may be any acknowledged commit: without it, an older offset would be given for the newest."""
    async with server_on(RealDisk(), str(tmp_path), **SETTINGS) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        assert await commit(wire, 42) is ErrorCode.NONE
        assert await commit(wire, 43, "other") is ErrorCode.NONE
        ends = [
            led(server.node, GROUP_METADATA_TOPIC, index).log.log_end_offset
            for index in range(len(server.node.replicas.topics[GROUP_METADATA_TOPIC]))
        ]
        assert min(ends) > 0, "each partition has commits"
        wire.close()
    flip_a_bit(tmp_path / f"{GROUP_METADATA_TOPIC}-1")
    if was_killed:
        (tmp_path / CLEAN_SHUTDOWN).unlink()
    for _ in range(2):  # recovery finds damage once only
        with capture_logs() as lines:
            async with server_on(RealDisk(), str(tmp_path), **SETTINGS) as server:
                wire = await Wire.to(server.bootstrap)
                assert (await committed(wire))[0] is ErrorCode.NOT_COORDINATOR
                assert await commit(wire, 44) is ErrorCode.NOT_COORDINATOR
                assert await describe(wire) is ErrorCode.NOT_COORDINATOR
                assert await delete(wire) is ErrorCode.NOT_COORDINATOR
                assert await committed(wire, "other") == (ErrorCode.NONE, 43)
                wire.close()
        refused = [line["partition"] for line in lines if line["event"] == "coordinator_not_loaded"]
        assert refused == [f"{GROUP_METADATA_TOPIC}-1"]
    if was_killed:  # whoever accepts the loss says so
        for path in (tmp_path / f"{GROUP_METADATA_TOPIC}-1").glob("*.damaged*"):
            path.unlink()
        async with server_on(RealDisk(), str(tmp_path), **SETTINGS) as server:
            wire = await Wire.to(server.bootstrap)
            assert await committed(wire) == (ErrorCode.NONE, 42)
            wire.close()


async def test_a_group_is_served_when_a_client_has_made_the_coordinators_topics(tmp_path: Path) -> None:
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        assert await wire.create(GROUP_METADATA_TOPIC, 3) is ErrorCode.NONE
        assert await wire.create(TRANSACTION_STATE_TOPIC, 2) is ErrorCode.NONE
        await start_using(wire)
        assert await commit(wire, 42) is ErrorCode.NONE
        # Offsets are kept by their group's retention, not by the topic's: whoever made it, it is compacted.
        for topic in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
            config = led(server.node, topic).log.config
            assert config.cleanup_policy == {"compact"}
        wire.close()
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        assert await committed(wire) == (ErrorCode.NONE, 42)
        assert await new_epoch(wire) == (ErrorCode.NONE, 1)
        wire.close()


@pytest.mark.parametrize("fails", ["encoding", "deciding"])
async def test_one_group_never_holds_up_the_timers_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    async with server_on(RealDisk(), str(tmp_path), **{"group.min.session.timeout.ms": "100"}) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        (driver,) = server.node.groups.active()
        shard = driver.shard
        for group in ("bad", "good"):
            await join(wire, group, session_timeout_ms=100 if group == "bad" else 300)
        if fails == "encoding":
            shard.groups["bad"].protocol_type = "p" * 40_000  # longer than its record can hold
        else:
            decide = ClassicRebalances.member_due

            def member_due(self: ClassicRebalances, group: ClassicGroup, *rest: Any) -> None:
                assert group.group_id != "bad"
                decide(self, group, *rest)

            monkeypatch.setattr(ClassicRebalances, "member_due", member_due)
        with capture_logs() as lines:
            async with asyncio.timeout(30):
                while shard.groups["good"].members:  # noqa: ASYNC110 what is waited for has no event
                    await asyncio.sleep(0.02)
        expected = "coordinator_record_not_encoded" if fails == "encoding" else "coordinator_timer_failed"
        assert expected in {line["event"] for line in lines}
        assert shard.next_deadline_ms() is None or driver._timer is not None
        assert await join(wire, "good", session_timeout_ms=10_000) is ErrorCode.NONE
        wire.close()


async def test_one_group_never_keeps_another_from_expiring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_on(RealDisk(), str(tmp_path), **{"group.min.session.timeout.ms": "100"}) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        (driver,) = server.node.groups.active()
        for group in ("bad", "good"):
            await join(wire, group, session_timeout_ms=100)
        groups = driver.shard.groups
        await until(lambda: not any(group.members for group in groups.values()))
        expire = driver.shard.expire_group

        def expire_group(group_id: str, *, wall_ms: int) -> Outcome:
            assert group_id != "bad"
            return expire(group_id, wall_ms=wall_ms)

        monkeypatch.setattr(driver.shard, "expire_group", expire_group)
        with capture_logs() as lines:
            server.node.groups.expire_offsets()
            await until(lambda: "good" not in groups)
        assert "bad" in groups
        assert [line["group"] for line in lines if line["event"] == "offset_expiry_failed"] == ["bad"]
        assert await committed(wire) == (ErrorCode.NONE, 41)
        wire.close()


async def join(wire: Wire, group: str, *, session_timeout_ms: int) -> ErrorCode:
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=session_timeout_ms,
        group_instance_id=group,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    return ErrorCode((await wire.ask(ApiKey.JOIN_GROUP, 5, request)).error_code)


@pytest.mark.parametrize("client_id_bytes", [32_700, 32_767])
async def test_a_member_id_that_no_answer_can_hold_is_refused(tmp_path: Path, client_id_bytes: int) -> None:
    """A member id that begins with the client id may be longer than a string can be."""
    async with server_on(RealDisk(), str(tmp_path)) as server:
        wire = await Wire.to(server.bootstrap)
        await start_using(wire)
        wire.client_id = "c" * client_id_bytes
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        answer = await wire.ask(ApiKey.JOIN_GROUP, 3, request)
        fits = client_id_bytes + 37 <= 32_767
        assert answer.error_code == (ErrorCode.NONE if fits else ErrorCode.UNKNOWN_SERVER_ERROR)
        wire.close()
