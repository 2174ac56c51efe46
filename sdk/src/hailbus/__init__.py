"""Typed events over Kafka: publishers, handlers with explicit delivery semantics, outbox and inbox."""

from hailbus._transport import Bus, TopicPartition
from hailbus._transport.kafka import KafkaBus
from hailbus.admin import ClusterAdmin, Lag
from hailbus.catalogue import Catalogue
from hailbus.context import Batch, Context, Delivery
from hailbus.delivery import (
    AtLeastOnce,
    AtMostOnce,
    Backoff,
    DeadLetter,
    Done,
    EffectivelyOnce,
    ExactlyOnce,
    Park,
    ParkKey,
    Retry,
    RetryTopics,
    Skip,
    Verdict,
)
from hailbus.envelope import Envelope, Headers, envelope_of, headers_of, new_id
from hailbus.errors import (
    BrokerUnreachableError,
    ConfigurationError,
    ContractError,
    DeliveryError,
    DeliveryTimeoutError,
    DuplicateEventTypeError,
    HailbusError,
    HeaderError,
    InvalidPayloadError,
    MissingHeaderError,
    MissingKeyError,
    NotInContractError,
    ProducerFencedError,
    RecordTooLargeError,
    TombstoneError,
    TopicMismatchError,
    TopicMissingError,
    UnknownEventError,
    UnsupportedVersionError,
)
from hailbus.event import Event, EventInfo, Topic, event_info, is_event, key_of
from hailbus.inbox import Inbox
from hailbus.outbox import Outbox
from hailbus.parking import ParkingLot
from hailbus.publisher import Publisher, PublisherSettings, Receipt
from hailbus.reader import bus_reader, record_reader
from hailbus.service import Service
from hailbus.subscriber import SubscriberSettings
from hailbus.upcast import upcast

__all__ = [
    "AtLeastOnce",
    "AtMostOnce",
    "Backoff",
    "Batch",
    "BrokerUnreachableError",
    "Bus",
    "Catalogue",
    "ClusterAdmin",
    "ConfigurationError",
    "Context",
    "ContractError",
    "DeadLetter",
    "Delivery",
    "DeliveryError",
    "DeliveryTimeoutError",
    "Done",
    "DuplicateEventTypeError",
    "EffectivelyOnce",
    "Envelope",
    "Event",
    "EventInfo",
    "ExactlyOnce",
    "HailbusError",
    "HeaderError",
    "Headers",
    "Inbox",
    "InvalidPayloadError",
    "KafkaBus",
    "Lag",
    "MissingHeaderError",
    "MissingKeyError",
    "NotInContractError",
    "Outbox",
    "Park",
    "ParkKey",
    "ParkingLot",
    "ProducerFencedError",
    "Publisher",
    "PublisherSettings",
    "Receipt",
    "RecordTooLargeError",
    "Retry",
    "RetryTopics",
    "Service",
    "Skip",
    "SubscriberSettings",
    "TombstoneError",
    "Topic",
    "TopicMismatchError",
    "TopicMissingError",
    "TopicPartition",
    "UnknownEventError",
    "UnsupportedVersionError",
    "Verdict",
    "bus_reader",
    "envelope_of",
    "event_info",
    "headers_of",
    "is_event",
    "key_of",
    "new_id",
    "record_reader",
    "upcast",
]
