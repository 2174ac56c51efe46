"""Edits the log files of a partition while its broker is stopped, as a faulty disk or a person with an editor would.

The edited batches get a valid CRC, and the indexes of an edited segment are removed so that the broker builds them
again: nothing but the records themselves shows that somebody was there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hailbus_broker.records import BatchView, Record, iterate_batches, iterate_records, rebuild_batch

LOG_SUFFIX = ".log"
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
SNAPSHOT_SUFFIX = ".snapshot"
OFFSET_CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A record and where it is. `batch_base` and `batch_end` bound its batch, the end exclusive."""

    topic: str
    partition: int
    batch_base: int
    batch_end: int
    record: Record

    @property
    def offset(self) -> int:
        """The record's offset."""
        return self.record.offset

    def header(self, name: str) -> str:
        """Return the value of a header, empty where the record has none of that name."""
        for key, value in self.record.headers:
            if key == name and value is not None:
                return value.decode("utf-8", "replace")
        return ""


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The log directory of a stopped broker."""

    root: Path

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic that have a directory."""
        found = []
        for path in self.root.glob(f"{topic}-*"):
            number = path.name.removeprefix(f"{topic}-")
            if number.isdigit():
                found.append(int(number))
        return sorted(found)

    def records(self, topic: str, partition: int) -> list[Placed]:
        """Return the records of a partition in the order of the log; markers of transactions are left out."""
        found = []
        for path in self._segments(topic, partition):
            for batch in _batches(path):
                if batch.header.is_control:
                    continue
                found += [
                    Placed(
                        topic=topic,
                        partition=partition,
                        batch_base=batch.header.base_offset,
                        batch_end=batch.header.next_offset,
                        record=record,
                    )
                    for record in iterate_records(batch)
                ]
        return found

    def replace(self, topic: str, partition: int, changed: Mapping[int, Record]) -> None:
        """Put other records at some offsets.

        Args:
            topic: The topic.
            partition: The partition.
            changed: Offset → record; the record's own offset does not matter.
        """

        def edit(records: Sequence[Record]) -> list[Record]:
            return [
                replace(changed[record.offset], offset=record.offset) if record.offset in changed else record
                for record in records
            ]

        self._rewrite(topic, partition, set(changed), edit)

    def remove(self, topic: str, partition: int, offset: int) -> None:
        """Remove one record; its offset stays empty, as if compaction had removed it."""
        self._rewrite(
            topic, partition, {offset}, lambda records: [record for record in records if record.offset != offset]
        )

    def truncate(self, topic: str, partition: int, end: int) -> None:
        """Remove everything from an offset on, which must be the first one of a batch.

        Everything that remembers the old end forgets it, too: checkpoints and snapshots of the producers' state.
        """
        for path in self._segments(topic, partition):
            kept = bytearray()
            for batch in _batches(path):
                if batch.header.base_offset >= end:
                    break
                assert batch.header.next_offset <= end, f"offset {end} is within a batch of {path}"
                kept += batch.data
            if len(kept) == path.stat().st_size:
                continue
            if kept or int(path.stem) <= end:
                path.write_bytes(kept)
            else:
                path.unlink()
            _remove_indexes(path)
        for path in self._directory(topic, partition).glob(f"*{SNAPSHOT_SUFFIX}"):
            if int(path.stem) > end:
                path.unlink()
        for name in OFFSET_CHECKPOINTS:
            self._lower_checkpoint(name, topic, partition, end)

    def _directory(self, topic: str, partition: int) -> Path:
        return self.root / f"{topic}-{partition}"

    def _segments(self, topic: str, partition: int) -> list[Path]:
        return sorted(self._directory(topic, partition).glob(f"*{LOG_SUFFIX}"))

    def _rewrite(
        self, topic: str, partition: int, offsets: set[int], edit: Callable[[Sequence[Record]], list[Record]]
    ) -> None:
        found: set[int] = set()
        for path in self._segments(topic, partition):
            written, touched = bytearray(), False
            for batch in _batches(path):
                header = batch.header
                inside = {offset for offset in offsets if header.base_offset <= offset < header.next_offset}
                if inside:
                    found |= inside
                    touched = True
                    written += rebuild_batch(header, edit(list(iterate_records(batch))))
                else:
                    written += batch.data
            if touched:
                path.write_bytes(written)
                _remove_indexes(path)
        assert found == offsets, f"{topic}-{partition} has no offsets {sorted(offsets - found)}"

    def _lower_checkpoint(self, name: str, topic: str, partition: int, end: int) -> None:
        """Lower a partition's offset in a checkpoint: a version, a count, then `topic partition offset` lines."""
        path = self.root / name
        if not path.exists():
            return
        lines = path.read_text(encoding="utf-8").splitlines()
        start = f"{topic} {partition} "
        for number, line in enumerate(lines):
            if line.startswith(start):
                lines[number] = f"{start}{min(end, int(line.removeprefix(start)))}"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _batches(path: Path) -> Iterator[BatchView]:
    return iterate_batches(path.read_bytes())


def _remove_indexes(segment: Path) -> None:
    for suffix in INDEX_SUFFIXES:
        segment.with_suffix(suffix).unlink(missing_ok=True)
