"""Silver takes what the services take, and says why of the rest."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from analytics_spark.quality import judge, judge_arrow
from hailbus.codec import Encoded, encode, envelope_for
from ride_events import CATALOGUE, Money
from ride_events.payments import PaymentCaptured

AT = datetime(2014, 5, 1, 8, 0, 0, 123456, tzinfo=UTC)
PAID = PaymentCaptured(ride_id="r", payment_id="p", rider_id="x", seq=1, amount=Money(amount_minor=5200))


def record(event: PaymentCaptured = PAID) -> Encoded:
    return encode(event, envelope_for(event, source="/booking", time=AT, id="id-1"))


def test_an_event_passes_with_its_envelope_and_canonical_json() -> None:
    key, value, headers = record()
    verdict = judge("payments.v1", key, value, headers, CATALOGUE)
    assert verdict[:2] == (None, None)
    assert verdict[2:8] == ("id-1", "/booking", "payment.captured", 1, AT, "r")
    assert json.loads(verdict[11] or "") == json.loads(value)


@pytest.mark.parametrize(
    ("topic", "change", "error", "words"),
    [
        ("payments.v1", {"value": b"{"}, "InvalidPayloadError", "Invalid JSON"),
        ("payments.v1", {"value": b"{}"}, "InvalidPayloadError", "ride_id: Field required (and 4 more)"),
        ("payments.v1", {"value": None}, "TombstoneError", "is a tombstone"),
        ("payments.v1", {"headers": []}, "MissingHeaderError", "is not a CloudEvent"),
        ("rides.v1", {}, "WrongTopicError", "belongs on topic 'payments.v1', not on 'rides.v1'"),
        ("payments.v1", {"ce_type": b"payment.invented"}, "UnknownEventError", "'payment.invented'"),
        ("payments.v1", {"ce_dataschema": b"hailbus:payment.captured/v9"}, "UnsupportedVersionError", "version 9"),
        ("payments.v1", {"ce_time": b"yesterday"}, "HeaderError", "ce_time"),
        ("payments.v1", {"seq": 2**63}, "OutOfRangeError", "more than 64 bits"),
    ],
)
def test_what_does_not_decode_is_refused_with_its_reason(
    topic: str, change: dict[str, object], error: str, words: str
) -> None:
    key, value, headers = record()
    content: bytes | None = value
    for name, new in change.items():
        if name == "value":
            assert new is None or isinstance(new, bytes)
            content = new
        elif name == "headers":
            headers = []
        elif isinstance(new, bytes):
            headers = [(one, new if one == name else old) for one, old in headers]
        else:
            content = json.dumps(json.loads(value) | {name: new}).encode()
    verdict = judge(topic, key, content, headers, CATALOGUE)
    assert verdict[0] == error
    assert words in (verdict[1] or "")
    assert verdict[2:] == (None,) * 10


def test_the_largest_integer_that_fits_passes() -> None:
    key, value, headers = record(PAID.model_copy(update={"seq": 2**63 - 1}))
    assert judge("payments.v1", key, value, headers, CATALOGUE)[0] is None


def test_columns_are_judged_row_by_row_even_in_a_slice() -> None:
    key, value, headers = record()
    pairs = [{"key": name, "value": content} for name, content in headers]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = [
        pa.array(["payments.v1"] * 4),
        pa.array([key] * 4),
        pa.array([b"{", value, None, value]),
        pa.array([pairs, pairs, [], pairs], kind),
    ]
    whole = judge_arrow(*columns)
    assert whole.field("error").to_pylist() == ["InvalidPayloadError", None, "MissingHeaderError", None]
    assert judge_arrow(*(column.slice(1, 3) for column in columns)).to_pylist() == whole.slice(1, 3).to_pylist()
    assert judge_arrow(*(column.slice(0, 0) for column in columns)).to_pylist() == []
