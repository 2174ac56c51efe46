"""Typed events over Kafka: publishers, handlers with explicit delivery semantics, outbox and inbox."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        ClockNotSetError,
        ConfigurationError,
        ContractError,
        DeliveryError,
        DeliveryTimeoutError,
        DuplicateEventTypeError,
        EventIdError,
        HailbusError,
        HeaderError,
        IncompatibleSchemaError,
        InvalidPayloadError,
        KeyReusedError,
        MissingHeaderError,
        MissingKeyError,
        NotInContractError,
        ProducerFencedError,
        RecordTooLargeError,
        RegistryRefusedError,
        RegistryUnreachableError,
        TombstoneError,
        TopicMismatchError,
        TopicMissingError,
        UnknownEventError,
        UnknownSchemaError,
        UnsupportedVersionError,
    )
    from hailbus.event import ContentMode, Event, EventInfo, Topic, event_info, is_event, key_of
    from hailbus.inbox import Inbox
    from hailbus.outbox import Outbox, OutboxEntry
    from hailbus.parking import ParkingLot
    from hailbus.publisher import Publisher, PublisherSettings, Receipt
    from hailbus.reader import bus_reader, record_reader
    from hailbus.service import Service
    from hailbus.subscription import SubscriberSettings
    from hailbus.upcasting import upcast

__all__ = [
    "AtLeastOnce",
    "AtMostOnce",
    "Backoff",
    "Batch",
    "BrokerUnreachableError",
    "Bus",
    "Catalogue",
    "ClockNotSetError",
    "ClusterAdmin",
    "ConfigurationError",
    "ContentMode",
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
    "EventIdError",
    "EventInfo",
    "ExactlyOnce",
    "HailbusError",
    "HeaderError",
    "Headers",
    "Inbox",
    "IncompatibleSchemaError",
    "InvalidPayloadError",
    "KafkaBus",
    "KeyReusedError",
    "Lag",
    "MissingHeaderError",
    "MissingKeyError",
    "NotInContractError",
    "Outbox",
    "OutboxEntry",
    "Park",
    "ParkKey",
    "ParkingLot",
    "ProducerFencedError",
    "Publisher",
    "PublisherSettings",
    "Receipt",
    "RecordTooLargeError",
    "RegistryRefusedError",
    "RegistryUnreachableError",
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
    "UnknownSchemaError",
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

# Imported when it is first used: SQLAlchemy and aiokafka cost much, and who only declares events needs neither.
_MODULES = {
    "Bus": "hailbus._transport",
    "TopicPartition": "hailbus._transport",
    "KafkaBus": "hailbus._transport.kafka",
    "ClusterAdmin": "hailbus.admin",
    "Lag": "hailbus.admin",
    "Catalogue": "hailbus.catalogue",
    "Batch": "hailbus.context",
    "Context": "hailbus.context",
    "Delivery": "hailbus.context",
    "AtLeastOnce": "hailbus.delivery",
    "AtMostOnce": "hailbus.delivery",
    "Backoff": "hailbus.delivery",
    "DeadLetter": "hailbus.delivery",
    "Done": "hailbus.delivery",
    "EffectivelyOnce": "hailbus.delivery",
    "ExactlyOnce": "hailbus.delivery",
    "Park": "hailbus.delivery",
    "ParkKey": "hailbus.delivery",
    "Retry": "hailbus.delivery",
    "RetryTopics": "hailbus.delivery",
    "Skip": "hailbus.delivery",
    "Verdict": "hailbus.delivery",
    "Envelope": "hailbus.envelope",
    "Headers": "hailbus.envelope",
    "envelope_of": "hailbus.envelope",
    "headers_of": "hailbus.envelope",
    "new_id": "hailbus.envelope",
    "BrokerUnreachableError": "hailbus.errors",
    "ClockNotSetError": "hailbus.errors",
    "ConfigurationError": "hailbus.errors",
    "ContractError": "hailbus.errors",
    "DeliveryError": "hailbus.errors",
    "DeliveryTimeoutError": "hailbus.errors",
    "DuplicateEventTypeError": "hailbus.errors",
    "EventIdError": "hailbus.errors",
    "HailbusError": "hailbus.errors",
    "HeaderError": "hailbus.errors",
    "IncompatibleSchemaError": "hailbus.errors",
    "InvalidPayloadError": "hailbus.errors",
    "KeyReusedError": "hailbus.errors",
    "MissingHeaderError": "hailbus.errors",
    "MissingKeyError": "hailbus.errors",
    "NotInContractError": "hailbus.errors",
    "ProducerFencedError": "hailbus.errors",
    "RecordTooLargeError": "hailbus.errors",
    "RegistryRefusedError": "hailbus.errors",
    "RegistryUnreachableError": "hailbus.errors",
    "TombstoneError": "hailbus.errors",
    "TopicMismatchError": "hailbus.errors",
    "TopicMissingError": "hailbus.errors",
    "UnknownEventError": "hailbus.errors",
    "UnknownSchemaError": "hailbus.errors",
    "UnsupportedVersionError": "hailbus.errors",
    "Event": "hailbus.event",
    "EventInfo": "hailbus.event",
    "ContentMode": "hailbus.event",
    "Topic": "hailbus.event",
    "event_info": "hailbus.event",
    "is_event": "hailbus.event",
    "key_of": "hailbus.event",
    "Inbox": "hailbus.inbox",
    "Outbox": "hailbus.outbox",
    "OutboxEntry": "hailbus.outbox",
    "ParkingLot": "hailbus.parking",
    "Publisher": "hailbus.publisher",
    "PublisherSettings": "hailbus.publisher",
    "Receipt": "hailbus.publisher",
    "bus_reader": "hailbus.reader",
    "record_reader": "hailbus.reader",
    "Service": "hailbus.service",
    "SubscriberSettings": "hailbus.subscription",
    "upcast": "hailbus.upcasting",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(module), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
