"""`hailbus-broker describe`."""

from __future__ import annotations

import sys
from typing import Any

from hailbus_broker.cli.client import BrokerClient
from hailbus_broker.cluster.options import BROKER_OPTIONS
from hailbus_broker.protocol.definitions.describe_cluster_request import DescribeClusterRequest
from hailbus_broker.protocol.errors import ProtocolError


def describe_options() -> None:
    """Print every setting with its default."""
    for name, option in sorted(BROKER_OPTIONS.items()):
        default = "" if option.default is None else option.default
        dynamic = ", may change while running" if option.is_dynamic else ""
        sys.stdout.write(f"{name}={default}\n    {option.doc} ({option.type.name.lower()}{dynamic})\n")


def describe(bootstrap: str, *, timeout_s: float) -> int:
    """Print what a broker says of itself; 1 when it does not answer.

    Raises:
        StartError: The address is none.
    """
    try:
        with BrokerClient(bootstrap, timeout_s=timeout_s) as client:
            cluster: Any = client.ask(DescribeClusterRequest(), version=1)  # a DescribeClusterResponse
    except (OSError, EOFError) as error:
        sys.stderr.write(f"hailbus-broker: no broker answers at {bootstrap}: {error}\n")
        return 1
    except ProtocolError as error:
        sys.stderr.write(f"hailbus-broker: what answers at {bootstrap} is no Kafka broker: {error}\n")
        return 1
    sys.stdout.write(f"cluster_id={cluster.cluster_id}\ncontroller_id={cluster.controller_id}\n")
    for broker in cluster.brokers:
        sys.stdout.write(f"broker={broker.broker_id} {broker.host}:{broker.port}\n")
    return 0
