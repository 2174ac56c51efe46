"""The example's events: against their published contracts, every published example, and what consumers need of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import ride_events
from hailbus.contract import changes, contract_of, examples_of, read_contracts, unreadable_examples
from hailbus.needs import unmet
from ride_events.needs import recorded_needs

TESTS = Path(__file__).parents[1]
CONTRACTS = TESTS.parents[1] / "services" / "events" / "contracts"


def test_the_contracts_are_those_that_were_published() -> None:
    today = [contract_of(cls) for cls in ride_events.CATALOGUE]
    found = changes(read_contracts(CONTRACTS), today)
    again = "hailbus check ride_events --write services/events/contracts"
    assert [str(f) for f in found] == [], f"see what breaks; where nothing does: {again}"


def test_every_example_ever_published_is_read_and_every_event_has_one() -> None:
    assert unreadable_examples(TESTS / "examples", ride_events.CATALOGUE) == []
    assert {cls for _, cls in examples_of(TESTS / "examples", ride_events.CATALOGUE)} == set(ride_events.CATALOGUE)


def test_consumers_get_what_they_need() -> None:
    needs = recorded_needs()
    assert {"booking", "dashboard", "recommender", "surge"} <= {need.consumer for need in needs}
    assert [str(f) for f in unmet(needs, ride_events.CATALOGUE)] == []


def test_a_need_that_events_no_longer_meet_is_found() -> None:
    need = next(n for n in recorded_needs() if (n.consumer, n.type) == ("recommender", "ride.requested"))
    assert "pickup.lat" in need.fields
    text = json.dumps(need.schema).replace('"lat"', '"latitude"')
    (finding, *_) = unmet([replace(need, schema=json.loads(text))], ride_events.CATALOGUE)
    assert finding.path == "dropoff.latitude"
    assert finding.sentence.startswith("recommender needs this field: it is not written")
    (gone,) = unmet([replace(need, type="ride.teleported")], ride_events.CATALOGUE)
    assert gone.sentence == "recommender needs it, and nobody publishes it any more"
    (unlike, *_) = unmet([replace(need, example={})], ride_events.CATALOGUE)
    assert unlike.sentence.startswith("recommender was tested with an example that is no such event any more")
