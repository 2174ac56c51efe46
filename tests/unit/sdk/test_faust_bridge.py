"""The faust bridge, with faust's message shape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hailbus import Catalogue, ConfigurationError, Event, NotInContractError, Topic
from hailbus.codec import encode, envelope_for
from hailbus.faust import TypedSender, TypedTopic

RIDES = Topic("rides.v1", partitions=3)


class Requested(Event, topic=RIDES, key="ride_id", type="ride.requested"):
    ride_id: str


class Completed(Event, topic=RIDES, key="ride_id", type="ride.completed"):
    ride_id: str


class Elsewhere(Event, topic=Topic("x.v1"), type="x.y"):
    pass


class App:
    """Stands for faust's App: makes topics that remember what was sent."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def topic(self, name: str, **_: Any) -> Any:
        async def send(**message: Any) -> None:
            self.sent.append({"topic": name, **message})

        return SimpleNamespace(name=name, send=send)


def faust_event(event: Event, **changes: Any) -> Any:
    key, value, headers = encode(event, envelope_for(event, source="/x", id="i"))
    message = {
        "topic": "rides.v1",
        "partition": 1,
        "offset": 7,
        "timestamp": 1.5,
        "timestamp_type": 0,
        "key": key,
        "value": value,
        "headers": headers,
    }
    return SimpleNamespace(message=SimpleNamespace(**(message | changes)))


async def test_stream_gives_wanted_events_and_survives_broken_ones() -> None:
    told: list[str] = []
    typed = TypedTopic(
        App(), Catalogue.of(Requested, Completed), Requested, on_error=lambda ctx, e: told.append(str(e))
    )

    class Stream:
        async def events(self) -> Any:
            yield faust_event(Requested(ride_id="a"))
            yield faust_event(Completed(ride_id="b"))
            yield faust_event(Requested(ride_id="c"), value=b"broken")
            yield faust_event(Requested(ride_id="d"), value=None)
            yield faust_event(Requested(ride_id="e"), headers=dict(faust_event(Requested(ride_id="e")).message.headers))

    found = [(d.event.ride_id, d.ctx.offset, d.ctx.envelope.id) async for d in typed.events(Stream())]
    assert found == [("a", 7, "i"), ("e", 7, "i")]
    assert typed.undecodable_count == 1
    assert "is invalid" in told[0]


async def test_sender_uses_the_same_envelope_and_partition() -> None:
    app = App()
    sender = TypedSender(app, "/surge", Requested)
    await sender.send(Requested(ride_id="foobar"), id="s1")
    (sent,) = app.sent
    assert (sent["topic"], sent["key"], sent["partition"]) == ("rides.v1", b"foobar", (-790332482 & 0x7FFFFFFF) % 3)
    assert dict(sent["headers"])["ce_id"] == b"s1"
    with pytest.raises(NotInContractError):
        await sender.send(Completed(ride_id="x"))  # type: ignore[arg-type]  # the point of the test


def test_one_topic_only() -> None:
    with pytest.raises(ConfigurationError, match="events of one topic"):
        TypedTopic(App(), Catalogue.of(Requested), Requested, Elsewhere)
