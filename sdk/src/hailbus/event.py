"""Events are past facts. An event class owns its type, version, topic and key, so that no caller repeats them."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeGuard, get_args

from pydantic import BaseModel, ConfigDict

from hailbus.errors import ConfigurationError, InvalidPayloadError, MissingKeyError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Event", "EventInfo", "FromField", "FromHeader", "Topic", "event_info", "is_event", "key_of"]

CleanupPolicy = Literal["delete", "compact", "compact,delete"]
ContentMode = Literal["binary", "structured", "plain"]
"""How an event is laid out in its record: CloudEvents attributes as headers, the whole CloudEvent as one JSON document,
or the event alone, without CloudEvents attributes."""
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
_EVENT_TYPE = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9][a-z0-9_-]*)+\Z")
_TYPE_AND_VERSION = re.compile(r"(?P<type>[^/]+?)(/v(?P<version>[1-9][0-9]*))?\Z")
_ATTRIBUTE = re.compile(r"[a-z0-9]{1,20}\Z")
_FIXED_ATTRIBUTES = frozenset({"type", "specversion", "dataschema", "datacontenttype", "data"})


@dataclass(frozen=True, slots=True)
class FromHeader:
    """A record header that holds an attribute of the event, on a topic without CloudEvents.

    Args:
        name: Of the header.
        names: For a discriminator: the event type for each value of the header, `"order.placed"` or, with a version,
            `"order.placed/v2"`. Values that are not listed are event types themselves.
    """

    name: str
    names: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", _checked_names(self.names))

    def __reduce__(self) -> tuple[Any, ...]:  # a mapping proxy does not pickle
        return type(self), (self.name, dict(self.names))


@dataclass(frozen=True, slots=True)
class FromField:
    """A field of the JSON value that holds an attribute of the event, on a topic without CloudEvents.

    Args:
        path: The field; of nested objects with dots: `meta.type`.
        names: For a discriminator, as for `FromHeader`.
    """

    path: str
    names: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", _checked_names(self.names))

    def __reduce__(self) -> tuple[Any, ...]:  # a mapping proxy does not pickle
        return type(self), (self.path, dict(self.names))


def _checked_names(names: Mapping[str, str]) -> Mapping[str, str]:
    for text in names.values():
        type_and_version(text)
    return MappingProxyType(dict(names))


def type_and_version(text: str) -> tuple[str, int]:
    """Event type and version of `order.placed` (version 1) or `order.placed/v2`.

    Raises:
        ConfigurationError: The text is neither.
    """
    match = _TYPE_AND_VERSION.match(text)
    if match is None or not _EVENT_TYPE.match(match["type"]):
        message = f"{text!r} is no event type like 'order.placed' or, with a version, 'order.placed/v2'"
        raise ConfigurationError(message)
    return match["type"], int(match["version"] or 1)


@dataclass(frozen=True, slots=True)
class Topic:
    """One Kafka topic, declared once by the module that owns its events.

    Args:
        name: Legal Kafka name, for example `rides.v1`.
        partitions: Partition count at creation. Keys move when it changes, so hailbus never changes it.
        cleanup_policy: As Kafka's `cleanup.policy`.
        retention: How long records are kept, None for the broker's default.
        config: Further topic configuration in Kafka's own names, for example `{"max.message.bytes": "2097152"}`.
        description: One sentence for the catalogue and the AsyncAPI document.
        content_mode: How events are written to it where the publisher does not say; None leaves it to the service.
            `plain` writes the value alone, without CloudEvents attributes, for readers that know nothing of them.
        default_event: Type of records without CloudEvents attributes, `"order.placed"` or `"order.placed/v2"`. With a
            discriminator, of those in which it is missing.
        discriminator: The header or field that names the type of records without CloudEvents attributes.
        attributes: Where further attributes of such records come from: `FromHeader`, `FromField`, or a fixed text, for
            `id`, `source`, `time`, `subject`, `version` and extensions.
    """

    name: str
    _: KW_ONLY
    partitions: int = 6
    cleanup_policy: CleanupPolicy = "delete"
    retention: timedelta | None = None
    config: Mapping[str, str] = field(default_factory=dict, hash=False)
    description: str = field(default="", compare=False)
    content_mode: ContentMode | None = field(default=None, compare=False)
    default_event: str | None = None
    discriminator: FromHeader | FromField | None = None
    attributes: Mapping[str, str | FromHeader | FromField] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not _TOPIC_NAME.match(self.name) or self.name in {".", ".."}:
            message = f"{self.name!r} is not a legal topic name: 1 to 249 of letters, digits, '.', '_' and '-'"
            raise ConfigurationError(message)
        if self.partitions < 1:
            message = f"topic {self.name!r} needs at least one partition, not {self.partitions}"
            raise ConfigurationError(message)
        if self.cleanup_policy not in {"delete", "compact", "compact,delete"}:
            message = f"topic {self.name!r}: cleanup_policy is 'delete', 'compact' or 'compact,delete'"
            raise ConfigurationError(message)
        if self.content_mode is not None:
            checked_content_mode(self.content_mode)
        if self.default_event is not None:
            type_and_version(self.default_event)
        if self.content_mode == "plain":
            self.check_plain()
        for name in self.attributes:
            if not _ATTRIBUTE.match(name) or name in _FIXED_ATTRIBUTES:
                message = (
                    f"topic {self.name!r}: attributes= takes id, source, time, subject, version and extensions in "
                    f"lower case letters and digits, not {name!r}"
                )
                raise ConfigurationError(message)
        if self.attributes and not self.reads_plain:
            message = f"topic {self.name!r}: attributes= needs default_event= or discriminator= beside it"
            raise ConfigurationError(message)
        object.__setattr__(self, "config", MappingProxyType(dict(self.config)))
        object.__setattr__(self, "attributes", MappingProxyType(dict(self.attributes)))

    @property
    def reads_plain(self) -> bool:
        """Whether records without CloudEvents attributes are events."""
        return self.default_event is not None or self.discriminator is not None

    def check_plain(self) -> None:
        """Refuse a plain topic whose events nobody could tell apart.

        Raises:
            ConfigurationError: There is neither a default event nor a discriminator.
        """
        if not self.reads_plain:
            message = (
                f"topic {self.name!r} is written plain, so nothing in a record names its event; give "
                "default_event='order.placed', or discriminator=FromHeader('event-type')"
            )
            raise ConfigurationError(message)

    def kafka_config(self) -> dict[str, str]:
        """The topic configuration in Kafka's names, as CreateTopics takes it."""
        configs: dict[str, str] = {"cleanup.policy": self.cleanup_policy}
        if self.retention is not None:
            configs["retention.ms"] = str(int(self.retention / timedelta(milliseconds=1)))
        return configs | dict(self.config)

    def __reduce__(self) -> tuple[Any, ...]:  # a mapping proxy does not pickle
        return _rebuild_topic, (
            self.name,
            {
                "partitions": self.partitions,
                "cleanup_policy": self.cleanup_policy,
                "retention": self.retention,
                "config": dict(self.config),
                "description": self.description,
                "content_mode": self.content_mode,
                "default_event": self.default_event,
                "discriminator": self.discriminator,
                "attributes": dict(self.attributes),
            },
        )


def _rebuild_topic(name: str, settings: dict[str, Any]) -> Topic:  # Any: the constructor's arguments
    return Topic(name, **settings)


def checked_content_mode(mode: ContentMode) -> ContentMode:
    """The mode, if it is one.

    Raises:
        ConfigurationError: It is none.
    """
    if mode not in get_args(ContentMode):
        message = f"content_mode={mode!r} is not one of 'binary', 'structured' and 'plain'"
        raise ConfigurationError(message)
    return mode


@dataclass(frozen=True, slots=True, kw_only=True)
class EventInfo:
    """What an event class says about itself.

    Attributes:
        type: CloudEvents type, for example `ride.requested`.
        version: Counts up from 1 with each breaking change.
        topic: The topic that it is published to.
        key_field: The field whose value is the record key, None for records without a key.
    """

    type: str
    version: int
    topic: Topic
    key_field: str | None

    @property
    def dataschema(self) -> str:
        """The `ce_dataschema` of this class."""
        return f"hailbus:{self.type}/v{self.version}"


class Event(BaseModel):
    """Base class of all events: a frozen pydantic model with class keywords.

    A subclass without `type=` is an abstract base that hands `topic` and `key` down::

        RIDES = Topic("rides.v1", partitions=6)

        class RideEvent(Event, topic=RIDES, key="ride_id"):
            ride_id: str

        class RideRequested(RideEvent, type="ride.requested", version=1):
            rider_id: str

    Readers ignore fields that they do not know, so a producer may add some. Type, version, topic and key of the event
    are in `event_info(cls)`, where they cannot clash with a field.

    Raises:
        ConfigurationError: At class creation, when the keywords do not fit together.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        ser_json_timedelta="iso8601",
        validate_by_name=True,
        # Writers always write fields that have a default: the schema says so.
        json_schema_serialization_defaults_required=True,
    )

    __event_topic__: ClassVar[Topic | None] = None
    __event_key__: ClassVar[str | None] = None
    __event_info__: ClassVar[EventInfo | None] = None
    __event_upcast__: ClassVar[Any] = None  # the next version and the way there, set by hailbus.upcasting
    __event_predecessors__: ClassVar[tuple[Any, ...]] = ()

    def __init_subclass__(
        cls,
        *,
        topic: Topic | None = None,
        key: str | None = None,
        type: str | None = None,
        version: int = 1,
        **config: Any,  # the rest of pydantic's class keywords
    ) -> None:
        # What is left in `config` is a misspelt keyword: the other hook says so, with the class complete.
        super().__init_subclass__()

    @classmethod
    def __pydantic_init_subclass__(
        cls,
        *,
        topic: Any = None,
        key: Any = None,
        type: Any = None,  # Any: class keywords are unchecked by mypy under a metaclass, so check here
        version: Any = 1,
        **config: Any,  # pydantic hands the same keywords to both hooks; this one sees the fields
    ) -> None:
        super().__pydantic_init_subclass__()
        name = f"{cls.__module__}.{cls.__qualname__}"
        if config:
            message = f"{name}: unknown class keywords {sorted(config)}; known are topic, key, type and version"
            raise ConfigurationError(message)
        if topic is not None:
            if not isinstance(topic, Topic):
                message = f"{name}: topic= takes a hailbus.Topic, not {topic!r}"
                raise ConfigurationError(message)
            cls.__event_topic__ = topic
        if key is not None:
            cls.__event_key__ = key
        cls.__event_info__ = None
        if type is None:
            # A parametrised generic (`Changed[Ride]`) is created by pydantic without our keywords: it stays abstract.
            return
        if not isinstance(type, str) or not _EVENT_TYPE.match(type):
            message = f"{name}: type={type!r} is not like 'ride.requested': lower case words joined by dots"
            raise ConfigurationError(message)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            message = f"{name}: version={version!r} must be a whole number from 1 up"
            raise ConfigurationError(message)
        if cls.__event_topic__ is None:
            message = f"{name}: an event with a type needs a topic; add topic= here or on its base class"
            raise ConfigurationError(message)
        if cls.__event_key__ is not None and cls.__event_key__ not in cls.model_fields:
            message = f"{name}: key={cls.__event_key__!r} is not one of its fields {sorted(cls.model_fields)}"
            raise ConfigurationError(message)
        cls.__event_info__ = EventInfo(
            type=type, version=version, topic=cls.__event_topic__, key_field=cls.__event_key__
        )


def is_event(cls: object) -> TypeGuard[type[Event]]:
    """Whether this is a concrete event class, one with a type."""
    return isinstance(cls, type) and issubclass(cls, Event) and cls.__event_info__ is not None


def event_info(event: type[Event] | Event) -> EventInfo:
    """What an event class, or the class of an event, says about itself.

    Raises:
        ConfigurationError: The class is an abstract base, or no event class at all.
    """
    try:
        info = event.__event_info__
    except AttributeError:
        message = f"{event!r} is no event class; give a class derived from Event, several as a union: A | B"
        raise ConfigurationError(message) from None
    if info is None:
        cls = event if isinstance(event, type) else type(event)
        generic = cls.__pydantic_generic_metadata__["origin"]
        if is_event(generic):
            message = (
                f"{cls.__module__}.{cls.__qualname__} is {generic.__name__} with arguments, and all of those would "
                f"share its type {event_info(generic).type!r}; derive an event: class Some({cls.__qualname__}, "
                "type=...)"
            )
            raise ConfigurationError(message)
        message = f"{cls.__module__}.{cls.__qualname__} has no type=, so it cannot be published or handled"
        raise ConfigurationError(message)
    return info


def key_of(event: Event) -> bytes | None:
    """The record key of an event: the text of its key field in UTF-8, None for a class without key.

    Raises:
        MissingKeyError: The key field is None or empty.
        InvalidPayloadError: It has no UTF-8 form.
    """
    info = event_info(event)
    if info.key_field is None:
        return None
    value: object = getattr(event, info.key_field)
    text = value if type(value) is str else "" if value is None else str(value)
    if not text:
        raise MissingKeyError(type=info.type, field=info.key_field)
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        reason = f"{info.key_field} is {text!r:.60}, which is not UTF-8 text, so it cannot be the record key"
        raise InvalidPayloadError(type=info.type, version=info.version, reason=reason, topic=info.topic.name) from error
