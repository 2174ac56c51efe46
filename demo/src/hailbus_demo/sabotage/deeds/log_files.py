"""Faults in the log files of a stopped broker: records that are lost, exchanged or altered."""

from __future__ import annotations

import json
from dataclasses import replace

from hailbus_broker.records import Record

from hailbus_demo.sabotage.deeds.deed import PAYMENTS, RIDES, Deed
from hailbus_demo.sabotage.segments import LogFiles, Placed

LOST_RECORDS = 3


def lose_tail(files: LogFiles, *, acknowledged: set[str], least: int = LOST_RECORDS) -> Deed | None:
    """Cut records off the end of a partition of payments.v1.

    Args:
        files: Of the stopped broker.
        acknowledged: Ids of events that payment knows to be published; the others it would publish again.
        least: How many acknowledged records have to go.
    """
    for partition in _fullest(files, PAYMENTS):
        records = files.records(PAYMENTS, partition)
        for candidate in reversed(records):
            gone = [placed for placed in records if placed.offset >= candidate.batch_base]
            lost = [placed for placed in gone if placed.header("ce_id") in acknowledged]
            if len(lost) >= least:
                files.truncate(PAYMENTS, partition, candidate.batch_base)
                return _deed(
                    "lost-tail",
                    lost[0],
                    f"{len(gone)} acknowledged records are gone from the end of {PAYMENTS}-{partition}, from offset "
                    f"{gone[0].offset} on; one is the {_name(lost[0])}",
                )
    return None


def lose_record(files: LogFiles) -> Deed | None:
    """Remove the first ride.started of the fullest partition of rides.v1."""
    for partition in _fullest(files, RIDES):
        for placed in files.records(RIDES, partition):
            if placed.header("ce_type") == "ride.started":
                files.remove(RIDES, partition, placed.offset)
                return _deed("lost-record", placed, f"the {_name(placed)} is gone from {_place(placed)}")
    return None


def reorder(files: LogFiles) -> Deed | None:
    """Exchange the second and the third record of a ride; each place keeps its offset and its timestamp."""
    for partition in _fullest(files, RIDES):
        trails: dict[bytes | None, list[Placed]] = {}
        for placed in files.records(RIDES, partition):
            trail = trails.setdefault(placed.record.key, [])
            trail.append(placed)
            if len(trail) == 4:
                _, first, second, _ = trail
                files.replace(
                    RIDES,
                    partition,
                    {
                        first.offset: _moved(second.record, to=first.record),
                        second.offset: _moved(first.record, to=second.record),
                    },
                )
                return Deed(
                    fault="reordered",
                    sentence=(
                        f"the {_name(second)} stands at {_place(first)} now, before the {_name(first)} at "
                        f"{_place(second)}"
                    ),
                    topic=RIDES,
                    partition=partition,
                    offset=second.offset,
                    id=first.header("ce_id"),
                )
    return None


def alter(files: LogFiles) -> Deed | None:
    """Add 100 to the amount of the first payment.captured of the fullest partition of payments.v1."""
    for partition in _fullest(files, PAYMENTS):
        for placed in files.records(PAYMENTS, partition):
            if placed.header("ce_type") != "payment.captured" or placed.record.value is None:
                continue
            payload = json.loads(placed.record.value)
            before = payload["amount"]["amount_minor"]
            payload["amount"]["amount_minor"] = before + 100
            value = json.dumps(payload, separators=(",", ":")).encode()
            files.replace(PAYMENTS, partition, {placed.offset: replace(placed.record, value=value)})
            return _deed(
                "altered",
                placed,
                f"the {_name(placed)} at {_place(placed)} says {before + 100} in place of {before} cents",
            )
    return None


def _fullest(files: LogFiles, topic: str) -> list[int]:
    """Return the partitions of a topic, the one with the most records first."""
    counts = {partition: len(files.records(topic, partition)) for partition in files.partitions(topic)}
    return sorted(counts, key=lambda partition: (-counts[partition], partition))


def _moved(record: Record, *, to: Record) -> Record:
    return replace(record, timestamp=to.timestamp)


def _place(placed: Placed) -> str:
    return f"{placed.topic}-{placed.partition} offset {placed.offset}"


def _name(placed: Placed) -> str:
    return f"{placed.header('ce_type')} {placed.header('ce_id')}"


def _deed(fault: str, placed: Placed, sentence: str) -> Deed:
    return Deed(
        fault=fault,
        sentence=sentence,
        topic=placed.topic,
        partition=placed.partition,
        offset=placed.offset,
        id=placed.header("ce_id"),
    )
