"""DescribeLogDirs: the data directory, its partitions and its free space."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.runtime.replica import HostedReplica

if TYPE_CHECKING:
    from hailbus_broker.protocol.definitions.describe_log_dirs_request import DescribeLogDirsRequest
    from hailbus_broker.protocol.definitions.describe_log_dirs_response import DescribeLogDirsResponse
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request


def describe_log_dirs(dispatcher: Dispatcher, _: Request, message: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    """DescribeLogDirs v1-5."""
    import os

    from hailbus_broker.protocol.definitions.describe_log_dirs_response import (
        DescribeLogDirsPartition,
        DescribeLogDirsResponse,
        DescribeLogDirsResult,
        DescribeLogDirsTopic,
    )

    node = dispatcher.node
    if node.failure is not None:
        # As in Apache Kafka: of a directory that is offline the error is all there is to say.
        offline = DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=node.data.path)
        return DescribeLogDirsResponse(results=[offline])
    wanted = None if message.topics is None else {topic.topic: set(topic.partitions) for topic in message.topics}
    topics = []
    for name, replicas in sorted(node.replicas.topics.items()):
        if wanted is not None and name not in wanted:
            continue
        shown = [
            DescribeLogDirsPartition(partition_index=partition.index, partition_size=partition.log.size_bytes())
            for partition in replicas
            if isinstance(partition, HostedReplica) and (wanted is None or partition.index in wanted[name])
        ]
        if shown:
            topics.append(DescribeLogDirsTopic(name=name, partitions=shown))
    space = os.statvfs(node.data.path)
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                log_dir=node.data.path,
                topics=topics,
                total_bytes=space.f_blocks * space.f_frsize,
                usable_bytes=space.f_bavail * space.f_frsize,
            )
        ]
    )
