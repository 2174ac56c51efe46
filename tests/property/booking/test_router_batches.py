"""Updates that several regions do in rounds have the outcome that one process gives them, one after the other."""

from collections import defaultdict
from typing import Any

from booking.domain.region import Region, Regions
from booking.router.batch import Batch
from hypothesis import given
from hypothesis import strategies as st
from ride_events import cell

PLACES = {"a": (40.75, -73.98), "b": (40.65, -73.95), "c": (40.85, -73.88)}
REGIONS = Regions(
    [
        Region(name=name, address="", cells=frozenset(() if name == "c" else (cell(*place),)), takes_rest=name == "c")
        for name, place in PLACES.items()
    ]
)
DRIVERS = ("d", "e", "f")
REGION = st.sampled_from(sorted(PLACES))
DRIVER = st.sampled_from(DRIVERS)


def at(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    positions = st.builds(lambda name: dict(zip(("lat", "lng"), PLACES[name], strict=True)), REGION)
    return st.fixed_dictionaries({"kind": st.just(kind), "driver_id": DRIVER, "position": positions})


UPDATE = (
    at("online")
    | at("location")
    | st.fixed_dictionaries({"kind": st.just("offline"), "driver_id": DRIVER})
    | st.fixed_dictionaries({"kind": st.just("arrived"), "driver_id": DRIVER, "ride_id": REGION.map("{}.1".format)})
)
ONLINE = st.dictionaries(DRIVER, REGION)


class City:
    """Where drivers are online, and what was done in which order."""

    def __init__(self, online: dict[str, str]) -> None:
        self.online = dict(online)
        self.done: dict[str, list[Any]] = defaultdict(list)

    def do(self, region: str, update: Any) -> Any:
        """Do an update at a region, as booking would."""
        driver, kind = update["driver_id"], update["kind"]
        holder = self.online.get(driver)
        if kind == "online" and holder not in (None, region):
            return {"status": 409, "body": {}}
        if kind in ("location", "offline") and holder != region:
            return {"status": 409, "body": {}} if holder is None else {"status": 421, "body": {"owner": holder}}
        if kind == "online":
            self.online[driver] = region
        elif kind == "offline":
            del self.online[driver]
        self.done[driver].append(update)
        return {"status": 200, "body": {}}

    def owner(self, update: Any) -> str:
        """Return who would do the update if everybody knew everything."""
        if "ride_id" in update:
            return str(update["ride_id"].partition(".")[0])
        if update["kind"] == "online":
            place = update["position"]
            return REGIONS.of_cell(cell(place["lat"], place["lng"])).name
        return self.online.get(update["driver_id"], "c")


@given(updates=st.lists(UPDATE, min_size=1, max_size=12), online=ONLINE)
def test_rounds_have_the_outcome_of_one_after_the_other(updates: list[dict[str, Any]], online: dict[str, str]) -> None:
    one = City(online)
    expected = [one.do(one.owner(update), update) for update in updates]
    several = City(online)
    batch = Batch(updates, REGIONS)
    rounds = 0
    while not batch.is_done:
        rounds += 1
        assert rounds <= 2 * len(updates)
        parts = batch.parts()
        assert len({part.region.name for part in parts}) == len(parts)
        of_driver: dict[str, set[str]] = defaultdict(set)
        for part in parts:
            for place in part.places:
                of_driver[updates[place]["driver_id"]].add(part.region.name)
        assert all(len(regions) == 1 for regions in of_driver.values())  # so parts may run side by side
        # The last part first: their order must not matter.
        answers = [
            (part, [several.do(part.region.name, updates[place]) for place in part.places]) for part in reversed(parts)
        ]
        batch.take(answers)
    assert batch.results == expected
    assert several.online == one.online
    assert several.done == one.done
