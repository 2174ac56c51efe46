"""The campaigns judge the markers of a transaction when its producer has been answered."""

from __future__ import annotations

from collections import Counter

from hailbus_broker.testing.campaign.invariants import ClusterInvariants
from hailbus_broker.testing.campaign.recorder import Recorder
from hailbus_broker.testing.simulation import simulated, simulated_cluster

from tests.integration.broker.simulation.test_transactions_across_brokers import ID, SETTINGS, prepared


@simulated(seeds=range(2))
async def test_a_complete_transaction_has_a_committed_marker_behind_its_records() -> None:
    async with simulated_cluster(SETTINGS) as cluster:
        notes: Counter[str] = Counter()
        recorder = Recorder(lambda what: notes.update([what]))
        invariants = ClusterInvariants(cluster, recorder, min_isr=2)
        client = await prepared(cluster, is_v2=True)
        for index in (0, 1):
            await client.produce("rides", index, b"0")
        invariants.ended(ID, client.producer_id, {("rides", 0): 0})
        assert not notes["markers of a complete transaction judged"]  # it is open
        await client.end(is_commit=True)
        invariants.ended(ID, client.producer_id, {("rides", 0): 0, ("rides", 1): 0})
        assert (recorder.failures, notes["markers of a complete transaction judged"]) == ([], 2)
        invariants.ended(ID, client.producer_id, {("rides", 0): 2})
        (failure,) = recorder.failures
        assert "its marker after 2 ends at None, and 2 is committed" in failure
        client.close()
