"""What the group coordinator needs to know of the broker's settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Times in ms, named like the broker's options."""

    initial_rebalance_delay_ms: int = 3_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 10_080 * 60_000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_max_size: int = 2**31 - 1
    consumer_migration_policy: str = "bidirectional"
    consumer_assignors: tuple[str, ...] = ("uniform", "range")

    @property
    def can_upgrade(self) -> bool:
        """Whether a classic group with members may become a consumer group."""
        return self.consumer_migration_policy in {"bidirectional", "upgrade"}

    @property
    def can_downgrade(self) -> bool:
        """Whether a consumer group may become a classic one."""
        return self.consumer_migration_policy in {"bidirectional", "downgrade"}
