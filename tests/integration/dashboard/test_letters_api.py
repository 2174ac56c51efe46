"""The dead letters over HTTP: listed, judged, replayed once with a mended value, dropped; who may do it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from dashboard.config import Settings
from hailbus import BrokerUnreachableError, ConfigurationError
from hailbus._transport import TopicDescription
from hailbus.dead_letter_queue import AUDIT, DeadLetterQueue
from hailbus.settings import read_settings
from hailbus.testing import MemoryBus
from hailbus.testing.memory import MemoryAdmin
from ride_events.rides import RIDES

from tests.integration.dashboard.city import page, story
from tests.integration.dashboard.spoiled import OWN_PAGE, QUEUE, Surge, requested, spoil, surge, until_letters
from tests.integration.dashboard.test_api import until


@pytest.fixture(autouse=True)
def _polls_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.adapters.letters._EVERY_S", 0.1)


@dataclass(frozen=True)
class Town:
    bus: MemoryBus
    surge: Surge
    client: httpx.AsyncClient

    async def listed(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get("/api/letters")).json()
        return found

    async def waiting(self, count: int) -> dict[str, Any]:
        found: dict[str, Any] = await until(self.listed, lambda one: one["waiting"] == count)
        return found

    async def letter(self, place: str, queue: str = QUEUE) -> dict[str, Any]:
        response = await self.client.get(f"/api/letters/{queue}/{place}")
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def post(self, place: str, action: str, body: Any = None, **headers: str) -> httpx.Response:
        sent = OWN_PAGE | {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(f"/api/letters/{QUEUE}/{place}/{action}", json=body, headers=sent)

    async def the_letter(self) -> dict[str, Any]:
        """Wait for the only letter, and return it whole."""
        found = await self.waiting(1)
        (queue,) = [queue for queue in found["queues"] if queue["waiting"]]
        return await self.letter(queue["letters"][0]["place"])


@asynccontextmanager
async def town(bus: MemoryBus | None = None, **values: Any) -> AsyncIterator[Town]:
    bus = bus or MemoryBus()
    async with (
        story(bus) as tell,
        surge(bus) as consumer,
        page(bus, **({"letters": "replay"} | values)) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        await tell.ride("one")
        await tell.ride("two", until="requested")
        yield Town(bus, consumer, client)


def mended(letter: dict[str, Any], town: Town, ride_id: str = "one") -> str:
    good = requested(town.bus, ride_id).value
    assert good is not None
    return good.decode()


async def test_a_letter_is_listed_with_where_it_came_from_and_why() -> None:
    async with town() as here:
        offset = spoil(here.bus, "one")
        found = await here.waiting(1)
        assert (found["mode"], found["is_read"], found["error"]) == ("replay", True, "")
        (queue,) = found["queues"]
        assert {name: queue[name] for name in ("name", "topic", "group", "waiting", "all", "more")} == {
            "name": QUEUE,
            "topic": "rides.v1",
            "group": "surge",
            "waiting": 1,
            "all": 1,
            "more": 0,
        }
        (letter,) = queue["letters"]
        good = requested(here.bus, "one")
        assert letter["origin"] == {"topic": "rides.v1", "partition": good.partition, "offset": offset}
        assert (letter["status"], letter["waits"], letter["type"], letter["key"]) == (
            "waiting",
            True,
            "ride.requested",
            "one",
        )
        assert letter["id"] == dict(good.headers)["ce_id"].decode()
        assert (letter["attempts"], letter["by"], letter["group"]) == (0, "decoder", "surge")
        assert "fare: Field required" in letter["error"]["message"]
        assert letter["failed_at"].startswith("20")
        assert letter["history"] == []
        assert (await here.client.get("/api/letters/waiting")).json() == {"waiting": 1}
        state = await until(lambda: _json(here.client, "/api/state"), lambda one: one["letters"] == 1)
        assert "letters" in state
        again = await here.client.get("/api/letters")
        tag = {"If-None-Match": again.headers["etag"]}
        assert (await here.client.get("/api/letters", headers=tag)).status_code == 304
        spoil(here.bus, "one")
        await here.waiting(2)
        assert (await here.client.get("/api/letters", headers=tag)).status_code == 200


async def _json(client: httpx.AsyncClient, path: str) -> Any:
    return (await client.get(path)).json()


async def test_a_letter_has_its_value_its_problems_and_its_twin() -> None:
    async with town() as here:

        def change(value: dict[str, Any]) -> None:
            del value["fare"]
            value["pickup"]["lat"] = "north"

        spoil(here.bus, "one", change)
        letter = await here.the_letter()
        assert [problem["field"] for problem in letter["problems"]] == ["pickup.lat", "fare"]
        assert letter["problems"][1]["words"] == "Field required"
        assert json.loads(letter["value"])["pickup"]["lat"] == "north"
        assert letter["original"] == letter["value"]
        assert (letter["value_note"], letter["described"]) == ("", True)
        assert ["ce_type", "ride.requested"] in letter["headers"]
        good = requested(here.bus, "one")
        assert letter["twin"] == {
            "topic": "rides.v1",
            "partition": good.partition,
            "offset": good.offset,
            "value": (good.value or b"").decode(),
        }


async def test_a_value_that_is_no_text_is_described() -> None:
    async with town() as here:
        spoil(here.bus, "one", value=b"\xff\xfe\x00")
        letter = await here.the_letter()
        assert (letter["value"], letter["original"]) == (None, None)
        assert letter["value_note"] == "The value is not UTF-8 text. It has 3 bytes: ff fe 00"
        assert letter["problems"][0]["field"] == ""


async def test_a_check_stores_nothing() -> None:
    async with town() as here:
        spoil(here.bus, "one")
        letter = await here.the_letter()
        good = mended(letter, here)
        assert (await here.post(letter["place"], "check", {"value": good})).json() == {"problems": []}
        bad = await here.post(letter["place"], "check", {"value": "{"})
        assert bad.json()["problems"][0]["words"].startswith("Invalid JSON")
        assert (await here.post(letter["place"], "check", {})).status_code == 422
        assert (await here.post(letter["place"], "check", {"value": "x", "more": 1})).status_code == 422
        assert await here.letter(letter["place"]) == letter
        assert here.bus.records(AUDIT) == []


async def test_a_mended_letter_reaches_its_topic_once_with_the_same_key_and_event_id() -> None:
    async with town() as here:
        spoil(here.bus, "one")
        letter = await here.the_letter()
        before = len(here.bus.records(RIDES))
        pretty = json.dumps(json.loads(mended(letter, here)) | {"multiplier": 2.5}, indent=2)
        done = await here.post(letter["place"], "replay", {"value": pretty})
        assert done.status_code == 200, done.text
        good, replayed = requested(here.bus, "one"), here.bus.records(RIDES)[-1]
        assert len(here.bus.records(RIDES)) == before + 1
        assert (replayed.key, replayed.partition) == (b"one", letter["origin"]["partition"])
        assert dict(replayed.headers)["ce_id"] == dict(good.headers)["ce_id"]
        assert dict(replayed.headers)["hailbus-replayed-from"].decode() == f"{QUEUE}-{letter['place']}"
        assert b"\n" not in (replayed.value or b"")
        assert json.loads(replayed.value or b"") == json.loads(good.value or b"") | {"multiplier": 2.5}
        assert (done.json()["status"], done.json()["waits"], done.json()["twin"]) == ("replayed", False, None)
        (entry,) = done.json()["history"]
        assert (entry["action"], entry["by"], entry["value"]) == ("replayed", "dashboard", "edited")
        assert entry["to"] == f"rides.v1-{replayed.partition}@{replayed.offset}"
        seen = ("one", dict(good.headers)["ce_id"].decode())
        await until(lambda: asyncio.sleep(0, here.surge.seen), lambda found: found.count(seen) == 2)
        assert (await here.waiting(0))["queues"][0]["all"] == 1
        second = await here.post(letter["place"], "replay", {"value": pretty})
        assert second.status_code == 409
        assert "was replayed by dashboard at 20" in second.json()["detail"]
        assert (await here.post(letter["place"], "drop")).status_code == 409
        assert len(here.bus.records(RIDES)) == before + 1


async def test_a_value_with_problems_is_refused_and_nothing_is_published() -> None:
    async with town() as here:
        spoil(here.bus, "one")
        letter = await here.the_letter()
        before = len(here.bus.records(RIDES))
        for body in ({"value": letter["value"]}, {}):
            refused = await here.post(letter["place"], "replay", body)
            assert refused.status_code == 422
            assert refused.json()["problems"] == [{"field": "fare", "words": "Field required"}]
            assert refused.json()["detail"] == "fare: Field required"
        other = json.dumps(json.loads(mended(letter, here)) | {"ride_id": "two"})
        refused = await here.post(letter["place"], "replay", {"value": other})
        assert refused.json()["problems"][0]["field"] == "ride_id"
        assert len(here.bus.records(RIDES)) == before
        assert (await here.letter(letter["place"]))["status"] == "waiting"


async def test_a_letter_whose_handler_failed_is_replayed_as_it_is() -> None:
    async with town() as here:
        spoil(here.bus, "one", lambda value: value.update(rider_id="rider-13"))
        letter = await here.the_letter()
        assert (letter["problems"], letter["attempts"], letter["by"]) == ([], 2, "Surge.__init__.take")
        assert letter["error"] == {"class": "builtins.RuntimeError", "message": "no cell has room for <b>rider-13</b>"}
        here.surge.hates = ""
        done = await here.post(letter["place"], "replay", {})
        assert done.json()["status"] == "replayed"
        assert "value" not in done.json()["history"][0]
        assert here.bus.records(RIDES)[-1].value == letter["value"].encode()


async def test_a_letter_that_no_class_describes_is_replayed_only_as_it_is() -> None:
    async with town() as here:
        record = requested(here.bus, "one")
        origin = [("kafka_dlt-original-topic", b"rides.v1"), ("kafka_dlt-original-partition", b"0")]
        more = [("kafka_dlt-original-offset", b"1"), ("kafka_dlt-original-timestamp", b"1"), ("ce_type", b"ride.flown")]
        headers = [pair for pair in record.headers if pair[0] != "ce_type"]
        here.bus.append(QUEUE, 0, [(b"one", b"any\nthing", [*headers, *origin, *more])])
        letter = await until(lambda: _newest(here), lambda found: found is not None and found["type"] == "ride.flown")
        assert (letter["described"], letter["problems"]) == (False, [])
        refused = await here.post(letter["place"], "replay", {"value": "any thing"})
        assert refused.status_code == 422
        assert "no known event class" in refused.json()["detail"].lower()
        done = await here.post(letter["place"], "replay", {"value": "any\nthing"})
        assert done.status_code == 200, done.text
        assert [found.value for found in here.bus.records(RIDES) if found.value == b"any\nthing"] == [b"any\nthing"]


async def _newest(here: Town) -> dict[str, Any] | None:
    letters = [letter for queue in (await here.listed())["queues"] for letter in queue["letters"]]
    return await here.letter(letters[0]["place"]) if letters else None


async def test_a_dropped_letter_is_not_published_and_cannot_be_replayed() -> None:
    async with town() as here:
        spoil(here.bus, "one")
        letter = await here.the_letter()
        before = len(here.bus.records(RIDES))
        done = await here.post(letter["place"], "drop")
        assert (done.status_code, done.json()["status"]) == (200, "dropped")
        again = await here.post(letter["place"], "replay", {"value": mended(letter, here)})
        assert again.status_code == 409
        assert "was dropped by dashboard" in again.json()["detail"]
        assert len(here.bus.records(RIDES)) == before


async def test_two_clicks_at_the_same_time_replay_once() -> None:
    async with town() as here:
        spoil(here.bus, "one")
        letter = await here.the_letter()
        before = len(here.bus.records(RIDES))
        body = {"value": mended(letter, here)}
        answers = await asyncio.gather(*(here.post(letter["place"], "replay", body) for _ in range(3)))
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409]
        assert len(here.bus.records(RIDES)) == before + 1


async def test_what_others_do_with_a_letter_is_seen() -> None:
    async with town() as here:
        spoil(here.bus, "one")
        letter = await here.the_letter()
        queue = DeadLetterQueue(here.bus, QUEUE, by="ada")
        await queue.edit(letter["place"], mended(letter, here).encode())
        edited = await until(lambda: here.letter(letter["place"]), lambda found: found["status"] == "edited")
        assert (edited["waits"], edited["problems"]) == (True, [])
        assert edited["value"] != edited["original"]
        await queue.drop([letter["place"]])
        late = await here.post(letter["place"], "replay", {})
        assert late.status_code == 409
        assert "was dropped by ada" in late.json()["detail"]
        await here.waiting(0)


@pytest.mark.parametrize(
    ("queue", "place"), [(QUEUE, "0@99"), (QUEUE, "nonsense"), ("rides.v1.nobody-dlt", "0@0"), ("rides.v1", "0@0")]
)
async def test_an_unknown_letter_is_not_found(queue: str, place: str) -> None:
    async with town() as here:
        await here.waiting(0)
        path = f"/api/letters/{queue}/{place}"
        assert (await here.client.get(path)).status_code == 404
        for action, body in (("check", {"value": ""}), ("replay", {}), ("drop", None)):
            assert (await here.client.post(f"{path}/{action}", json=body, headers=OWN_PAGE)).status_code == 404


@pytest.mark.parametrize("action", ["check", "replay", "drop"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "same-origin", "Host": "evil.example"},
        {},
    ],
)
async def test_another_web_site_deals_with_no_letter(action: str, headers: dict[str, str]) -> None:
    async with town() as here:
        spoil(here.bus, "one")
        letter = await here.the_letter()
        path = f"/api/letters/{QUEUE}/{letter['place']}/{action}"
        body = None if action == "drop" else {"value": mended(letter, here)}
        refused = await here.client.post(path, json=body, headers=headers)
        assert refused.status_code == 403
        assert "other web sites must not" in refused.json()["detail"]
        assert here.bus.records(AUDIT) == []


async def test_letters_are_only_shown_unless_the_setting_allows_more() -> None:
    async with town(letters="read") as here:
        spoil(here.bus, "one")
        letter = await here.the_letter()
        assert (await here.listed())["mode"] == "read"
        assert letter["problems"] == [{"field": "fare", "words": "Field required"}]
        for action, body in (("check", {"value": ""}), ("replay", {"value": mended(letter, here)}), ("drop", None)):
            refused = await here.post(letter["place"], action, body)
            assert refused.status_code == 403
            assert refused.json()["type"] == "/problems/letters-read-only"
        assert here.bus.records(AUDIT) == []
    assert Settings(bootstrap_servers="memory").letters == "read"
    with pytest.raises(ConfigurationError, match="DASHBOARD_LETTERS"):
        read_settings(Settings, {"DASHBOARD_BOOTSTRAP_SERVERS": "memory", "DASHBOARD_LETTERS": "write"})


async def test_without_dead_letter_topics_there_is_nothing_and_nothing_is_created() -> None:
    bus = MemoryBus()
    async with story(bus), page(bus) as url, httpx.AsyncClient(base_url=url, timeout=10) as client:
        found = await until(lambda: _json(client, "/api/letters"), lambda one: one["is_read"])
        assert (found["queues"], found["waiting"], found["mode"]) == ([], 0, "read")
        assert AUDIT.name not in bus.declared


class Counted(MemoryBus):
    """Counts how often the topics are listed, and how often a dead letter topic is read."""

    def __init__(self) -> None:
        super().__init__()
        self.polls = 0
        self.read = 0

    def admin(self, *, client_id: str) -> MemoryAdmin:
        self.read += client_id == "hailbus-dlq"
        return CountedAdmin(self)


class CountedAdmin(MemoryAdmin):
    def __init__(self, bus: Counted) -> None:
        super().__init__(bus)
        self._counted = bus

    async def describe(self, topics: Sequence[str] | None = None) -> Mapping[str, TopicDescription]:
        self._counted.polls += topics is None
        return await super().describe(topics)


class AwayAdmin(MemoryAdmin):
    async def start(self) -> None:
        raise BrokerUnreachableError(bootstrap="memory", waited_s=4)


async def test_only_a_queue_that_changed_is_read_again() -> None:
    bus = Counted()
    async with town(bus) as here, surge(bus, "other"):
        spoil(bus, "one")
        await until_letters(bus, 1)
        await until_letters(bus, 1, "rides.v1.other-dlt")
        await here.waiting(2)
        bus.read = bus.polls = 0
        version = (await here.client.get("/api/letters")).headers["etag"]
        await until(lambda: asyncio.sleep(0, bus.polls), lambda polls: polls >= 3)
        assert bus.read == 0
        assert (await here.client.get("/api/letters")).headers["etag"] == version


async def test_a_cluster_that_goes_away_is_said_and_the_letters_stay() -> None:
    bus = MemoryBus()
    async with town(bus) as here:
        spoil(bus, "one")
        letter = await here.the_letter()
        good = mended(letter, here)
        admin, bus.admin = bus.admin, lambda *, client_id: AwayAdmin(bus)  # type: ignore[method-assign]  # a double
        refused = await here.post(letter["place"], "replay", {"value": good})
        assert refused.status_code == 503
        assert "look at the letter's status before you try again" in refused.json()["detail"]
        assert (await here.letter(letter["place"]))["status"] == "waiting"
        bus.admin = admin  # type: ignore[method-assign]  # a double
        assert (await here.post(letter["place"], "replay", {"value": good})).status_code == 200
