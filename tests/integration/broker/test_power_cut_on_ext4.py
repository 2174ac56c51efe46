"""A real power cut: ext4 stops while clients write, without flushing its journal; what was acknowledged is there after.

The file system lies on a loop device and is shut down by its own ioctl, which drops whatever only memory holds. Needs
root and loop devices.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import subprocess
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.integration.broker.process import SERVE, broker_process
from tests.integration.broker.test_damaged_directory import read
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.needs("loop devices")

EXT4_IOC_SHUTDOWN = 0x8004587D  # _IOR('X', 125, __u32)
NO_LOG_FLUSH = 2
ENOUGH = 300


@dataclass
class Told:
    """What clients were told."""

    records: dict[int, bytes] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    commits: list[int] = field(default_factory=list)

    def until_now(self) -> Told:
        """Return a copy, so that later answers do not change it."""
        return Told(self.records.copy(), self.topics.copy(), self.commits.copy())


@contextlib.contextmanager
def ext4(directory: Path) -> Iterator[Path]:
    """A small ext4 of its own, mounted; unmounted at the end, whatever has become of it."""
    image, mounted = directory / "image", directory / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * 1024 * 1024)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    device = subprocess.run(
        ["losetup", "--find", "--show", str(image)], check=True, capture_output=True, text=True
    ).stdout.strip()
    try:
        mount(device, mounted)
        try:
            yield mounted
        finally:
            subprocess.run(["umount", str(mounted)], check=True)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def mount(device: str, mounted: Path) -> None:
    subprocess.run(["mount", "-t", "ext4", device, str(mounted)], check=True)


def cut_power(mounted: Path) -> None:
    descriptor = os.open(mounted, os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    finally:
        os.close(descriptor)


def mount_again(mounted: Path) -> None:
    """Unmount and mount: the journal is replayed, as at the start of the machine."""
    device = subprocess.run(
        ["findmnt", "--noheadings", "--output", "SOURCE", str(mounted)], check=True, capture_output=True, text=True
    ).stdout.strip()
    subprocess.run(["umount", str(mounted)], check=True)
    mount(device, mounted)


class Writers:
    """Clients that write until nothing is acknowledged any more."""

    def __init__(self, bootstrap: str) -> None:
        self.told = Told()
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("rides", 1, 1)])["rides"].result(30)
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._create, self._commit)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "acks": "all", "linger.ms": 0, "message.timeout.ms": 2000}
        )

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.told.records[message.offset()] = message.value()

        number = 0
        while not self._stop.is_set():
            producer.produce("rides", b"record %06d " % number * 20, on_delivery=delivered)
            number += 1
            producer.poll(0.002)
        producer.flush(10)

    def _create(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        for number in range(1000):
            if self._stop.is_set():
                return
            name = f"topic-{number}"
            with contextlib.suppress(KafkaException):
                admin.create_topics([NewTopic(name, 1, 1)], request_timeout=2)[name].result(5)
                self.told.topics.add(name)

    def _commit(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        number = 0
        while not self._stop.is_set():
            number += 1
            wanted = ConsumerGroupTopicPartitions("readers", [TopicPartition("rides", 0, number)])
            with contextlib.suppress(KafkaException):
                admin.alter_consumer_group_offsets([wanted], request_timeout=2)["readers"].result(5)
                self.told.commits.append(number)


def run_until_the_cut(mounted: Path, *, source: str) -> Told:
    with broker_process(mounted / "data", source=source) as broker:
        writers = Writers(broker.bootstrap)
        try:
            wait_for(
                "acknowledgements of all kinds",
                lambda: len(writers.told.records) > ENOUGH and bool(writers.told.topics and writers.told.commits),
            )
            # Only what was told before the cut counts. ext4 aborts its journal while programs run on, and an fdatasync
            # whose transaction has just been aborted returns 0; no program sees that when a machine loses its power.
            told = writers.told.until_now()
            cut_power(mounted)
        finally:
            # its log is on the file system that is gone, and so is whatever it still writes
            broker.kill()
            writers.stop()
    mount_again(mounted)
    return told


def test_what_was_acknowledged_survives_the_loss_of_everything_that_was_not_on_the_disk(tmp_path: Path) -> None:
    with ext4(tmp_path) as mounted:
        told = run_until_the_cut(mounted, source=SERVE)
        print(f"{len(told.records)} records, {len(told.topics)} topics, {len(told.commits)} commits")
        with broker_process(mounted / "data") as broker:
            found = read(broker.bootstrap, "rides")
            assert {offset: found.get(offset) for offset in told.records} == told.records
            topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
            assert told.topics <= set(topics)
            consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "readers"})
            (committed,) = consumer.committed([TopicPartition("rides", 0)], timeout=30)
            consumer.close()
            assert committed.offset >= told.commits[-1]
            assert "log_damaged" not in broker.log()


NO_SYNC_OF_RECORDS = """
from hailbus_broker.runtime.disk import RealFile
real = RealFile.sync
RealFile.sync = lambda self: None if "rides-0" in self.path else real(self)
"""


def test_the_same_cut_takes_records_from_a_broker_that_does_not_sync_them(tmp_path: Path) -> None:
    with ext4(tmp_path) as mounted:
        told = run_until_the_cut(mounted, source=NO_SYNC_OF_RECORDS + SERVE)
        with broker_process(mounted / "data") as broker:
            found = read(broker.bootstrap, "rides")
            assert {offset: found.get(offset) for offset in told.records} != told.records
