"""The index of aborted transactions: its file byte by byte, and what a crash or a truncation leaves."""

from __future__ import annotations

import random
from struct import pack

from hailbus_broker.log.results import AbortedTransaction
from hailbus_broker.log.transaction_index import TransactionIndex
from hailbus_broker.testing.simulation.disk import SimulatedDisk

PATH = "data/rides-0/0.txnindex"
FIRST = AbortedTransaction(producer_id=7, first_offset=10, last_offset=14, last_stable_offset=11)
SECOND = AbortedTransaction(producer_id=8, first_offset=11, last_offset=20, last_stable_offset=21)


def new_disk() -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(0))
    disk.make_directory("data/rides-0")
    return disk


def entry(aborted: AbortedTransaction) -> bytes:
    return pack(">hqqqq", 0, *aborted)


def test_an_index_without_entries_has_no_file() -> None:
    disk = new_disk()
    index = TransactionIndex(disk, PATH, is_new=True)
    assert (index.entries, index.file) == ([], None)
    index.keep_below(0)
    assert not disk.exists(PATH)
    assert TransactionIndex(disk, PATH).entries == []


def test_entries_are_appended_as_apache_kafka_writes_them_and_read_again() -> None:
    disk = new_disk()
    index = TransactionIndex(disk, PATH, is_new=True)
    file = index.append(FIRST)
    assert index.append(SECOND) is file
    assert index.file is file
    assert disk.read_bytes(PATH) == entry(FIRST) + entry(SECOND)
    assert index.entries == [FIRST, SECOND]
    assert TransactionIndex(disk, PATH).entries == [FIRST, SECOND]


def test_a_new_index_does_not_read_what_lies_there() -> None:
    disk = new_disk()
    disk.write_whole(PATH, entry(FIRST))
    assert TransactionIndex(disk, PATH, is_new=True).entries == []
    read = TransactionIndex(disk, PATH)
    assert read.entries == [FIRST]
    read.append(SECOND)
    assert disk.read_bytes(PATH) == entry(FIRST) + entry(SECOND)


def test_an_index_that_is_known_to_be_missing_is_not_looked_for() -> None:
    disk = new_disk()
    disk.write_whole(PATH, entry(FIRST))
    index = TransactionIndex(disk, PATH)
    index.note_missing()
    assert index.entries == []


def test_a_torn_entry_is_not_read() -> None:
    disk = new_disk()
    for torn in (1, 33):
        disk.write_whole(PATH, entry(FIRST) + entry(SECOND)[:torn])
        assert TransactionIndex(disk, PATH).entries == [FIRST]


def test_what_a_crash_left_behind_the_synced_entries_is_dropped() -> None:
    for left in (
        FIRST,
        SECOND._replace(first_offset=-1),
        SECOND._replace(first_offset=20),
        SECOND._replace(last_offset=14),
    ):
        disk = new_disk()
        disk.write_whole(PATH, entry(FIRST) + entry(left))
        index = TransactionIndex(disk, PATH)
        index.keep_below(100)
        assert index.entries == [FIRST]
        assert disk.read_bytes(PATH) == entry(FIRST)
    disk.write_whole(PATH, entry(FIRST._replace(first_offset=0, last_offset=1)))
    index = TransactionIndex(disk, PATH)
    index.keep_below(100)
    assert len(index.entries) == 1


def test_entries_are_kept_by_the_offset_of_their_marker() -> None:
    disk = new_disk()
    index = TransactionIndex(disk, PATH, is_new=True)
    index.append(FIRST)
    index.append(SECOND)
    index.keep_below(21)
    assert index.entries == [FIRST, SECOND]
    index.keep_below(20)
    assert index.entries == [FIRST]
    assert disk.read_bytes(PATH) == entry(FIRST)
    index.append(SECOND)
    assert TransactionIndex(disk, PATH).entries == [FIRST, SECOND]
    unread = TransactionIndex(disk, PATH)
    unread.keep_below(14)
    assert (unread.entries, disk.read_bytes(PATH)) == ([], b"")


def test_a_renamed_index_writes_to_its_new_file() -> None:
    disk = new_disk()
    index = TransactionIndex(disk, PATH, is_new=True)
    index.append(FIRST)
    index.release()
    assert index.file is None
    disk.rename(PATH, "data/rides-0/1.txnindex")
    index.moved("data/rides-0/1.txnindex")
    assert (index.file, index.path) == (None, "data/rides-0/1.txnindex")
    index.append(SECOND)
    assert disk.read_bytes("data/rides-0/1.txnindex") == entry(FIRST) + entry(SECOND)
    index.moved("data/rides-0/2.txnindex")
    assert index.file is None
