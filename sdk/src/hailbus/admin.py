"""Provisioning and lag over any Kafka-protocol cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

from hailbus._transport import Admin, Bus, ClusterDescription, TopicDescription, TopicPartition
from hailbus.errors import TopicMismatchError
from hailbus.event import Topic

if TYPE_CHECKING:
    from hailbus._transport.kafka_admin import GroupDescription

__all__ = ["ClusterAdmin", "Lag"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a group is behind in one partition, in records."""

    topic: str
    partition: int
    committed_offset: int | None
    end_offset: int
    lag: int


class ClusterAdmin:
    """Looks after topics and offsets. An async context manager; without `async with` it connects at the first call.

    Args:
        bus: A bus, or bootstrap servers.
    """

    def __init__(self, bus: Bus | str, *, client_id: str = "hailbus-admin") -> None:
        if isinstance(bus, str):
            from hailbus._transport.kafka import KafkaBus  # a service on another bus need not load the client

            bus = KafkaBus(bootstrap_servers=bus)
        self._bus: Bus = bus
        self._client_id = client_id
        self._admin: Admin | None = None

    async def __aenter__(self) -> Self:
        await self._started()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect."""
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.stop()

    async def _started(self) -> Admin:
        if self._admin is None:
            admin = self._bus.admin(client_id=self._client_id)
            await admin.start()
            self._admin = admin
        return self._admin

    async def provision(
        self, topics: Iterable[Topic], *, on_mismatch: Literal["raise", "ignore"] = "raise"
    ) -> frozenset[str]:
        """Create the topics that are missing; the names of those created. Existing ones are never changed.

        Raises:
            TopicMismatchError: An existing topic has another number of partitions than declared.
            BrokerUnreachableError: No broker answered in time.
        """
        admin = await self._started()
        wanted = list({topic.name: topic for topic in topics}.values())
        created = await admin.create(wanted)
        if on_mismatch == "raise":
            found = await admin.describe([topic.name for topic in wanted])
            for topic in wanted:
                description = found.get(topic.name)
                if description is not None and description.partition_count != topic.partitions:
                    raise TopicMismatchError(
                        topic=topic.name,
                        differences=[f"{description.partition_count} partitions, declared are {topic.partitions}"],
                    )
        return created

    async def cluster(self) -> ClusterDescription:
        """The brokers, fenced ones included, and the active controller."""
        return await (await self._started()).cluster()

    async def topics(self, names: Sequence[str] | None = None) -> Mapping[str, TopicDescription]:
        """Existing topics by name; all but internal ones when none are named."""
        return await (await self._started()).describe(names)

    async def start_offsets(self, topics: Iterable[str | Topic]) -> Mapping[TopicPartition, int]:
        """First readable offset of each partition."""
        return await (await self._started()).start_offsets(_names(topics))

    async def end_offsets(self, topics: Iterable[str | Topic]) -> Mapping[TopicPartition, int]:
        """High watermark of each partition: the offset that the next record gets."""
        return await (await self._started()).end_offsets(_names(topics))

    async def offsets_at(self, topics: Iterable[str | Topic], moment: datetime) -> Mapping[TopicPartition, int]:
        """First offset whose record timestamp is at or after a moment; the high watermark where there is none."""
        return await (await self._started()).offsets_at(_names(topics), moment)

    async def committed(self, group: str) -> Mapping[TopicPartition, int]:
        """Committed offsets of a group; empty for a group that never committed."""
        return await (await self._started()).committed(group)

    async def lag(self, group: str, topics: Iterable[str | Topic] | None = None) -> list[Lag]:
        """Lag of a group per partition, sorted: of the topics that it committed for, or of those given.

        A partition without committed offset counts from its first readable record.
        """
        committed = await self.committed(group)
        names = sorted({tp.topic for tp in committed}) if topics is None else _names(topics)
        if not names:
            return []
        ends = await self.end_offsets(names)
        missing = any(tp not in committed for tp in ends)
        starts = await self.start_offsets(names) if missing else {}
        return [
            Lag(
                topic=tp.topic,
                partition=tp.partition,
                committed_offset=committed.get(tp),
                end_offset=end,
                lag=max(end - committed.get(tp, starts.get(tp, 0)), 0),
            )
            for tp, end in sorted(ends.items())
        ]

    async def consumes(self, group: str, *, former: Collection[str] = ()) -> bool:
        """Whether a group is at work: rebalanced, and its partitions held by members that are alive.

        A coordinator counts a member that was killed until its session ends. To judge a process that was started
        again, pass as `former` what `members` returned before its start.

        Of a Kafka cluster only; an in-memory bus has no coordinator to ask.
        """
        found = await self._described(group)
        holders = {member.member_id for member in found.members if member.partitions}
        return found.state == "Stable" and bool(holders) and holders.isdisjoint(former)

    async def members(self, group: str) -> frozenset[str]:
        """Ids of a group's members; a process gets a new id with each start, also as a static member.

        Of a Kafka cluster only; an in-memory bus has no coordinator to ask.
        """
        return frozenset(member.member_id for member in (await self._described(group)).members)

    async def _described(self, group: str) -> GroupDescription:
        from hailbus._transport.kafka_admin import KafkaAdmin

        admin = await self._started()
        assert isinstance(admin, KafkaAdmin), "an in-memory bus has no group coordinator"
        return await admin.describe_group(group)

    async def list_groups(self) -> list[str]:
        """Group ids, sorted."""
        return list(await (await self._started()).groups())


def _names(topics: Iterable[str | Topic]) -> list[str]:
    return sorted({topic if isinstance(topic, str) else topic.name for topic in topics})
