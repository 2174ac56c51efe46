# Each public name once; it is imported from its module when it is first used. Read by type checkers and by __init__.py.
from hailbus._transport import Bus as Bus, TopicPartition as TopicPartition
from hailbus._transport.kafka import KafkaBus as KafkaBus
from hailbus.admin import ClusterAdmin as ClusterAdmin, Lag as Lag
from hailbus.catalogue import Catalogue as Catalogue
from hailbus.context import Batch as Batch, Claim as Claim, Context as Context, Delivery as Delivery
from hailbus.delivery import (
    AtLeastOnce as AtLeastOnce,
    AtMostOnce as AtMostOnce,
    Backoff as Backoff,
    DeadLetter as DeadLetter,
    Done as Done,
    EffectivelyOnce as EffectivelyOnce,
    ExactlyOnce as ExactlyOnce,
    ParkKey as ParkKey,
    Reject as Reject,
    Retry as Retry,
    RetryTopics as RetryTopics,
    Skip as Skip,
    Verdict as Verdict,
)
from hailbus.envelope import (
    Envelope as Envelope,
    Headers as Headers,
    envelope_of as envelope_of,
    headers_of as headers_of,
    new_id as new_id,
)
from hailbus.errors import (
    BrokerUnreachableError as BrokerUnreachableError,
    ClockNotSetError as ClockNotSetError,
    ConfigurationError as ConfigurationError,
    ConnectionRejectedError as ConnectionRejectedError,
    ContractError as ContractError,
    DeliveryError as DeliveryError,
    DeliveryTimeoutError as DeliveryTimeoutError,
    DuplicateEventTypeError as DuplicateEventTypeError,
    EventIdError as EventIdError,
    HailbusError as HailbusError,
    HeaderError as HeaderError,
    IncompatibleSchemaError as IncompatibleSchemaError,
    InvalidPayloadError as InvalidPayloadError,
    KeyReusedError as KeyReusedError,
    MissingExtraError as MissingExtraError,
    MissingHeaderError as MissingHeaderError,
    MissingKeyError as MissingKeyError,
    NotInContractError as NotInContractError,
    ProducerFencedError as ProducerFencedError,
    RecordTooLargeError as RecordTooLargeError,
    RegistryRefusedError as RegistryRefusedError,
    RegistryUnreachableError as RegistryUnreachableError,
    SequenceNumberError as SequenceNumberError,
    ServiceFailedError as ServiceFailedError,
    TombstoneError as TombstoneError,
    TopicMismatchError as TopicMismatchError,
    TopicMissingError as TopicMissingError,
    UnknownEventError as UnknownEventError,
    UnknownSchemaError as UnknownSchemaError,
    UnsupportedVersionError as UnsupportedVersionError,
)
from hailbus.event import (
    ContentMode as ContentMode,
    Event as Event,
    EventInfo as EventInfo,
    FromField as FromField,
    FromHeader as FromHeader,
    Topic as Topic,
    event_info as event_info,
    is_event as is_event,
    key_of as key_of,
)
from hailbus.inbox import Inbox as Inbox
from hailbus.outbox import Outbox as Outbox, OutboxEntry as OutboxEntry
from hailbus.parking import ParkingLot as ParkingLot
from hailbus.publisher import Publisher as Publisher, PublisherSettings as PublisherSettings, Receipt as Receipt
from hailbus.reader import bus_reader as bus_reader, record_reader as record_reader
from hailbus.router import Router as Router
from hailbus.service import Service as Service
from hailbus.subscription import SubscriberSettings as SubscriberSettings
from hailbus.upcasting import upcast as upcast
