"""Generic events and unions told apart by a field: on the wire, in handlers and in the schema."""

from typing import Annotated, Generic, Literal, TypeVar

import pytest
from hailbus import ConfigurationError, Context, Event, Publisher, Service, Topic
from hailbus.testing import MemoryBus
from pydantic import BaseModel, Field

T = TypeVar("T")

SHOP = Topic("shop.v1", partitions=2)


class Card(BaseModel):
    kind: Literal["card"] = "card"
    last_four: str


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"
    currency: str


class Changed(Event, Generic[T], topic=SHOP, key="id"):
    """Abstract: something has a new value."""

    id: str
    before: T
    after: T


class PriceChanged(Changed[int], type="price.changed"):
    """A generic event becomes a concrete one by its argument and its type."""


class PaymentChanged(Changed[Annotated[Card | Cash, Field(discriminator="kind")]], type="payment.changed"):
    pass


async def test_a_generic_event_arrives_with_its_argument_s_type() -> None:
    service = Service("shop")
    publisher: Publisher[PriceChanged | PaymentChanged] = service.publishes(PriceChanged | PaymentChanged)
    prices: list[PriceChanged] = []
    payments: list[PaymentChanged] = []

    @service.on(PriceChanged)
    async def on_price(event: PriceChanged, ctx: Context) -> None:
        prices.append(event)

    @service.on(PaymentChanged)
    async def on_payment(event: PaymentChanged, ctx: Context) -> None:
        payments.append(event)

    async with MemoryBus().run(service) as t:
        price = PriceChanged(id="a", before=300, after=250)
        payment = PaymentChanged(id="a", before=Card(last_four="0042"), after=Cash(currency="USD"))
        await publisher.publish(price)
        await publisher.publish(payment)
        await t.settle()
    assert prices == [price]
    assert payments == [payment]
    assert isinstance(payments[0].before, Card)
    assert isinstance(payments[0].after, Cash)


def test_the_schema_names_the_field_that_tells_the_members_apart() -> None:
    after = PaymentChanged.model_json_schema(mode="serialization")["properties"]["after"]
    assert after["discriminator"] == {
        "mapping": {"card": "#/$defs/Card", "cash": "#/$defs/Cash"},
        "propertyName": "kind",
    }
    assert [member["$ref"] for member in after["oneOf"]] == ["#/$defs/Card", "#/$defs/Cash"]


def test_a_payload_of_no_member_is_refused_with_the_members_that_there_are() -> None:
    text = '{"id": "a", "before": {"kind": "cash", "currency": "USD"}, "after": {"kind": "cheque"}}'
    with pytest.raises(ValueError, match="'card', 'cash'"):
        PaymentChanged.model_validate_json(text)


def test_a_generic_event_without_a_type_cannot_be_published() -> None:
    service = Service("shop")
    with pytest.raises(ConfigurationError, match="has no type=, so it cannot be published or handled"):
        service.publishes(Changed[int])


def test_a_generic_event_with_a_type_is_told_that_its_arguments_share_it() -> None:
    class Typed(Event, Generic[T], topic=SHOP, type="typed.changed"):
        after: T

    with pytest.raises(ConfigurationError, match=r"Typed\[int\] is Typed with arguments, and all of those"):
        Service("shop").publishes(Typed[int])
