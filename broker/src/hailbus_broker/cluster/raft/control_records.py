"""The records by which the metadata log speaks of the quorum itself: leaders, voters, the level of `kraft.version`."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.raft.voters import DYNAMIC_VOTERS, Endpoint, ReplicaKey, Voter, VoterSet
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.definitions import leader_change_message, voters_record
from hailbus_broker.protocol.definitions.kraft_version_record import KRaftVersionRecord
from hailbus_broker.protocol.schema import ZERO_UUID
from hailbus_broker.records import ControlType, RecordToWrite, build_batch, iterate_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hailbus_broker.records import BatchView, Offset

_CONTROL_KEY: Final = Struct(">hh")  # version, type


_LEADER_CHANGE_VERSION: Final = 0
"""At every level of `kraft.version`. The schema has a version 1 that names directories, but Apache Kafka 4.3.1 writes
and reads version 0 only (`ControlRecordUtils.LEADER_CHANGE_CURRENT_VERSION`). Its nodes stop at a record of version 1.
"""


def leader_change(*, leader_id: int, voters: VoterSet, granting: Iterable[int], now_ms: int) -> bytearray:
    """Return the batch by which a leader begins its epoch.

    Args:
        leader_id: Of the leader.
        voters: Who could vote.
        granting: Node ids of those who voted for it.
        now_ms: Milliseconds since 1970 UTC.
    """
    message = leader_change_message.LeaderChangeMessage(
        version=_LEADER_CHANGE_VERSION,
        leader_id=leader_id,
        voters=[leader_change_message.Voter(voter_id=node_id) for node_id in voters.ids],
        granting_voters=[leader_change_message.Voter(voter_id=node_id) for node_id in granting],
    )
    return _batch([(ControlType.LEADER_CHANGE, bytes(codec.encode(message, _LEADER_CHANGE_VERSION)))], now_ms)


def voters_change(voters: VoterSet, *, now_ms: int, kraft_version: int | None = None) -> bytearray:
    """Return the batch with the voters from now on.

    Args:
        voters: All of them.
        now_ms: Milliseconds since 1970 UTC.
        kraft_version: The level of `kraft.version` from now on; None if it stays.
    """
    said = [] if kraft_version is None else [_level(kraft_version)]
    return _batch([*said, _voters_record(voters)], now_ms)


def quorum_state(kraft_version: int, voters: VoterSet | None) -> Sequence[tuple[ControlType, bytes]]:
    """Return what a snapshot says about the quorum: nothing, as long as the configuration names the voters.

    Args:
        kraft_version: The finalised level.
        voters: Those that the log names, if it does.
    """
    if kraft_version < DYNAMIC_VOTERS:
        return []
    return [_level(kraft_version), *([] if voters is None else [_voters_record(voters)])]


def _voters_record(voters: VoterSet) -> tuple[ControlType, bytes]:
    message = voters_record.VotersRecord(
        voters=[
            voters_record.Voter(
                voter_id=voter.key.node_id,
                voter_directory_id=voter.key.directory_id or ZERO_UUID,
                endpoints=[
                    voters_record.Endpoint(name=one.listener, host=one.host, port=one.port) for one in voter.endpoints
                ],
                kraft_version_feature=voters_record.KRaftVersionFeature(
                    min_supported_version=voter.kraft_versions[0], max_supported_version=voter.kraft_versions[1]
                ),
            )
            for voter in voters
        ]
    )
    return ControlType.KRAFT_VOTERS, bytes(codec.encode(message, 0))


def level_change(kraft_version: int, *, now_ms: int) -> bytearray:
    """Return the batch with the level of `kraft.version` from now on."""
    return _batch([_level(kraft_version)], now_ms)


def _level(kraft_version: int) -> tuple[ControlType, bytes]:
    return ControlType.KRAFT_VERSION, bytes(codec.encode(KRaftVersionRecord(kraft_version=kraft_version), 0))


def read_changes(batches: Iterable[BatchView]) -> Sequence[tuple[Offset, VoterSet | int]]:
    """Return the voters, and the levels of `kraft.version`, that are in batches, each with its offset.

    Raises:
        CorruptBatchError: A batch is damaged.
        ProtocolError: A control record is.
    """
    found: list[tuple[Offset, VoterSet | int]] = []
    for batch in batches:
        if not batch.header.is_control:
            continue
        for record in iterate_records(batch):
            if record.key is None or record.value is None or len(record.key) < _CONTROL_KEY.size:
                continue
            kind = _CONTROL_KEY.unpack_from(record.key)[1]
            if kind == ControlType.KRAFT_VERSION:
                level = codec.decode(KRaftVersionRecord, record.value, 0)
                found.append((record.offset, level.kraft_version))
            elif kind == ControlType.KRAFT_VOTERS:
                found.append((record.offset, _voters(codec.decode(voters_record.VotersRecord, record.value, 0))))
    return found


def _voters(message: voters_record.VotersRecord) -> VoterSet:
    return VoterSet(
        Voter(
            ReplicaKey(voter.voter_id, None if voter.voter_directory_id == ZERO_UUID else voter.voter_directory_id),
            tuple(Endpoint(one.name, one.host, one.port) for one in voter.endpoints),
            (voter.kraft_version_feature.min_supported_version, voter.kraft_version_feature.max_supported_version),
        )
        for voter in message.voters
    )


def _batch(said: Iterable[tuple[ControlType, bytes]], now_ms: int) -> bytearray:
    records = [RecordToWrite(key=_CONTROL_KEY.pack(0, kind), value=value, timestamp=now_ms) for kind, value in said]
    return build_batch(records, is_control=True)
