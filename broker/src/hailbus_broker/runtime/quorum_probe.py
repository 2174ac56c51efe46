"""Whether enough controllers run for anything to be decided."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hailbus_broker.cluster.raft.voters import Endpoint
    from hailbus_broker.runtime.node_core import NodeCore

PROBE_S: Final = 1.0
"""How long a voter's listener is waited for."""


async def is_majority_gone(core: NodeCore) -> bool:
    """Return whether so many voters refuse connections that the others are no majority.

    A process that has ended refuses connections. A host that does not answer may be cut off, so it counts as running.

    Args:
        core: Of the node that asks; if it votes, it counts as running.
    """
    voters = core.metadata.quorum.voters
    others = [voter.endpoints[0] for voter in voters if voter.key.node_id != core.node_id and voter.endpoints]
    refused = sum(await asyncio.gather(*(_refuses(core, endpoint) for endpoint in others)))
    return len(voters) - refused < voters.majority


async def _refuses(core: NodeCore, endpoint: Endpoint) -> bool:
    try:
        async with asyncio.timeout(PROBE_S):
            transport, _ = await core.loop.create_connection(asyncio.Protocol, endpoint.host, endpoint.port)
    except ConnectionRefusedError:
        return True
    except OSError:  # TimeoutError is one
        return False
    transport.close()
    return False
