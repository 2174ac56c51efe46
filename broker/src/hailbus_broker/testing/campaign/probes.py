"""A client that does what no client may: its requests must be refused, whatever happens to the broker meanwhile.

Clients that follow the protocol come to such requests only when delays and crashes meet in a rare order. The refusals
are what keeps that order harmless, so a campaign asks for them directly, too.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from hailbus_broker.client import RefusedError, UnreachableError, accept
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.end_txn_request import EndTxnRequest
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import build_batch
from hailbus_broker.testing.campaign.context import failed
from hailbus_broker.testing.campaign.groups import (
    MOVED,
    Membership,
    commit_offsets,
    committed_offsets,
    find_coordinator,
)
from hailbus_broker.testing.campaign.producers import (
    FENCED,
    TransactionalSession,
    base_offset_of,
    may_be_refused,
    new_producer_id,
    produce_request,
    records_of,
)
from hailbus_broker.testing.campaign.recorder import MAIN
from hailbus_broker.testing.history import outcome_of_refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hailbus_broker.client import Client
    from hailbus_broker.testing.campaign.context import Context
    from hailbus_broker.testing.campaign.recorder import TransactionOp

BEFORE: Final = 10
WITHIN: Final = 20
"""Offsets that a group has before a transaction, and in it."""
HEARTBEAT_EVERY_S: Final = 0.2
MAX_HEARTBEAT_GAP_S: Final = 1.0
"""A rebalance lasts for several seconds, so a member that asks so often learns of it."""
JOIN_ATTEMPTS: Final = 4


class Prober:
    """Tries out one refusal after another."""

    def __init__(self, context: Context) -> None:
        self._context: Final = context
        self._client: Final = context.client()
        self._other: Final = context.client()
        self._number = 0
        self._name = ""

    async def run(self) -> None:
        """Probe until the campaign stops."""
        context = self._context
        probes: list[Callable[[], Awaitable[None]]] = [
            self._leave_sequences_out,
            self._use_an_old_epoch,
            self._end_as_a_zombie,
            self._end_late,
            self._read_offsets_of_a_transaction,
            self._commit_for_an_old_generation,
            self._wait_for_a_rebalance,
        ]
        context.rng.shuffle(probes)
        while not context.stop.is_set:
            probe = probes[self._number % len(probes)]
            self._number += 1
            self._name = f"{context.name}.{context.life}.{self._number}"
            try:
                await probe()
            except (UnreachableError, RefusedError) as error:
                if not may_be_refused(error):
                    failed(context, error, *MOVED)
                self._client.close()
                self._other.close()
                await context.back_off()
                continue
            context.succeeded()
            context.recorder.note(f"probe: {probe.__name__.strip('_').replace('_', ' ')}")
            await context.pause()

    # ------------------------------------------------------------------ producers

    async def _produce(self, identity: tuple[int, int], partition: int, sequence: int) -> None:
        context = self._context
        op = context.recorder.send(f"{self._name}/{identity[1]}", partition)
        records = records_of(context, [b"%d" % op.value])
        batch = build_batch(records, producer_id=identity[0], producer_epoch=identity[1], base_sequence=sequence)
        try:
            response = await self._client.ask(ApiKey.PRODUCE, 9, produce_request(MAIN, partition, batch))
            op.offset = base_offset_of(response, "Produce")
            op.outcome = "ok"
        except RefusedError as error:
            op.outcome = outcome_of_refusal(error.code)
            raise

    async def _leave_sequences_out(self) -> None:
        """Send a batch whose predecessor the broker has not got."""
        partition = self._context.rng.randrange(self._context.partition_count)
        identity = await new_producer_id(self._context, self._client)
        await self._produce(identity, partition, 0)
        sequence = self._context.rng.randint(2, 6)
        try:
            await self._produce(identity, partition, sequence)
        except RefusedError as error:
            if error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
        else:
            self._context.recorder.fail(f"{MAIN}-{partition}: sequence {sequence} was accepted after sequence 0")

    async def _use_an_old_epoch(self) -> None:
        """Send a batch of an epoch after one of the next."""
        partition = self._context.rng.randrange(self._context.partition_count)
        producer_id, epoch = await new_producer_id(self._context, self._client)
        await self._produce((producer_id, epoch), partition, 0)
        await self._produce((producer_id, epoch + 1), partition, 0)
        try:
            await self._produce((producer_id, epoch), partition, self._context.rng.randrange(2))
        except RefusedError as error:
            if error.code not in FENCED:
                raise
        else:
            self._context.recorder.fail(f"{MAIN}-{partition}: epoch {epoch} was accepted after epoch {epoch + 1}")

    # ------------------------------------------------------------------ transactions

    def _session(self, client: Client, *, is_v2: bool) -> TransactionalSession:
        return TransactionalSession(self._context, client, self._name, is_v2)

    async def _write(self, session: TransactionalSession) -> TransactionOp:
        """Begin a transaction, and write one record in it."""
        context = self._context
        op = context.recorder.begin(MAIN, session.producer_id)
        partition = context.rng.randrange(context.partition_count)
        send = context.recorder.send(f"{self._name}/{session.producer_epoch}", partition, op.number)
        op.partitions.add(partition)
        send.offset = await session.produce(MAIN, partition, records_of(context, [b"%d" % send.value]))
        op.written.add(partition)
        send.outcome = "ok"
        return op

    async def _end(self, session: TransactionalSession, op: TransactionOp, *, is_commit: bool) -> None:
        if is_commit:
            op.outcome = "unknown"
        await session.end(is_commit=is_commit)
        if is_commit:
            op.outcome = "ok"

    async def _end_as_a_zombie(self) -> None:
        """End a transaction after another producer has taken the transactional id."""
        is_v2 = self._context.rng.random() < 0.5
        zombie = self._session(self._client, is_v2=is_v2)
        await zombie.init()
        await self._write(zombie)
        successor = self._session(self._other, is_v2=is_v2)
        await successor.init()
        op = await self._write(successor)
        request = EndTxnRequest(
            transactional_id=self._name,
            producer_id=zombie.producer_id,
            producer_epoch=zombie.producer_epoch,
            committed=True,
        )
        response = await self._client.ask(ApiKey.END_TXN, 5 if is_v2 else 3, request)
        if response.error_code not in FENCED:
            accept(response.error_code, "EndTxn")
            self._context.recorder.fail(f"{self._name}: a fenced producer has ended a transaction")
            return
        await self._end(successor, op, is_commit=self._context.rng.random() < 0.5)

    async def _end_late(self) -> None:
        """Let an EndTxn of transactions v1 arrive over a connection that the producer has given up meanwhile."""
        self._other.close()  # the broker tells the connections apart by their age: the next one has to be newer
        session = self._session(self._client, is_v2=False)
        await session.init()
        op = await self._write(session)
        connection = await self._client.connect()
        session.client = self._other
        await self._end(session, op, is_commit=True)
        op = await self._write(session)
        if connection.is_closed:
            return
        request = EndTxnRequest(
            transactional_id=self._name,
            producer_id=session.producer_id,
            producer_epoch=session.producer_epoch,
            committed=True,
        )
        try:
            response = await self._client.response(connection.send(ApiKey.END_TXN, 3, request), connection)
        except UnreachableError:
            pass  # as it should be: the broker closes the connection
        else:
            accept(response.error_code, "EndTxn")
            self._context.recorder.fail(f"{self._name}: a late EndTxn has ended the next transaction")
            return
        await self._end(session, op, is_commit=False)

    async def _read_offsets_of_a_transaction(self) -> None:
        """Read the offsets of a group while a transaction changes them, and after it."""
        context, group = self._context, self._name
        session = self._session(self._client, is_v2=context.rng.random() < 0.5)
        await find_coordinator(context, self._other, group)
        await commit_offsets(self._other, group, {0: BEFORE})
        await session.init()
        await session.commit_offsets(group, MAIN, {0: WITHIN}, -1, "")
        stable: dict[int, int] = {}
        try:
            stable = await committed_offsets(self._other, group, [0])
        except RefusedError as error:
            if error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                raise
        current = await committed_offsets(self._other, group, [0], is_stable=False)
        is_commit = context.rng.random() < 0.5
        await session.end(is_commit=is_commit)
        # Only now it is certain that the transaction was open all the time: its timeout could have ended it.
        if stable or current != {0: BEFORE}:
            context.recorder.fail(f"{group}: within a transaction its offsets were {stable} (stable) and {current}")
        for _ in range(JOIN_ATTEMPTS):
            try:
                found = await committed_offsets(self._other, group, [0])
                break
            except RefusedError as error:
                if error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                    raise
                await context.back_off()
        else:
            return
        if found != {0: WITHIN if is_commit else BEFORE}:
            end = "committed" if is_commit else "aborted"
            context.recorder.fail(f"{group}: its offsets are {found} after the transaction was {end}")

    # ------------------------------------------------------------------ groups

    async def _join(self, member: Membership) -> None:
        for attempts_left in reversed(range(JOIN_ATTEMPTS)):
            try:
                await member.join()
                return
            except RefusedError as error:
                if error.code not in MOVED or not attempts_left:
                    raise

    async def _commit_for_an_old_generation(self) -> None:
        """Commit offsets under the generation before the last one."""
        await find_coordinator(self._context, self._client, self._name)
        member = Membership(self._context, self._client, self._name)
        await self._join(member)
        generation, member_id = member.generation, member.member_id
        await self._join(member)  # of the leader: it begins another generation
        if (member.generation, member.member_id) == (generation + 1, member_id):
            try:
                await commit_offsets(self._client, self._name, {0: 1}, generation=generation, member_id=member_id)
            except RefusedError as error:
                if error.code not in MOVED:
                    raise
            else:
                self._context.recorder.fail(f"{self._name}: a commit was accepted for a generation that is over")
        await member.leave()

    async def _wait_for_a_rebalance(self) -> None:
        """Let a second member join, and wait until the first one learns of it, as long as its heartbeats succeed."""
        context = self._context
        await find_coordinator(context, self._client, self._name)
        first = Membership(context, self._client, self._name)
        second = Membership(context, self._other, self._name)
        await self._join(first)
        joining = asyncio.ensure_future(self._join(second))
        try:
            await self._heartbeat_until_told(first, joining)
            await self._join(first)
            await joining
        finally:
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)
        await first.leave()
        await second.leave()

    async def _heartbeat_until_told(self, member: Membership, joining: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        connection = await self._client.connect()
        asked_s = loop.time()
        longest_gap_s = 0.0
        while True:
            await asyncio.sleep(HEARTBEAT_EVERY_S)
            code = await member.heartbeat()
            longest_gap_s, asked_s = max(longest_gap_s, loop.time() - asked_s), loop.time()
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                return
            if connection.is_closed or longest_gap_s > MAX_HEARTBEAT_GAP_S:
                raise UnreachableError("the connection was lost, or slow")
            if code in MOVED:
                self._context.recorder.fail(f"{self._name}: the group went on without a member, and never told it")
            accept(code, "Heartbeat")
            if joining.done() and joining.exception() is not None:
                await joining
