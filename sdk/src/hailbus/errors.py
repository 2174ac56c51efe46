"""Every error that hailbus raises. Errors carry attributes; nobody needs to parse their text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BrokerUnreachableError",
    "ClockNotSetError",
    "ConfigurationError",
    "ContractError",
    "DeliveryError",
    "DeliveryTimeoutError",
    "DuplicateEventTypeError",
    "EventIdError",
    "HailbusError",
    "HandlerDeadlineError",
    "HeaderError",
    "IncompatibleSchemaError",
    "InvalidPayloadError",
    "KeyReusedError",
    "MissingExtraError",
    "MissingHeaderError",
    "MissingKeyError",
    "NotInContractError",
    "ProducerFencedError",
    "RecordTooLargeError",
    "RegistryRefusedError",
    "RegistryUnreachableError",
    "SequenceNumberError",
    "TombstoneError",
    "TopicMismatchError",
    "TopicMissingError",
    "UnknownEventError",
    "UnknownSchemaError",
    "UnsupportedVersionError",
    "VerdictError",
]


class HailbusError(Exception):
    """Base of everything that hailbus raises on purpose."""


# ------------------------------------------------------------------------------------------------ configuration


class ConfigurationError(HailbusError):
    """The program is put together wrongly: an event class, a subscription or a setting. Raised at import or start."""


class MissingExtraError(ConfigurationError, ImportError):
    """A package is not installed that an extra of hailbus brings."""

    def __init__(self, *, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(f"{package} is not installed; install it: pip install 'hailbus[{extra}]'")


class DuplicateEventTypeError(ConfigurationError):
    """Two event classes claim the same type and version."""

    def __init__(self, *, type: str, version: int, first: type, second: type) -> None:
        self.type = type
        self.version = version
        self.first = first
        self.second = second
        super().__init__(
            f"{first.__module__}.{first.__qualname__} and {second.__module__}.{second.__qualname__} both claim "
            f"{type!r} version {version}; give one of them another type or version"
        )


class TopicMissingError(ConfigurationError):
    """The cluster does not have a topic that the service declares."""

    def __init__(self, *, topic: str) -> None:
        self.topic = topic
        super().__init__(f"topic {topic!r} does not exist on the cluster; provision it or start with provision=True")


class TopicMismatchError(ConfigurationError):
    """A topic exists, but not as it is declared. Topics are never shrunk or rewritten by hailbus."""

    def __init__(self, *, topic: str, differences: Sequence[str]) -> None:
        self.topic = topic
        self.differences = tuple(differences)
        super().__init__(
            f"topic {topic!r} differs from its declaration ({'; '.join(differences)}); "
            "change the declaration, or the topic with `hailbus topics --alter`"
        )


class BrokerUnreachableError(ConfigurationError):
    """No broker answered at the bootstrap address within the time allowed."""

    def __init__(self, *, bootstrap: str, waited_s: float, reason: str = "", advice: str = "") -> None:
        self.bootstrap = bootstrap
        self.waited_s = waited_s
        self.reason = reason
        super().__init__(
            f"no Kafka broker answers at {bootstrap} (waited {waited_s:.0f} s{': ' + reason if reason else ''}); "
            f"{advice or 'start the broker or correct the bootstrap address'}"
        )


class ConnectionRejectedError(BrokerUnreachableError):
    """A broker answers, but its listener and this client do not agree on TLS or SASL."""

    def __init__(self, *, bootstrap: str, waited_s: float, reason: str, advice: str) -> None:
        super().__init__(bootstrap=bootstrap, waited_s=waited_s, reason=reason, advice=advice)
        self.args = (f"the connection to the broker at {bootstrap} was rejected: {reason}; {advice}",)


# ------------------------------------------------------------------------------------------------ contract


class ContractError(HailbusError):
    """A record or an event does not keep the contract. `topic`, `partition` and `offset` are None when not known."""

    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


class MissingHeaderError(ContractError):
    """A record lacks a header that every event carries."""

    def __init__(self, *, header: str, topic: str | None = None) -> None:
        self.header = header
        self.topic = topic
        super().__init__(f"a record on topic {topic!r} has no {header!r} header, so it is not a CloudEvent")


class HeaderError(ContractError):
    """A CloudEvents header holds bytes that are not what the specification asks for."""

    def __init__(self, *, header: str, value: bytes, reason: str, topic: str | None = None) -> None:
        self.header = header
        self.value = value
        self.reason = reason
        self.topic = topic
        super().__init__(f"header {header!r} on topic {topic!r} is {value[:60]!r}: {reason}")


class EventIdError(ContractError):
    """An event's id or source cannot be kept in an inbox: too long for its columns, or with control characters."""

    def __init__(self, *, id: str, source: str, topic: str, partition: int, offset: int) -> None:
        self.id = id
        self.source = source
        self.topic = topic
        self.partition = partition
        self.offset = offset
        super().__init__(
            f"the event at {topic}-{partition}@{offset} has id {id[:60]!r} ({len(id)} characters) and source "
            f"{source[:60]!r} ({len(source)}): ce_id and ce_source must have 1 to 255 printable characters"
        )


class SequenceNumberError(ContractError):
    """An event of a numbered sequence has no key, or a number that cannot be kept."""

    def __init__(self, *, field: str, number: int, topic: str, partition: int, offset: int, has_key: bool) -> None:
        self.field = field
        self.number = number
        self.topic = topic
        self.partition = partition
        self.offset = offset
        problem = (
            f"{field}={number}, which is not between -2^63 and 2^63 - 1"
            if has_key
            else "no key, so it has no place in a sequence"
        )
        super().__init__(f"the event at {topic}-{partition}@{offset} has {problem}")


class UnknownEventError(ContractError):
    """The record's type is in no catalogue of this process."""

    def __init__(self, *, type: str, version: int | None = None, topic: str | None = None) -> None:
        self.type = type
        self.version = version
        self.topic = topic
        super().__init__(f"event type {type!r} on topic {topic!r} is not in the catalogue; add its class or skip it")


class UnsupportedVersionError(ContractError):
    """The type is known, but neither this version nor a way up from it."""

    def __init__(self, *, type: str, version: int, known: Sequence[int], topic: str | None = None) -> None:
        self.type = type
        self.version = version
        self.known = tuple(sorted(known))
        self.topic = topic
        super().__init__(
            f"event type {type!r} has version {version} on topic {topic!r}, known are {list(self.known)}; "
            "upgrade the event package or add an upcaster"
        )


class InvalidPayloadError(ContractError):
    """The value is not what the event class of its type and version says."""

    def __init__(self, *, type: str, version: int, reason: str, topic: str | None = None) -> None:
        self.type = type
        self.version = version
        self.reason = reason
        self.topic = topic
        super().__init__(f"the value of {type!r} version {version} on topic {topic!r} is invalid: {reason}")


class TombstoneError(ContractError):
    """The record has no value: it deletes its key on a compacted topic, there is no event to read."""

    def __init__(self, *, type: str | None, topic: str | None, key: bytes | None) -> None:
        self.type = type
        self.topic = topic
        self.key = key
        super().__init__(f"the record with key {key!r} on topic {topic!r} is a tombstone, not an event")


class MissingKeyError(ContractError):
    """An event of a keyed class has no usable key value."""

    def __init__(self, *, type: str, field: str) -> None:
        self.type = type
        self.field = field
        super().__init__(f"event {type!r} is keyed by field {field!r}, which is empty; give it a value")


class NotInContractError(ContractError):
    """A publisher was given an event that it did not declare."""

    def __init__(self, *, event: type, allowed: Sequence[type]) -> None:
        self.event = event
        self.allowed = tuple(allowed)
        names = ", ".join(sorted(cls.__name__ for cls in allowed))
        super().__init__(f"this publisher may publish {names}, not {event.__name__}; add it to publishes(...)")


class UnknownSchemaError(ContractError):
    """A record carries a schema id that says nothing to this process."""

    def __init__(self, *, schema: str, reason: str, topic: str | None = None) -> None:
        self.schema = schema
        self.reason = reason
        self.topic = topic
        super().__init__(
            f"a record on topic {topic!r} carries schema {schema}: {reason}; "
            "register the schema, or point registry= to the registry that its producer uses"
        )


# ------------------------------------------------------------------------------------------------ schema registry


class RegistryUnreachableError(HailbusError):
    """No schema registry answered, and the cache does not have what was asked for."""

    def __init__(self, *, urls: Sequence[str], reason: str) -> None:
        self.urls = tuple(urls)
        self.reason = reason
        super().__init__(
            f"no schema registry answers at {' or '.join(self.urls)} ({reason}), and it is not in the cache; "
            "start it with `hailbus registry serve`, or correct the URL"
        )


class RegistryRefusedError(HailbusError):
    """The schema registry understood a request and refused it.

    Attributes:
        code: The registry's error code, for example 40403.
        url: What was asked for.
        text: The registry's own words.
    """

    def __init__(self, *, code: int, url: str, text: str) -> None:
        self.code = code
        self.url = url
        self.text = text
        super().__init__(f"the schema registry refused {url} with {code}: {text}")


class IncompatibleSchemaError(RegistryRefusedError):
    """A schema breaks the compatibility level of its subject."""

    def __init__(self, *, subject: str, code: int, url: str, text: str) -> None:
        super().__init__(code=code, url=url, text=text)
        self.subject = subject


# ------------------------------------------------------------------------------------------------ delivery


class DeliveryError(HailbusError):
    """A record could not be written.

    Attributes:
        topic: Topic that it was meant for.
        partition: Partition that it was meant for, or None when it was not chosen yet.
        retriable: Whether the same call may succeed later.
    """

    def __init__(self, message: str, *, topic: str, partition: int | None = None, retriable: bool = False) -> None:
        self.topic = topic
        self.partition = partition
        self.retriable = retriable
        super().__init__(message)


class DeliveryTimeoutError(DeliveryError):
    """No acknowledgement in time. The outcome is unknown: the record may be in the log."""

    def __init__(self, *, topic: str, partition: int | None = None, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        super().__init__(
            f"no acknowledgement for a record on topic {topic!r} within {timeout_s:g} s; it may have been written, "
            "so publish it again with the same id",
            topic=topic,
            partition=partition,
            retriable=True,
        )


class RecordTooLargeError(DeliveryError):
    """The record is larger than the producer or the topic allows."""

    def __init__(self, *, topic: str, size_bytes: int, limit_bytes: int | None = None) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        limit = f", the limit is {limit_bytes}" if limit_bytes is not None else ", more than the topic allows"
        super().__init__(
            f"a record of {size_bytes} bytes for topic {topic!r} is too large{limit}; "
            "store the bulk elsewhere and publish a reference",
            topic=topic,
        )


class ProducerFencedError(DeliveryError):
    """Another producer with the same transactional id has taken over."""

    def __init__(self, *, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        super().__init__(
            f"another producer took over the transactional id {transactional_id!r}; stop this one", topic=""
        )


# ------------------------------------------------------------------------------------------------ handlers


class VerdictError(HailbusError):
    """A handler returned something that is not a verdict. Calling it again would not help."""

    def __init__(self, *, handler: str, problem: str) -> None:
        self.handler = handler
        super().__init__(
            f"{handler} {problem}; a handler returns None, Done(), Retry(), Reject() or Skip(), a handler of batches "
            "None or a list with one of them per event"
        )


class HandlerDeadlineError(HailbusError):
    """A handler ran past its deadline and was cancelled."""

    def __init__(self, *, handler: str, deadline_s: float) -> None:
        self.handler = handler
        self.deadline_s = deadline_s
        super().__init__(f"{handler} was cancelled after its deadline of {deadline_s:g} s")


# ------------------------------------------------------------------------------------------------ processes


class ServiceFailedError(HailbusError):
    """A part of a service has ended, and only a restart brings it back. The rest was drained and stopped."""

    def __init__(self, *, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(f"stopped, because only a restart helps: {'; '.join(reasons)}")


# ------------------------------------------------------------------------------------------------ requests


class KeyReusedError(HailbusError):
    """An idempotency key was used before, for another request."""

    def __init__(self, *, key: str) -> None:
        self.key = key
        super().__init__("this Idempotency-Key belongs to a request with another path or body; take a new key")


class ClockNotSetError(HailbusError):
    """The event clock has seen no event, so nobody knows what time it is."""

    def __init__(self) -> None:
        super().__init__("the event clock has seen no event yet: send the header Event-Time")
