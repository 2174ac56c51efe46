"""Event classes, envelopes, catalogue and codec."""

from __future__ import annotations

import json
import pickle
import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hailbus import (
    Catalogue,
    ConfigurationError,
    DuplicateEventTypeError,
    Envelope,
    Event,
    HeaderError,
    InvalidPayloadError,
    MissingHeaderError,
    MissingKeyError,
    Service,
    TombstoneError,
    Topic,
    UnknownEventError,
    UnsupportedVersionError,
    event_info,
    is_event,
    key_of,
    new_id,
)
from hailbus.codec import decode, encode, envelope_for

ORDERS = Topic("orders.v1", partitions=3, retention=timedelta(days=1), config={"max.message.bytes": "1000"})


class OrderEvent(Event, topic=ORDERS, key="order_id"):
    order_id: str


class OrderPlaced(OrderEvent, type="order.placed", version=2):
    amount: int
    placed_at: datetime | None = None


class OrderPaid(OrderEvent, type="order.paid"):
    pass


CATALOGUE = Catalogue.of(OrderPlaced, OrderPaid)
NOON = datetime(2014, 5, 1, 12, 0, 0, 250000, tzinfo=UTC)


def record(event: Event, envelope: Envelope, **changes: object) -> SimpleNamespace:
    key, value, headers = encode(event, envelope)
    return SimpleNamespace(**({"topic": "orders.v1", "key": key, "value": value, "headers": headers} | changes))


def test_class_keywords_describe_the_event() -> None:
    info = event_info(OrderPlaced)
    assert (info.type, info.version, info.topic, info.key_field) == ("order.placed", 2, ORDERS, "order_id")
    assert info.dataschema == "hailbus:order.placed/v2"
    assert event_info(OrderPaid).version == 1
    assert is_event(OrderPaid)
    assert not is_event(OrderEvent)


def test_abstract_base_cannot_be_published() -> None:
    with pytest.raises(ConfigurationError, match="has no type="):
        event_info(OrderEvent)


async def ignore(event: Any, ctx: Any) -> None:
    """Take anything."""


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (int, "<class 'int'> is no event class; give a class derived from Event, several as a union: A | B"),
        (OrderPlaced | int, "<class 'int'> is no event class"),
        ("order.placed", "takes an event class, a union of them like OrderPlaced | OrderPaid, or a catalogue"),
    ],
)
def test_what_is_no_event_class_is_refused_with_what_to_give(given: Any, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        Service("shop").publishes(given)
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        Service("shop").on(given)(ignore)


def test_topic_gives_kafka_config_and_pickles() -> None:
    assert ORDERS.kafka_config() == {
        "cleanup.policy": "delete",
        "retention.ms": "86400000",
        "max.message.bytes": "1000",
    }
    assert pickle.loads(pickle.dumps(ORDERS)) == ORDERS  # noqa: S301 our own bytes


@pytest.mark.parametrize("name", ["", "a b", "x" * 250, "."])
def test_illegal_topic_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a legal topic name"):
        Topic(name)


def test_wrong_class_keywords_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs a topic"):
        type("A", (Event,), {"__module__": __name__}, type="a.b")
    with pytest.raises(ConfigurationError, match="not one of its fields"):
        type("B", (OrderEvent,), {"__module__": __name__}, type="a.b", key="nope")
    with pytest.raises(ConfigurationError, match="lower case words"):
        type("C", (OrderEvent,), {"__module__": __name__}, type="Wrong Type")
    with pytest.raises(ConfigurationError, match="unknown class keywords"):
        type("D", (OrderEvent,), {"__module__": __name__}, type="a.b", topik=ORDERS)
    with pytest.raises(ConfigurationError, match=r"takes a hailbus\.Topic"):
        type("E", (Event,), {"__module__": __name__}, topic="orders.v1")
    with pytest.raises(ConfigurationError, match="from 1 up"):
        type("F", (OrderEvent,), {"__module__": __name__}, type="a.b", version=0)


def test_event_is_frozen_and_ignores_unknown_fields() -> None:
    event = OrderPlaced.model_validate({"order_id": "1", "amount": 3, "new": True})
    with pytest.raises(ValueError, match="frozen"):
        event.amount = 4  # type: ignore[misc]  # the point of the test
    assert event == OrderPlaced(order_id="1", amount=3)


def test_key_is_text_of_its_field() -> None:
    class Numbered(Event, topic=ORDERS, key="number", type="num.bered"):
        number: int | UUID | None

    assert key_of(Numbered(number=17)) == b"17"
    assert key_of(Numbered(number=UUID(int=1))) == b"00000000-0000-0000-0000-000000000001"
    with pytest.raises(MissingKeyError, match="number"):
        key_of(Numbered(number=None))


def test_binary_mode_headers_have_their_names() -> None:
    envelope = Envelope(
        id="e1",
        source="/shop",
        type="order.placed",
        version=2,
        time=NOON,
        subject="o1",
        correlation_id="c",
        causation_id="d",
        traceparent="00-1-2-01",
        extensions={"sequence": "7"},
    )
    encoded = encode(OrderPlaced(order_id="o1", amount=3), envelope)
    assert encoded.key == b"o1"
    assert json.loads(encoded.value) == {"order_id": "o1", "amount": 3, "placed_at": None}
    assert encoded.headers == [
        ("ce_specversion", b"1.0"),
        ("ce_id", b"e1"),
        ("ce_source", b"/shop"),
        ("ce_type", b"order.placed"),
        ("ce_time", b"2014-05-01T12:00:00.250000Z"),
        ("ce_dataschema", b"hailbus:order.placed/v2"),
        ("content-type", b"application/json"),
        ("ce_subject", b"o1"),
        ("ce_correlationid", b"c"),
        ("ce_causationid", b"d"),
        ("ce_traceparent", b"00-1-2-01"),
        ("ce_sequence", b"7"),
    ]


def test_decode_gives_back_event_and_envelope() -> None:
    event = OrderPlaced(order_id="o1", amount=3, placed_at=NOON)
    envelope = envelope_for(event, source="/shop", id="e1", time=NOON, extensions={"sequence": "7"})
    assert decode(record(event, envelope), CATALOGUE) == (event, envelope)
    as_mapping = record(event, envelope)
    as_mapping.headers = dict(as_mapping.headers)
    assert decode(as_mapping, CATALOGUE) == (event, envelope)


def test_cause_hands_correlation_on() -> None:
    event = OrderPaid(order_id="o1")
    first = envelope_for(event, source="/shop", id="a", traceparent="00-t")
    second = envelope_for(event, source="/till", id="b", cause=first)
    third = envelope_for(event, source="/till", id="c", cause=second)
    assert (first.correlation_id, first.causation_id) == (None, None)
    assert (second.correlation_id, second.causation_id, second.traceparent) == ("a", "a", "00-t")
    assert (third.correlation_id, third.causation_id) == ("a", "b")


def test_structured_mode_is_read() -> None:
    document = {
        "specversion": "1.0",
        "id": "e9",
        "source": "/other",
        "type": "order.paid",
        "time": "2014-05-01T14:00:00.25+02:00",
        "data": {"order_id": "o7"},
    }
    structured = SimpleNamespace(
        topic="orders.v1",
        key=b"o7",
        value=json.dumps(document).encode(),
        headers=[("content-type", b"application/cloudevents+json; charset=UTF-8")],
    )
    event, envelope = decode(structured, CATALOGUE)
    assert event == OrderPaid(order_id="o7")
    assert (envelope.id, envelope.source, envelope.version, envelope.time) == ("e9", "/other", 1, NOON)


def test_what_cannot_be_decoded_has_its_own_error() -> None:
    event = OrderPlaced(order_id="o1", amount=3)
    envelope = envelope_for(event, source="/shop")
    good = record(event, envelope)

    def with_header(name: str, value: bytes | None) -> SimpleNamespace:
        pairs = [(n, v) for n, v in good.headers if n != name] + ([(name, value)] if value is not None else [])
        return SimpleNamespace(**(vars(good) | {"headers": pairs}))

    with pytest.raises(MissingHeaderError, match="ce_type"):
        decode(with_header("ce_type", None), CATALOGUE)
    with pytest.raises(MissingHeaderError, match="ce_id"):
        decode(SimpleNamespace(topic="orders.v1", key=None, value=b"{}", headers=None), CATALOGUE)
    with pytest.raises(HeaderError, match="not UTF-8"):
        decode(with_header("ce_type", b"\xff"), CATALOGUE)
    with pytest.raises(HeaderError, match="no RFC 3339"):
        decode(with_header("ce_time", b"yesterday"), CATALOGUE)
    with pytest.raises(UnknownEventError) as unknown:
        decode(with_header("ce_type", b"order.lost"), CATALOGUE)
    assert unknown.value.type == "order.lost"
    with pytest.raises(UnsupportedVersionError) as unsupported:
        decode(with_header("ce_dataschema", b"hailbus:order.placed/v3"), CATALOGUE)
    assert (unsupported.value.version, unsupported.value.known) == (3, (2,))
    with pytest.raises(InvalidPayloadError, match="amount: Field required"):
        decode(SimpleNamespace(**(vars(good) | {"value": b'{"order_id": "1"}'})), CATALOGUE)
    with pytest.raises(TombstoneError):
        decode(SimpleNamespace(**(vars(good) | {"value": None})), CATALOGUE)


def test_binary_headers_of_others_are_left_alone() -> None:
    event = OrderPaid(order_id="o1")
    envelope = envelope_for(event, source="/shop", time=NOON)
    good = record(event, envelope)
    good.headers.append(("__value_schema_id", b"\x01\xff\xfe"))
    assert decode(good, CATALOGUE) == (event, envelope)


def test_catalogue_finds_classes_and_topics() -> None:
    assert CATALOGUE.lookup("order.placed", 2) is OrderPlaced
    assert CATALOGUE.topics == (ORDERS,)
    assert CATALOGUE.types == ("order.paid", "order.placed")
    assert CATALOGUE.on_topic("orders.v1") == (OrderPlaced, OrderPaid)
    assert len(CATALOGUE | Catalogue.of(OrderPaid)) == 2
    with pytest.raises(DuplicateEventTypeError, match="both claim"):
        Catalogue.of(OrderPaid, type("Other", (OrderEvent,), {"__module__": "m"}, type="order.paid"))


def test_catalogue_of_module_takes_its_own_classes() -> None:
    import sys

    assert OrderPlaced in Catalogue.of(sys.modules[__name__])


def test_new_id_is_a_uuid4() -> None:
    ids = {new_id() for _ in range(500)}
    assert len(ids) == 500
    assert {(UUID(i).version, UUID(i).variant) for i in ids} == {(4, "specified in RFC 4122")}
