"""Which function serves which API. What is not here is not listed by ApiVersions."""

from __future__ import annotations

from typing import Final

from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.server.dispatch import Handler
from hailbus_broker.server.handlers import (
    cluster,
    configs,
    controller,
    fetch,
    groups,
    log_directories,
    log_offsets,
    membership,
    offsets,
    produce,
    producers,
    quorum,
    topics,
    transactions,
)

HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.PRODUCE: Handler(produce.handle, is_raw=True),
    ApiKey.FETCH: Handler(fetch.handle, is_raw=True),
    ApiKey.LIST_OFFSETS: Handler(log_offsets.list_offsets),
    ApiKey.METADATA: Handler(cluster.metadata, is_raw=True),
    ApiKey.OFFSET_COMMIT: Handler(offsets.offset_commit),
    ApiKey.OFFSET_FETCH: Handler(offsets.offset_fetch),
    ApiKey.FIND_COORDINATOR: Handler(cluster.find_coordinator),
    ApiKey.JOIN_GROUP: Handler(groups.join_group),
    ApiKey.HEARTBEAT: Handler(groups.heartbeat),
    ApiKey.LEAVE_GROUP: Handler(groups.leave_group),
    ApiKey.SYNC_GROUP: Handler(groups.sync_group),
    ApiKey.DESCRIBE_GROUPS: Handler(groups.describe_groups),
    ApiKey.LIST_GROUPS: Handler(groups.list_groups),
    ApiKey.API_VERSIONS: Handler(cluster.api_versions, answer_unsupported=cluster.unsupported_api_versions),
    ApiKey.CREATE_TOPICS: Handler(topics.create_topics),
    ApiKey.DELETE_TOPICS: Handler(topics.delete_topics),
    ApiKey.DELETE_RECORDS: Handler(log_offsets.delete_records),
    ApiKey.INIT_PRODUCER_ID: Handler(transactions.init_producer_id),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Handler(log_offsets.offset_for_leader_epoch),
    ApiKey.ADD_PARTITIONS_TO_TXN: Handler(transactions.add_partitions_to_txn),
    ApiKey.ADD_OFFSETS_TO_TXN: Handler(transactions.add_offsets_to_txn),
    ApiKey.END_TXN: Handler(transactions.end_txn),
    ApiKey.WRITE_TXN_MARKERS: Handler(transactions.write_txn_markers),
    ApiKey.TXN_OFFSET_COMMIT: Handler(transactions.txn_offset_commit),
    ApiKey.DESCRIBE_TRANSACTIONS: Handler(transactions.describe_transactions),
    ApiKey.LIST_TRANSACTIONS: Handler(transactions.list_transactions),
    ApiKey.DESCRIBE_CONFIGS: Handler(configs.describe_configs),
    ApiKey.ALTER_CONFIGS: Handler(configs.alter_configs),
    ApiKey.DESCRIBE_LOG_DIRS: Handler(log_directories.describe_log_dirs),
    ApiKey.CREATE_PARTITIONS: Handler(topics.create_partitions),
    ApiKey.DELETE_GROUPS: Handler(groups.delete_groups),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Handler(configs.incremental_alter_configs),
    ApiKey.ELECT_LEADERS: Handler(controller.elect_leaders),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Handler(controller.alter_partition_reassignments),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Handler(controller.list_partition_reassignments),
    ApiKey.OFFSET_DELETE: Handler(offsets.offset_delete),
    ApiKey.DESCRIBE_QUORUM: Handler(quorum.describe_quorum),
    ApiKey.UPDATE_FEATURES: Handler(controller.update_features),
    ApiKey.DESCRIBE_CLUSTER: Handler(cluster.describe_cluster),
    ApiKey.DESCRIBE_PRODUCERS: Handler(producers.describe_producers),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Handler(groups.consumer_group_heartbeat),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Handler(groups.consumer_group_describe),
    ApiKey.LIST_CONFIG_RESOURCES: Handler(configs.list_config_resources),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Handler(cluster.describe_topic_partitions),
}

CONTROLLER_HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.FETCH: Handler(quorum.receive),
    ApiKey.API_VERSIONS: Handler(cluster.api_versions, answer_unsupported=cluster.unsupported_api_versions),
    ApiKey.VOTE: Handler(quorum.receive),
    ApiKey.BEGIN_QUORUM_EPOCH: Handler(quorum.receive),
    ApiKey.END_QUORUM_EPOCH: Handler(quorum.receive),
    ApiKey.DESCRIBE_QUORUM: Handler(quorum.describe_quorum),
    ApiKey.ALTER_PARTITION: Handler(membership.alter_partition),
    ApiKey.FETCH_SNAPSHOT: Handler(quorum.receive),
    ApiKey.BROKER_REGISTRATION: Handler(membership.broker_registration),
    ApiKey.BROKER_HEARTBEAT: Handler(membership.broker_heartbeat),
    ApiKey.UNREGISTER_BROKER: Handler(membership.unregister_broker),
    ApiKey.ALLOCATE_PRODUCER_IDS: Handler(membership.allocate_producer_ids),
    ApiKey.CONTROLLER_REGISTRATION: Handler(membership.controller_registration),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: Handler(membership.assign_replicas_to_dirs),
}
"""The same for the listener of a controller."""
