"""Members of consumer groups: one that commits by itself, one that copies exactly once, and a committer of offsets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.client import RefusedError, UnreachableError, accept
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.consumer_protocol_assignment import ConsumerProtocolAssignment
from hailbus_broker.protocol.definitions.consumer_protocol_assignment import TopicPartition as AssignedTopic
from hailbus_broker.protocol.definitions.consumer_protocol_subscription import ConsumerProtocolSubscription
from hailbus_broker.protocol.definitions.find_coordinator_request import FindCoordinatorRequest
from hailbus_broker.protocol.definitions.heartbeat_request import HeartbeatRequest
from hailbus_broker.protocol.definitions.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from hailbus_broker.protocol.definitions.leave_group_request import LeaveGroupRequest, MemberIdentity
from hailbus_broker.protocol.definitions.offset_commit_request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from hailbus_broker.protocol.definitions.offset_fetch_request import OffsetFetchRequest, OffsetFetchRequestTopic
from hailbus_broker.protocol.definitions.sync_group_request import SyncGroupRequest, SyncGroupRequestAssignment
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.testing.campaign.context import TopicReader, failed
from hailbus_broker.testing.campaign.producers import TransactionalSession, may_be_refused, records_of
from hailbus_broker.testing.campaign.recorder import COPY, MAIN
from hailbus_broker.testing.history import Committed, End, Owned, Polled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hailbus_broker.client import Client
    from hailbus_broker.testing.campaign.context import Context, Found

AUTO_GROUP: Final = "auto"
COPY_GROUP: Final = "copiers"
SESSION_MS: Final = 2_500
REBALANCE_MS: Final = 4_000
HEARTBEAT_S: Final = 0.5

MOVED: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.MEMBER_ID_REQUIRED,
    }
)
"""Codes after which a member joins again."""


async def find_coordinator(context: Context, client: Client, group: str) -> None:
    """Wait until the group has a coordinator."""
    while True:
        try:
            response = await client.ask(ApiKey.FIND_COORDINATOR, 2, FindCoordinatorRequest(key=group, key_type=0))
            accept(response.error_code, "FindCoordinator")
        except (UnreachableError, RefusedError) as error:
            failed(context, error)
            await context.back_off()
            continue
        return


async def commit_offsets(
    client: Client, group: str, offsets: Mapping[int, int], *, generation: int = -1, member_id: str = ""
) -> None:
    """Commit offsets of the main topic for a group.

    Raises:
        UnreachableError: No response came.
        RefusedError: They were not committed.
    """
    parts = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset, committed_metadata="")
        for index, offset in offsets.items()
    ]
    response = await client.ask(
        ApiKey.OFFSET_COMMIT,
        7,
        OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            topics=[OffsetCommitRequestTopic(name=MAIN, partitions=parts)],
        ),
    )
    for answered in response.topics:
        for part in answered.partitions:
            accept(part.error_code, "OffsetCommit")


async def committed_offsets(
    client: Client, group: str, partitions: Iterable[int], *, is_stable: bool = True
) -> dict[int, int]:
    """Return the committed offsets of the main topic; -1 for none.

    Args:
        client: Asks.
        group: Whose offsets.
        partitions: Of the main topic.
        is_stable: Whether offsets that an open transaction changes are refused.

    Raises:
        UnreachableError: No response came.
        RefusedError: They cannot be read now.
    """
    request = OffsetFetchRequest(
        group_id=group,
        topics=[OffsetFetchRequestTopic(name=MAIN, partition_indexes=list(partitions))],
        require_stable=is_stable,
    )
    response = await client.ask(ApiKey.OFFSET_FETCH, 7, request)
    accept(response.error_code, "OffsetFetch")
    found = {}
    for answered in response.topics:
        for part in answered.partitions:
            accept(part.error_code, "OffsetFetch")
            found[part.partition_index] = part.committed_offset
    return found


class Membership:
    """A member of a group of the classic protocol that reads the main topic."""

    def __init__(self, context: Context, client: Client, group: str) -> None:
        self.group: Final = group
        self.member_id = ""
        self.generation = -1
        self.must_join = True
        self._context: Final = context
        self._client: Final = client
        self._heartbeat_due_s = 0.0

    async def join(self) -> list[int]:
        """Take part in the next generation, and return the assigned partitions.

        Raises:
            UnreachableError: No response came.
            RefusedError: It has to be tried again.
        """
        subscription = ConsumerProtocolSubscription(topics=[MAIN])
        metadata = (1).to_bytes(2, "big") + codec.encode(subscription, 1)
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="campaign", metadata=metadata)],
        )
        timeout_s = REBALANCE_MS / 1000 + 3
        response = await self._client.ask(ApiKey.JOIN_GROUP, 5, request, timeout_s=timeout_s)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        self._check(response.error_code, "JoinGroup")
        self.member_id, self.generation = response.member_id, response.generation_id
        assignments = []
        if response.leader == self.member_id:
            members = sorted(member.member_id for member in response.members)
            for number, member_id in enumerate(members):
                own = [index for index in range(self._context.partition_count) if index % len(members) == number]
                assignment = ConsumerProtocolAssignment(
                    assigned_partitions=[AssignedTopic(topic=MAIN, partitions=own)] if own else []
                )
                data = (0).to_bytes(2, "big") + codec.encode(assignment, 0)
                assignments.append(SyncGroupRequestAssignment(member_id=member_id, assignment=data))
        synced = await self._client.ask(
            ApiKey.SYNC_GROUP,
            3,
            SyncGroupRequest(
                group_id=self.group, generation_id=self.generation, member_id=self.member_id, assignments=assignments
            ),
            timeout_s=timeout_s,
        )
        self._check(synced.error_code, "SyncGroup")
        assigned = codec.decode(ConsumerProtocolAssignment, bytes(synced.assignment), 0, position=2)
        partitions = [index for topic in assigned.assigned_partitions for index in topic.partitions]
        self._context.recorder.owned.append(
            Owned(
                group=self.group,
                generation=self.generation,
                member=self.member_id,
                partitions=tuple(sorted(partitions)),
            )
        )
        self.must_join = False
        return partitions

    def _check(self, code: int, what: str) -> None:
        if code in MOVED:
            self.must_join = True
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        accept(code, what)

    def check(self, error: Exception) -> None:
        """Join again if a refusal says so."""
        if isinstance(error, RefusedError) and error.code in MOVED:
            self.must_join = True
            if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""

    async def maybe_heartbeat(self) -> None:
        """Send a heartbeat when it is due.

        Raises:
            UnreachableError: No response came.
            RefusedError: The member has to join again, or the coordinator is not there.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s < self._heartbeat_due_s:
            return
        self._heartbeat_due_s = now_s + HEARTBEAT_S
        self._check(await self.heartbeat(), "Heartbeat")

    async def heartbeat(self) -> int:
        """Send a heartbeat, and return the error code of the response.

        Raises:
            UnreachableError: No response came.
        """
        request = HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.member_id)
        response = await self._client.ask(ApiKey.HEARTBEAT, 3, request)
        code: int = response.error_code
        return code

    async def leave(self) -> None:
        """Leave the group."""
        if self.member_id:
            request = LeaveGroupRequest(group_id=self.group, members=[MemberIdentity(member_id=self.member_id)])
            await self._client.ask(ApiKey.LEAVE_GROUP, 3, request)


def polled(context: Context, found: Iterable[Found]) -> list[Polled]:
    """Make a part of the history of what one poll of a subscribed consumer returned."""
    number = next(context.recorder.ops)
    return [
        Polled(
            process=context.name,
            life=context.life,
            partition=record.partition,
            offset=record.offset,
            value=int(record.value or b"-1"),
            op=number,
            is_subscribed=True,
        )
        for record in found
    ]


class AutoCommitMember:
    """A member of a group that commits what the poll before has returned."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._client: Final = context.client()
        self._member: Final = Membership(context, self._client, AUTO_GROUP)
        self._reader: Final = TopicReader(context, self._client, MAIN, is_committed=True)

    async def run(self) -> None:
        """Read until the campaign stops, then leave."""
        context, member = self._context, self._member
        await find_coordinator(context, self._client, AUTO_GROUP)
        while not context.stop.is_set:
            try:
                if member.must_join:
                    await self._join()
                await member.maybe_heartbeat()
                await self._poll()
            except (UnreachableError, RefusedError) as error:
                failed(context, error, *MOVED)
                member.check(error)
                await context.back_off()
        try:
            await member.leave()
        except UnreachableError:
            return  # its session ends by itself

    async def _join(self) -> None:
        self._reader.positions.clear()
        partitions = await self._member.join()
        try:
            committed = await committed_offsets(self._client, AUTO_GROUP, partitions)
        except (UnreachableError, RefusedError):
            self._member.must_join = True
            raise
        for partition in partitions:
            self._reader.positions[partition] = max(committed[partition], 0)

    async def _poll(self) -> None:
        positions = self._reader.positions
        if not positions:
            await asyncio.sleep(0.2)
            self._context.succeeded()
            return
        before = dict(positions)
        member = self._member
        await commit_offsets(self._client, AUTO_GROUP, before, generation=member.generation, member_id=member.member_id)
        found = polled(self._context, await self._reader.poll(max_bytes=4_000))
        self._context.recorder.handed.extend(found)
        self._context.recorder.polled.extend(found)
        self._context.succeeded()


class Copier:
    """A member of a group that copies the main topic exactly once: offsets and copies in one transaction."""

    def __init__(self, context: Context, *, is_v2: bool) -> None:
        self._context: Final = context
        self._client: Final = context.client()
        self._member: Final = Membership(context, self._client, COPY_GROUP)
        self._reader: Final = TopicReader(context, self._client, MAIN, is_committed=True)
        self._session: Final = TransactionalSession(context, context.client(), context.name, is_v2)

    async def run(self) -> None:
        """Copy until the campaign stops."""
        context, member, session = self._context, self._member, self._session
        await find_coordinator(context, self._client, COPY_GROUP)
        await session.init()
        must_rewind = True
        while not context.stop.is_set:
            try:
                if member.must_join:
                    must_rewind = True
                    self._reader.positions.clear()
                    self._reader.positions.update(dict.fromkeys(await member.join(), -1))
                if must_rewind:
                    await self._rewind()
                    must_rewind = False
                await member.maybe_heartbeat()
                if not self._reader.positions:
                    await asyncio.sleep(0.2)
                    context.succeeded()
                    continue
                found = await self._reader.poll(max_bytes=3_000)
            except (UnreachableError, RefusedError) as error:
                failed(context, error, *MOVED)
                member.check(error)
                await context.back_off()
                continue
            if not found:
                context.succeeded()
                continue
            context.recorder.polled.extend(polled(context, found))
            try:
                await self._copy(found)
                context.succeeded()
            except (UnreachableError, RefusedError) as error:
                if not may_be_refused(error):
                    failed(context, error, *MOVED)
                member.check(error)
                if member.must_join:
                    context.recorder.note("rebalance during a transaction")
                must_rewind = True
                await session.init()  # ends the transaction, however far it came
        await session.init()
        try:
            await member.leave()
        except UnreachableError:
            return

    async def _rewind(self) -> None:
        positions = self._reader.positions
        if positions:
            for partition, offset in (await committed_offsets(self._client, COPY_GROUP, list(positions))).items():
                positions[partition] = max(offset, 0)

    async def _copy(self, found: list[Found]) -> None:
        session, member = self._session, self._member
        for partition in sorted({record.partition for record in found}):
            values = [record.value for record in found if record.partition == partition]
            await session.produce(COPY, partition, records_of(self._context, values))
        await member.maybe_heartbeat()
        offsets = dict(self._reader.positions)
        await session.commit_offsets(COPY_GROUP, MAIN, offsets, member.generation, member.member_id)
        await session.end(is_commit=True)


class OffsetCommitter:
    """Commits rising offsets for a group without members, and reads them back."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._client: Final = context.client()
        self._group = f"{context.name}.{context.life}"

    async def run(self) -> None:
        """Commit until the campaign stops."""
        context = self._context
        await find_coordinator(context, self._client, self._group)
        offset = 0
        while not context.stop.is_set:
            offset += 1
            partition = context.rng.randrange(context.partition_count)
            outcome: End = "ok"
            note: Any = context.recorder.offsets.append
            place = len(context.recorder.offsets)
            note(Committed(group=self._group, partition=partition, offset=offset, is_read=False, outcome="unknown"))
            try:
                await commit_offsets(self._client, self._group, {partition: offset})
            except (UnreachableError, RefusedError) as error:
                failed(context, error)
                outcome = "unknown"
                await context.back_off()
            if outcome == "ok":
                context.recorder.offsets[place] = Committed(
                    group=self._group, partition=partition, offset=offset, is_read=False
                )
            try:
                found = await committed_offsets(self._client, self._group, [partition])
            except (UnreachableError, RefusedError) as error:
                failed(context, error)
                await context.back_off()
                continue
            note(Committed(group=self._group, partition=partition, offset=found[partition], is_read=True))
            context.succeeded()
            if outcome != "ok":  # the commit may still arrive, and then be the last one
                offset, self._group = 0, f"{self._group}+"
                await find_coordinator(context, self._client, self._group)
            await context.pause()
