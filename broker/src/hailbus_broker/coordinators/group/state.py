"""What the coordinator knows of the groups of one partition of `__consumer_offsets`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from hailbus_broker.coordinators.timers import Timers
from hailbus_broker.protocol import codec
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from hailbus_broker.cluster.metadata.image import MetadataImage
    from hailbus_broker.coordinators.group.classic import ClassicGroup
    from hailbus_broker.coordinators.group.config import GroupConfig
    from hailbus_broker.coordinators.group.consumer import ConsumerGroup
    from hailbus_broker.coordinators.group.rebalances import RebalanceCause

MemberKey = tuple[str, str]
"""Group id and member id; an empty member id stands for the deadlines of the group itself."""


class GroupState:
    """The state of one partition. Decisions read it; only `GroupDecision.install` and `replay` change it.

    Args:
        config: Limits and times.
        image: The committed metadata: what topics there are. A snapshot replaces it.
        group_settings: Session timeout and heartbeat interval of a group, in ms, for the consumer protocol.
        rng: For member ids.

    Attributes:
        groups: Groups of the classic protocol.
        consumer_groups: Groups of the consumer protocol.
        session_deadlines: When each member is evicted unless it is heard of; not durable.
        revocation_deadlines: When a member that must give partitions up is evicted; not durable.
        parked_replies: How many replies for each classic member wait until records are durable; not durable.
        timers: When the deadlines of a member or of a group are checked; not durable.
        rebalance_counts: Rebalances since the shard was loaded, by cause.
    """

    def __init__(
        self,
        config: GroupConfig,
        *,
        image: MetadataImage,
        group_settings: Callable[[str], tuple[int, int]],
        rng: random.Random,
    ) -> None:
        self.config: Final = config
        self.image = image
        self.group_settings: Final = group_settings
        self.rng: Final = rng
        self.groups: Final[dict[str, ClassicGroup]] = {}
        self.consumer_groups: Final[dict[str, ConsumerGroup]] = {}
        self.session_deadlines: Final[dict[MemberKey, int]] = {}
        self.revocation_deadlines: Final[dict[MemberKey, int]] = {}
        self.parked_replies: Final[Counter[MemberKey]] = Counter()
        self.timers: Final[Timers[MemberKey]] = Timers()
        self.rebalance_counts: Final[Counter[RebalanceCause]] = Counter()

    def arm(self, key: MemberKey) -> None:
        """Schedule a check of a member's deadlines."""
        for deadlines in (self.session_deadlines, self.revocation_deadlines):
            if key in deadlines:
                self.timers.arm(key, deadlines[key])

    def touch(self, key: MemberKey, deadline_ms: int) -> None:
        """Let a member's session last until a time."""
        self.session_deadlines[key] = deadline_ms
        self.timers.arm(key, deadline_ms)

    def drop_deadlines(self, key: MemberKey) -> None:
        """Forget the deadlines of a member that is gone; a check that is armed finds nothing to do."""
        self.session_deadlines.pop(key, None)
        self.revocation_deadlines.pop(key, None)

    def new_member_id(self, prefix: str) -> str:
        """Create a member id.

        Raises:
            ApiError: The id would be longer than a string of the protocol may be.
        """
        raw = self.rng.randbytes(16).hex()
        member_id = f"{prefix}-{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-a{raw[17:20]}-{raw[20:]}"
        if len(member_id.encode()) > codec.MAX_STRING_BYTES:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)  # as from Apache Kafka
        return member_id
