"""The quorum's settings, by Kafka's names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """In milliseconds.

    Attributes:
        fetch_timeout_ms: `controller.quorum.fetch.timeout.ms`: a voter that could not fetch from the leader for so long
            asks for an election; a leader from which no majority has fetched for half as long again resigns.
        election_timeout_ms: `controller.quorum.election.timeout.ms`: an election without result ends after this, and up
            to as much again by chance.
        election_backoff_max_ms: `controller.quorum.election.backoff.max.ms`: the longest wait after a lost election.
        retry_backoff_ms: `controller.quorum.retry.backoff.ms`: the wait after a request that failed.
        fetch_max_wait_ms: How long a leader may hold a fetch for which it has no records.
        suspicion_stagger_ms: When the leader's host refuses connections, the voters ask for an election one after the
            other, so many milliseconds apart: votes are rarely split then.
        voter_change_timeout_ms: How long the answer to the removal of a voter waits for the commit.
        auto_join: `controller.quorum.auto.join.enable`: a controller that does not vote asks to be added, and to have
            the voter of its id with another directory removed (KIP-1186).
    """

    fetch_timeout_ms: int = 2_000
    election_timeout_ms: int = 1_000
    election_backoff_max_ms: int = 1_000
    retry_backoff_ms: int = 20
    fetch_max_wait_ms: int = 500
    suspicion_stagger_ms: int = 100
    voter_change_timeout_ms: int = 30_000
    auto_join: bool = False
