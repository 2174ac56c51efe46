"""Reads the records of the log and the rows of bronze, and matches them by offset and hash."""

from collections.abc import Iterator, Sequence

from hailbus.record_sum import MODULUS, record_hash

from analytics_spark.broker_view import Place
from analytics_spark.verify.bronze.comparison import Bronze
from analytics_spark.verify.records import header_pairs

_SCANNED = ("topic", "partition", "offset", "key", "value", "headers")
_ROWS_AT_ONCE = 5_000


def read_log(bronze: Bronze) -> None:
    """Read the log of every partition, from where it is compared to its end."""
    wanted = {
        place: (part.report.checked_from, part.report.end)
        for place, part in bronze.partitions.items()
        if part.report.end is not None
    }
    logs = {place: part.log for place, part in bronze.partitions.items()}

    def take(
        place: Place,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        log = logs[place]
        log.offsets.append(offset)
        log.hashes.append(record_hash(place[1], offset, key, value, headers))

    unread = bronze.log.read(wanted, take)
    for place, reason in sorted(unread.items()):
        bronze.find("unread", place, reason)
    for part in bronze.partitions.values():
        part.log.seen = bytearray(len(part.log.offsets))
        part.report.log_records = len(part.log.offsets)
        part.report.log_checksum = sum(part.log.hashes) % MODULUS
        assert part.report.end is not None
        part.report.hidden_offsets = max(0, part.report.end - part.report.checked_from - part.report.log_records)


def scan_lake(bronze: Bronze) -> None:
    """Hash bronze's rows and match each with its record of the log."""
    for place, offset, key, value, headers in _rows(bronze):
        part = bronze.partitions.get(place)
        if part is None:
            continue
        report = part.report
        assert report.end is not None
        if offset < part.scan_from or offset >= report.end:
            continue
        found = record_hash(place[1], offset, key, value, headers)
        part.scanned_sum += found
        if part.verified is not None and offset < part.verified.end:
            part.below_sum += found
            part.below_rows += 1
        if offset < report.checked_from or "unread" in part.kinds:
            continue
        index = part.log.index(offset)
        if index < 0:
            part.absent.append(offset)
            continue
        report.lake_records += 1
        report.lake_checksum = (report.lake_checksum + found) % MODULUS
        if part.log.hashes[index] != found:
            bronze.find_record("altered", place, offset)
        if part.log.seen[index] == 1:
            bronze.find_record("doubled", place, offset)
        part.log.seen[index] = min(2, part.log.seen[index] + 1)


def _rows(
    bronze: Bronze,
) -> Iterator[tuple[Place, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    import pyarrow.dataset as ds

    wanted = None
    if any(part.scan_from for part in bronze.partitions.values()):
        for (topic, partition), part in bronze.partitions.items():
            one = (ds.field("topic") == topic) & (ds.field("partition") == partition)
            if part.scan_from:
                one &= ds.field("offset") >= part.scan_from
            wanted = one if wanted is None else wanted | one
    scanner = bronze.dataset.scanner(columns=list(_SCANNED), filter=wanted, batch_size=_ROWS_AT_ONCE)
    for batch in scanner.to_batches():
        columns = {name: batch.column(name) for name in _SCANNED}
        for topic, partition, offset, key, value, headers in zip(
            *(columns[name].to_pylist() for name in _SCANNED[:-1]), header_pairs(columns["headers"]), strict=True
        ):
            yield (topic, partition), offset, key, value, headers
