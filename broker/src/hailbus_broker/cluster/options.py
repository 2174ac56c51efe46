"""Every setting of broker and topic: Kafka's name, type, default, bounds.

DescribeConfigs, `--set` and all checks read this one table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from hailbus_broker.cluster.replication.read_replica import SELECTORS
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

Value: TypeAlias = bool | int | float | str | tuple[str, ...] | None

MAX_INT: Final = 2**31 - 1
MAX_LONG: Final = 2**63 - 1


class OptionType(IntEnum):
    """Numbers as DescribeConfigs gives them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


_BOUNDS: Final = {
    OptionType.INT: (-(2**31), MAX_INT),
    OptionType.SHORT: (-(2**15), 2**15 - 1),
    OptionType.LONG: (-(2**63), MAX_LONG),
}


@dataclass(frozen=True, slots=True)
class Option:
    """One setting.

    Attributes:
        default: As text, as a user would write it; None is unset.
        choices: For a list, what its elements may be.
        broker_name: Of a topic's option: the broker's option that holds its default.
        is_dynamic: Of a broker's option: whether it can be changed while the broker runs.
        doc: One line.
    """

    name: str
    type: OptionType
    default: str | None
    doc: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    broker_name: str | None = None
    is_dynamic: bool = False

    def parse(self, text: str) -> Value:
        """The value that a text stands for.

        Raises:
            ApiError: INVALID_CONFIG with one sentence that says what would be right.
        """
        text = text.strip()
        match self.type:
            case OptionType.BOOLEAN:
                if text.lower() not in {"true", "false"}:
                    raise self._invalid(text, "it is true or false")
                if self.choices and text.lower() not in self.choices:
                    raise self._invalid(text, f"only {self.choices[0]} is offered")
                return text.lower() == "true"
            case OptionType.STRING:
                if self.choices and text not in self.choices:
                    raise self._invalid(text, f"it is one of {', '.join(self.choices)}")
                return text
            case OptionType.LIST:
                items = tuple(item.strip() for item in text.split(",") if item.strip())
                if self.choices and (unknown := [item for item in items if item not in self.choices]):
                    raise self._invalid(text, f"{unknown[0]!r} is not one of {', '.join(self.choices)}")
                return items
            case OptionType.DOUBLE:
                try:
                    number: float = float(_plain(text))
                except ValueError:
                    raise self._invalid(text, "it is a number") from None
                if math.isnan(number):
                    raise self._invalid(text, "it is a number")
            case _:
                try:
                    number = int(_plain(text))
                except ValueError:
                    raise self._invalid(text, "it is a whole number") from None
                low, high = _BOUNDS[self.type]
                if not low <= number <= high:
                    raise self._invalid(text, f"it is a number from {low} to {high}")
        if self.minimum is not None and number < self.minimum:
            raise self._invalid(text, f"it is at least {self.minimum}")
        if self.maximum is not None and number > self.maximum:
            raise self._invalid(text, f"it is at most {self.maximum}")
        return number

    def _invalid(self, text: str, rule: str) -> ApiError:
        return ApiError(ErrorCode.INVALID_CONFIG, f"Invalid value {text} for configuration {self.name}: {rule}")


def _plain(text: str) -> str:
    """Return the text of a number unless only Python reads it as one: `1_000`, or the digits of other scripts.

    Raises:
        ValueError: It is such a text.
    """
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


_B, _S, _I, _H, _L, _D, _T = (
    OptionType.BOOLEAN,
    OptionType.STRING,
    OptionType.INT,
    OptionType.SHORT,
    OptionType.LONG,
    OptionType.DOUBLE,
    OptionType.LIST,
)
_CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


def _table(*options: Option) -> dict[str, Option]:
    return {option.name: option for option in options}


TOPIC_OPTIONS: Final = _table(
    Option(
        "cleanup.policy",
        _T,
        "delete",
        "What happens to old records.",
        choices=("compact", "delete"),
        broker_name="log.cleanup.policy",
    ),
    Option("compression.gzip.level", _I, "-1", "Level for gzip.", -1, 9, broker_name="compression.gzip.level"),
    Option("compression.lz4.level", _I, "9", "Level for lz4.", 1, 17, broker_name="compression.lz4.level"),
    Option(
        "compression.type",
        _S,
        "producer",
        "Codec in which batches are stored.",
        choices=_CODECS,
        broker_name="compression.type",
    ),
    Option("compression.zstd.level", _I, "3", "Level for zstd.", -131072, 22, broker_name="compression.zstd.level"),
    Option(
        "delete.retention.ms",
        _L,
        "86400000",
        "How long tombstones stay.",
        0,
        broker_name="log.cleaner.delete.retention.ms",
    ),
    Option(
        "file.delete.delay.ms",
        _L,
        "60000",
        "How long a deleted segment's file stays.",
        0,
        broker_name="log.segment.delete.delay.ms",
    ),
    Option(
        "flush.messages",
        _L,
        "1",
        "Records after which the log is synced; 1 is before every acknowledgement.",
        1,
        broker_name="log.flush.interval.messages",
    ),
    Option(
        "flush.ms", _L, str(MAX_LONG), "Time after which the log is synced.", 0, broker_name="log.flush.interval.ms"
    ),
    Option(
        "index.interval.bytes", _I, "4096", "Bytes between index entries.", 0, broker_name="log.index.interval.bytes"
    ),
    Option(
        "max.compaction.lag.ms",
        _L,
        str(MAX_LONG),
        "Longest time a record stays uncompacted.",
        1,
        broker_name="log.cleaner.max.compaction.lag.ms",
    ),
    Option("max.message.bytes", _I, "1048588", "Largest batch.", 0, broker_name="message.max.bytes"),
    Option(
        "message.timestamp.after.max.ms",
        _L,
        "3600000",
        "How far a timestamp may lie ahead of the broker's clock.",
        0,
        broker_name="log.message.timestamp.after.max.ms",
    ),
    Option(
        "message.timestamp.before.max.ms",
        _L,
        str(MAX_LONG),
        "How far a timestamp may lie behind the broker's clock.",
        0,
        broker_name="log.message.timestamp.before.max.ms",
    ),
    Option(
        "message.timestamp.type",
        _S,
        "CreateTime",
        "Which time records carry: the producer's or the broker's.",
        choices=("CreateTime", "LogAppendTime"),
        broker_name="log.message.timestamp.type",
    ),
    Option(
        "min.cleanable.dirty.ratio",
        _D,
        "0.5",
        "Share of a log that is dirty before it is compacted.",
        0,
        1,
        broker_name="log.cleaner.min.cleanable.ratio",
    ),
    Option(
        "min.compaction.lag.ms",
        _L,
        "0",
        "Shortest time a record stays uncompacted.",
        0,
        broker_name="log.cleaner.min.compaction.lag.ms",
    ),
    Option(
        "min.insync.replicas",
        _I,
        "1",
        "Replicas that must have a record under acks=all; of fewer replicas, all.",
        1,
        broker_name="min.insync.replicas",
    ),
    Option("preallocate", _B, "false", "Only false.", choices=("false",), broker_name="log.preallocate"),
    Option(
        "retention.bytes",
        _L,
        "-1",
        "Bytes per partition that are kept; -1 is no limit.",
        -1,
        broker_name="log.retention.bytes",
    ),
    Option(
        "retention.ms",
        _L,
        "604800000",
        "How long records are kept; -1 is for ever.",
        -1,
        broker_name="log.retention.ms",
    ),
    Option("segment.bytes", _I, "1073741824", "Size of a segment.", 1024, broker_name="log.segment.bytes"),
    Option(
        "segment.index.bytes", _I, "10485760", "Size of a segment's index.", 4, broker_name="log.index.size.max.bytes"
    ),
    Option("segment.jitter.ms", _L, "0", "Random time taken off segment.ms.", 0, broker_name="log.roll.jitter.ms"),
    Option("segment.ms", _L, "604800000", "Time after which a segment is closed.", 1, broker_name="log.roll.ms"),
    Option(
        "unclean.leader.election.enable",
        _B,
        "false",
        "Whether a replica out of sync may lead.",
        broker_name="unclean.leader.election.enable",
    ),
)
"""What a topic can override. Flush settings say 1 where Kafka says never: see `log.flush.interval.messages`."""

BROKER_OPTIONS: Final = _table(
    Option("advertised.listeners", _S, None, "The addresses that clients get: NAME://HOST:PORT, comma-separated."),
    Option("auto.create.topics.enable", _B, "true", "Whether asking for a topic creates it."),
    Option(
        "auto.leader.rebalance.enable",
        _B,
        "true",
        "Whether preferred replicas get their leaderships back at intervals.",
    ),
    Option("broker.heartbeat.interval.ms", _I, "2000", "How often a broker sends heartbeats to the controller.", 1),
    Option("broker.id", _I, "1", "The node's number; same as node.id.", 0),
    Option("broker.rack", _S, None, "Where the node stands: replicas of a partition are spread over racks."),
    Option("broker.session.timeout.ms", _I, "9000", "When the controller fences a silent broker.", 1),
    Option("connections.max.idle.ms", _L, "600000", "When an idle connection is closed.", -1),
    Option(
        "controlled.shutdown.enable",
        _B,
        "true",
        "Whether a broker that stops waits until the controller has moved its leaderships.",
    ),
    Option("controller.listener.names", _S, None, "Names of the controllers' listeners, comma-separated."),
    Option(
        "controller.quorum.auto.join.enable",
        _B,
        "false",
        "Whether a controller that does not vote asks to be added to the voters (kraft.version 1).",
    ),
    Option(
        "controller.quorum.bootstrap.servers",
        _S,
        None,
        "Controllers that are asked who leads the quorum: HOST:PORT, comma-separated.",
    ),
    Option(
        "controller.quorum.election.backoff.max.ms", _I, "1000", "Longest wait of a voter after a lost election.", 0
    ),
    Option(
        "controller.quorum.election.timeout.ms", _I, "1000", "How long a voter waits for the votes of an election.", 1
    ),
    Option(
        "controller.quorum.fetch.timeout.ms",
        _I,
        "2000",
        "How long a voter goes without an answer of the leader before it asks for an election.",
        1,
    ),
    Option("controller.quorum.request.timeout.ms", _I, "2000", "How long a node of the quorum waits for an answer.", 1),
    Option(
        "controller.quorum.retry.backoff.ms", _I, "20", "Wait of a node of the quorum after a request that failed.", 0
    ),
    Option("controller.quorum.voters", _S, None, "The controllers that vote: ID@HOST:PORT of each, comma-separated."),
    Option("default.replication.factor", _I, "1", "Replicas of a topic where nobody says otherwise.", 1),
    Option("delete.topic.enable", _B, "true", "Whether topics can be deleted."),
    Option("fetch.max.bytes", _I, "57671680", "Most bytes in one Fetch response.", 1024, is_dynamic=True),
    Option(
        "group.consumer.assignors",
        _T,
        "uniform,range",
        "Assignors of the consumer protocol; the first is the default.",
        choices=("uniform", "range"),
    ),
    Option("group.consumer.heartbeat.interval.ms", _I, "5000", "How often members of the consumer protocol beat.", 1),
    Option("group.consumer.max.heartbeat.interval.ms", _I, "15000", "Upper bound for a group's heartbeat interval.", 1),
    Option("group.consumer.max.session.timeout.ms", _I, "60000", "Upper bound for a group's session timeout.", 1),
    Option("group.consumer.max.size", _I, str(MAX_INT), "Most members of a group of the consumer protocol.", 1),
    Option(
        "group.consumer.migration.policy",
        _S,
        "bidirectional",
        "Which way a group with members may change over between the classic and the consumer protocol.",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    ),
    Option("group.consumer.min.heartbeat.interval.ms", _I, "5000", "Lower bound for a group's heartbeat interval.", 1),
    Option("group.consumer.min.session.timeout.ms", _I, "45000", "Lower bound for a group's session timeout.", 1),
    Option(
        "group.consumer.session.timeout.ms", _I, "45000", "When a silent member of the consumer protocol is out.", 1
    ),
    Option("group.initial.rebalance.delay.ms", _I, "3000", "How long a new group waits for more members.", 0),
    Option("group.max.session.timeout.ms", _I, "1800000", "Longest session timeout that a member may ask for.", 1),
    Option("group.max.size", _I, str(MAX_INT), "Most members of a classic group.", 1),
    Option("group.min.session.timeout.ms", _I, "6000", "Shortest session timeout that a member may ask for.", 1),
    Option(
        "initial.broker.registration.timeout.ms",
        _I,
        "60000",
        "How long a broker that starts tries to register with a controller.",
        1,
    ),
    Option("inter.broker.listener.name", _S, None, "The listener over which brokers ask each other; PLAINTEXT."),
    Option("listeners", _S, "PLAINTEXT://127.0.0.1:9092", "Where to listen: NAME://HOST:PORT, comma-separated."),
    Option("listener.security.protocol.map", _S, None, "Protocol of each listener, NAME:PLAINTEXT, comma-separated."),
    Option(
        "leader.imbalance.check.interval.seconds",
        _L,
        "300",
        "How often the controller gives leaderships back to preferred replicas.",
        1,
    ),
    Option("log.cleaner.backoff.ms", _L, "15000", "Pause between looks for something to compact.", 0),
    Option("log.cleaner.dedupe.buffer.size", _L, "16777216", "Bytes for the map of keys during compaction.", 1000),
    Option("log.cleaner.enable", _B, "true", "Whether topics with cleanup.policy=compact are compacted."),
    Option("log.dirs", _S, "hailbus-data", "Folder of all data."),
    Option("log.retention.check.interval.ms", _L, "300000", "How often old segments are looked for.", 1),
    Option("log.retention.hours", _I, "168", "As log.retention.ms, in hours."),
    Option("log.retention.minutes", _I, None, "As log.retention.ms, in minutes."),
    Option("log.roll.hours", _I, "168", "As log.roll.ms, in hours.", 1),
    Option("max.incremental.fetch.session.cache.slots", _I, "1000", "Fetch sessions that are remembered.", 0),
    Option(
        "metadata.log.max.record.bytes.between.snapshots",
        _L,
        "1048576",
        "Size of the metadata log at which a snapshot takes its place; Kafka has 20971520.",
        1,
    ),
    Option(
        "metadata.log.max.snapshot.interval.ms",
        _L,
        "3600000",
        "After which time committed metadata is in a snapshot, however small its log is; 0 for no such time.",
        0,
    ),
    Option(
        "metadata.max.idle.interval.ms",
        _I,
        "500",
        "How often an idle controller writes a record, by which replicas see that they are not behind; 0 is never.",
        0,
    ),
    Option("metrics.listen", _S, None, "HOST:PORT for Prometheus' GET /metrics; off where it is not given."),
    Option("metrics.max.partitions", _I, "1000", "With more partitions, none has metrics of its own.", 0),
    Option("node.id", _I, "1", "The node's number.", 0),
    Option("num.partitions", _I, "1", "Partitions of a topic where nobody says otherwise.", 1, is_dynamic=True),
    Option("offset.metadata.max.bytes", _I, "4096", "Longest metadata of a committed offset.", 0),
    Option("offsets.retention.check.interval.ms", _L, "600000", "How often expired offsets are looked for.", 1),
    Option("offsets.retention.minutes", _I, "10080", "How long the offsets of a group without members stay.", 1),
    Option(
        "offsets.topic.num.partitions", _I, "4", "Partitions of __consumer_offsets; Kafka has 50, for many nodes.", 1
    ),
    Option("offsets.topic.replication.factor", _H, "3", "Replicas of __consumer_offsets; 1 without process.roles.", 1),
    Option("offsets.topic.segment.bytes", _I, "104857600", "Size of a segment of __consumer_offsets.", 1024),
    Option(
        "process.roles",
        _T,
        "",
        "What the node is in a cluster: broker, controller or both. Without roles it is a cluster by itself.",
        choices=("broker", "controller"),
    ),
    Option("producer.id.expiration.ms", _I, "86400000", "When a silent producer is forgotten.", 1, is_dynamic=True),
    Option("queued.max.request.bytes", _L, "268435456", "Bytes of requests in work, of all connections.", 1),
    Option("socket.request.max.bytes", _I, "104857600", "Largest request.", 1),
    Option("transaction.max.timeout.ms", _I, "900000", "Longest timeout that a producer may ask for.", 1),
    Option(
        "transaction.state.log.min.isr",
        _I,
        "2",
        "min.insync.replicas of __transaction_state; 1 without process.roles.",
        1,
    ),
    Option(
        "transaction.state.log.num.partitions",
        _I,
        "4",
        "Partitions of __transaction_state; Kafka has 50, for many nodes.",
        1,
    ),
    Option(
        "transaction.state.log.replication.factor",
        _H,
        "3",
        "Replicas of __transaction_state; 1 without process.roles.",
        1,
    ),
    Option("transactional.id.expiration.ms", _I, "604800000", "When an unused transactional id is forgotten.", 1),
    Option(
        "unclean.leader.election.interval.ms",
        _L,
        "300000",
        "How often leaders are looked for where unclean.leader.election.enable is true.",
        1,
    ),
    # Defaults of topics: the names differ from the topics' own.
    Option("compression.gzip.level", _I, "-1", "Default of compression.gzip.level.", -1, 9, is_dynamic=True),
    Option("compression.lz4.level", _I, "9", "Default of compression.lz4.level.", 1, 17, is_dynamic=True),
    Option("compression.type", _S, "producer", "Default of compression.type.", choices=_CODECS, is_dynamic=True),
    Option("compression.zstd.level", _I, "3", "Default of compression.zstd.level.", -131072, 22, is_dynamic=True),
    Option("log.cleaner.delete.retention.ms", _L, "86400000", "Default of delete.retention.ms.", 0, is_dynamic=True),
    Option(
        "log.cleaner.max.compaction.lag.ms", _L, str(MAX_LONG), "Default of max.compaction.lag.ms.", 1, is_dynamic=True
    ),
    Option(
        "log.cleaner.min.cleanable.ratio", _D, "0.5", "Default of min.cleanable.dirty.ratio.", 0, 1, is_dynamic=True
    ),
    Option("log.cleaner.min.compaction.lag.ms", _L, "0", "Default of min.compaction.lag.ms.", 0, is_dynamic=True),
    Option(
        "log.cleanup.policy", _T, "delete", "Default of cleanup.policy.", choices=("compact", "delete"), is_dynamic=True
    ),
    Option(
        "log.flush.interval.messages",
        _L,
        "1",
        "Records after which a log is synced. 1: before every acknowledgement. "
        "More: acknowledged records may be lost when power fails.",
        1,
        is_dynamic=True,
    ),
    Option(
        "log.flush.interval.ms",
        _L,
        str(MAX_LONG),
        "Time after which a log is synced, where log.flush.interval.messages is not 1.",
        0,
        is_dynamic=True,
    ),
    Option(
        "log.flush.offset.checkpoint.interval.ms",
        _I,
        "60000",
        "How often the broker writes down up to where logs are synced: a start after a crash reads them from there.",
        1,
    ),
    Option("log.index.interval.bytes", _I, "4096", "Default of index.interval.bytes.", 0, is_dynamic=True),
    Option("log.index.size.max.bytes", _I, "10485760", "Default of segment.index.bytes.", 4, is_dynamic=True),
    Option(
        "log.message.timestamp.after.max.ms",
        _L,
        "3600000",
        "Default of message.timestamp.after.max.ms.",
        0,
        is_dynamic=True,
    ),
    Option(
        "log.message.timestamp.before.max.ms",
        _L,
        str(MAX_LONG),
        "Default of message.timestamp.before.max.ms.",
        0,
        is_dynamic=True,
    ),
    Option(
        "log.message.timestamp.type",
        _S,
        "CreateTime",
        "Default of message.timestamp.type.",
        choices=("CreateTime", "LogAppendTime"),
        is_dynamic=True,
    ),
    Option("log.preallocate", _B, "false", "Default of preallocate: only false.", choices=("false",)),
    Option("log.retention.bytes", _L, "-1", "Default of retention.bytes.", -1, is_dynamic=True),
    Option("log.retention.ms", _L, None, "Default of retention.ms.", -1, is_dynamic=True),
    Option("log.roll.jitter.ms", _L, "0", "Default of segment.jitter.ms.", 0, is_dynamic=True),
    Option("log.roll.ms", _L, None, "Default of segment.ms.", 1, is_dynamic=True),
    Option("log.segment.bytes", _I, "1073741824", "Default of segment.bytes.", 1024, is_dynamic=True),
    Option("log.segment.delete.delay.ms", _L, "60000", "Default of file.delete.delay.ms.", 0, is_dynamic=True),
    Option("message.max.bytes", _I, "1048588", "Default of max.message.bytes.", 0, is_dynamic=True),
    Option("min.insync.replicas", _I, "1", "Default of min.insync.replicas.", 1, is_dynamic=True),
    Option(
        "num.replica.fetchers",
        _I,
        "1",
        "Connections to each broker that replicas are fetched over: only 1.",
        1,
        1,
    ),
    Option("replica.fetch.backoff.ms", _I, "1000", "Pause after an error of a fetch from a leader.", 0),
    Option("replica.fetch.max.bytes", _I, "1048576", "Bytes that a follower fetches of one partition.", 0),
    Option("replica.fetch.min.bytes", _I, "1", "Bytes that a leader waits for before it answers a follower.", 0),
    Option("replica.fetch.response.max.bytes", _I, "10485760", "Bytes that a follower fetches at once.", 0),
    Option("replica.fetch.wait.max.ms", _I, "500", "How long a leader waits for bytes before it answers.", 0),
    Option(
        "replica.selector.class",
        _S,
        None,
        "Whether a consumer with client.rack is sent to a follower of its rack: RackAwareReplicaSelector.",
        choices=SELECTORS,
    ),
    Option("replica.lag.time.max.ms", _L, "30000", "How long a follower may be behind and stay in the ISR.", 1),
    Option(
        "unclean.leader.election.enable", _B, "false", "Default of unclean.leader.election.enable.", is_dynamic=True
    ),
)

GROUP_OPTIONS: Final = _table(
    Option(
        "consumer.heartbeat.interval.ms",
        _I,
        "5000",
        "How often members beat.",
        1,
        broker_name="group.consumer.heartbeat.interval.ms",
    ),
    Option(
        "consumer.session.timeout.ms",
        _I,
        "45000",
        "When a silent member is out.",
        1,
        broker_name="group.consumer.session.timeout.ms",
    ),
)


_OF_CLUSTERS: Final = (
    "offsets.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
)


class BrokerConfig:
    """The broker's settings: what was given at the start, under it the defaults, over it what was changed since.

    `config["num.partitions"]` is the parsed value.

    Args:
        given: Text by Kafka name.

    Raises:
        ApiError: INVALID_CONFIG: an unknown name or a value that does not fit.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        for name in given:
            if name not in BROKER_OPTIONS:
                raise ApiError(ErrorCode.INVALID_CONFIG, f"there is no option {name!r}{_closest(name)}")
        self.given: Final = dict(given)
        self.dynamic: dict[str, str] = {}
        self._values: dict[str, Value] = {}
        self.refresh({})

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def refresh(self, dynamic: Mapping[str, str]) -> None:
        """Take over the settings that were changed while running."""
        self.dynamic = dict(dynamic)
        texts = {name: option.default for name, option in BROKER_OPTIONS.items()} | self.given | self.dynamic
        self._values = {
            name: None if text is None else BROKER_OPTIONS[name].parse(text) for name, text in texts.items()
        }
        if "process.roles" not in self.given:  # no other broker could have a replica
            self._values |= dict.fromkeys((name for name in _OF_CLUSTERS if name not in self.given), 1)
        # The finer unit wins, as in Kafka.
        if self._values["log.retention.ms"] is None:
            minutes, hours = self._values["log.retention.minutes"], self._values["log.retention.hours"]
            assert isinstance(hours, int)
            in_ms = hours * 3_600_000 if minutes is None else int(minutes) * 60_000  # type: ignore[arg-type]  # INT
            self._values["log.retention.ms"] = -1 if in_ms < 0 else in_ms
        if self._values["log.roll.ms"] is None:
            hours = self._values["log.roll.hours"]
            assert isinstance(hours, int)
            self._values["log.roll.ms"] = hours * 3_600_000

    def text(self, name: str) -> str | None:
        """The value as a user would write it."""
        value = self._values[name]
        return None if value is None else to_text(value)


def to_text(value: Value) -> str:
    """A parsed value as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _closest(name: str) -> str:
    from difflib import get_close_matches

    found = get_close_matches(name, BROKER_OPTIONS, n=1)
    return f"; did you mean {found[0]!r}?" if found else "; `hailbus-broker describe --options` lists them"


def check_topic_configs(configs: Mapping[str, str]) -> None:
    """Refuse unknown names and values that do not fit.

    Raises:
        ApiError: INVALID_CONFIG.
    """
    for name, text in configs.items():
        option = TOPIC_OPTIONS.get(name)
        if option is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")
        option.parse(text)
    policy = configs.get("cleanup.policy")
    if policy is not None and not TOPIC_OPTIONS["cleanup.policy"].parse(policy):
        raise ApiError(ErrorCode.INVALID_CONFIG, "cleanup.policy must not be empty: it is delete, compact or both")
    low, high = configs.get("min.compaction.lag.ms"), configs.get("max.compaction.lag.ms")
    if low is not None and high is not None and int(low) > int(high):
        raise ApiError(ErrorCode.INVALID_CONFIG, "min.compaction.lag.ms must not be above max.compaction.lag.ms")


def topic_value(overrides: Mapping[str, str], broker: BrokerConfig, name: str) -> Any:
    """What holds for a topic: its own value, or else the broker's."""
    option = TOPIC_OPTIONS[name]
    if name in overrides:
        return option.parse(overrides[name])
    assert option.broker_name is not None
    return broker[option.broker_name]
