"""A group member that has lost its topics' metadata asks for it again, and not only when it grows old."""

from __future__ import annotations

from typing import Any

import pytest
from hailbus import KafkaBus
from hailbus._transport.aiokafka_consumer import AiokafkaConsumer
from hailbus._transport.cluster import ConsumerOptions


class Client:
    """A client library that knows the partitions of some topics, and counts its requests for metadata."""

    def __init__(self, known: dict[str, set[int]]) -> None:
        self.known, self.asked = known, 0
        self._client = self
        self._conns: dict[object, object] = {}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return self.known.get(topic)

    def force_metadata_update(self) -> None:
        self.asked += 1

    async def getmany(self, *_: object, **__: object) -> dict[Any, Any]:
        return {}


def consumer(client: Client, *, group: str | None) -> AiokafkaConsumer:
    options = ConsumerOptions(
        client_id="x", group=group, topics=("rides", "prices"), start="earliest", listener=None, read_committed=True
    )
    found = AiokafkaConsumer(KafkaBus(bootstrap_servers="127.0.0.1:9"), options)
    found._started = client
    return found


async def poll(member: AiokafkaConsumer) -> None:
    assert await member.poll(timeout_s=0.0, max_records=1) == {}


@pytest.mark.parametrize("known", [{}, {"rides": {0, 1}}, {"rides": {0}, "prices": set()}])
async def test_a_member_without_metadata_asks_in_each_poll_until_it_has_some(known: dict[str, set[int]]) -> None:
    client = Client(known)
    member = consumer(client, group="surge")
    await poll(member)
    await poll(member)
    assert client.asked == 2
    client.known = {"rides": {0, 1}, "prices": {0}}
    await poll(member)
    assert client.asked == 2


async def test_a_reader_without_a_group_has_its_partitions_and_does_not_ask() -> None:
    client = Client({})
    await poll(consumer(client, group=None))
    assert client.asked == 0
