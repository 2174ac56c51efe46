"""`hailbus-broker describe`."""

from __future__ import annotations

import json
import sys
from typing import Any

from hailbus_broker.cli.client import CLIENT_ID, BrokerClient
from hailbus_broker.cluster.options import BROKER_OPTIONS
from hailbus_broker.coordinators.group.rebalances import TAG
from hailbus_broker.protocol.definitions.api_versions_request import ApiVersionsRequest
from hailbus_broker.protocol.definitions.consumer_group_describe_request import ConsumerGroupDescribeRequest
from hailbus_broker.protocol.definitions.describe_cluster_request import DescribeClusterRequest
from hailbus_broker.protocol.definitions.describe_groups_request import DescribeGroupsRequest
from hailbus_broker.protocol.definitions.describe_log_dirs_request import DescribeLogDirsRequest
from hailbus_broker.protocol.definitions.list_groups_request import ListGroupsRequest
from hailbus_broker.protocol.errors import ErrorCode, ProtocolError


def describe_options() -> None:
    """Print every setting with its default."""
    for name, option in sorted(BROKER_OPTIONS.items()):
        default = "" if option.default is None else option.default
        dynamic = ", may change while running" if option.is_dynamic else ""
        sys.stdout.write(f"{name}={default}\n    {option.doc} ({option.type.name.lower()}{dynamic})\n")


def describe(bootstrap: str, *, timeout_s: float, shows_groups: bool, as_json: bool) -> int:
    """Print a broker's description; return 1 when it does not answer.

    Raises:
        StartError: The address is none.
    """
    try:
        with BrokerClient(bootstrap, timeout_s=timeout_s) as client:
            found = _ask(client, shows_groups=shows_groups)
    except (OSError, EOFError) as error:
        sys.stderr.write(f"hailbus-broker: no broker answers at {bootstrap}: {error}\n")
        return 1
    except ProtocolError as error:
        sys.stderr.write(f"hailbus-broker: what answers at {bootstrap} is no Kafka broker: {error}\n")
        return 1
    if as_json:
        sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n")
        return 0
    sys.stdout.write(f"cluster_id={found['cluster_id']}\ncontroller_id={found['controller_id']}\n")
    for broker in found["brokers"]:
        sys.stdout.write(f"broker={broker['id']} {broker['host']}:{broker['port']}\n")
    for name, level in found["features"].items():
        sys.stdout.write(f"feature={name} level={level}\n")
    for directory in found["log_dirs"]:
        state = "offline" if directory["is_offline"] else "online"
        sys.stdout.write(
            f"log_dir={directory['path']} {state} partitions={directory['partitions']} "
            f"size_bytes={directory['size_bytes']} usable_bytes={directory['usable_bytes']}\n"
        )
    for group in found.get("groups", ()):
        last = group["rebalances"][-1] if group["rebalances"] else None
        why = "" if last is None else f" last_rebalance={last['cause']}: {last['reason']}"
        sys.stdout.write(
            f"group={group['group']} type={group['type']} state={group['state']} members={group['members']}{why}\n"
        )
    return 0


def _ask(client: BrokerClient, *, shows_groups: bool) -> dict[str, Any]:
    # Responses are what their requests say; the client gives them as messages.
    cluster: Any = client.ask(DescribeClusterRequest(), version=1)
    versions: Any = client.ask(ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version="1"))
    directories: Any = client.ask(DescribeLogDirsRequest(topics=None))
    found: dict[str, Any] = {
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "brokers": [{"id": broker.broker_id, "host": broker.host, "port": broker.port} for broker in cluster.brokers],
        "features": {feature.name: feature.max_version_level for feature in versions.finalized_features},
        "log_dirs": [
            {
                "path": result.log_dir,
                "is_offline": result.error_code != ErrorCode.NONE,
                "partitions": sum(len(topic.partitions) for topic in result.topics),
                "size_bytes": sum(part.partition_size for topic in result.topics for part in topic.partitions),
                "usable_bytes": result.usable_bytes,
            }
            for result in directories.results
        ],
    }
    if shows_groups:
        listed: Any = client.ask(ListGroupsRequest())
        found["groups"] = [_group(client, group) for group in listed.groups]
    return found


def _group(client: BrokerClient, listed: Any) -> dict[str, Any]:  # one of a ListGroupsResponse
    is_classic = listed.group_type != "Consumer"
    answer: Any = (
        client.ask(DescribeGroupsRequest(groups=[listed.group_id]))
        if is_classic
        else client.ask(ConsumerGroupDescribeRequest(group_ids=[listed.group_id]))
    )
    (described,) = answer.groups
    tag = (described.unknown_tags or {}).get(TAG)
    return {
        "group": listed.group_id,
        "type": listed.group_type,
        "state": listed.group_state,
        "members": len(described.members),
        "rebalances": [] if tag is None else json.loads(tag),
    }
