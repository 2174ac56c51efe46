"""What the page gets: a whole state when it comes, then what changed, as compact JSON."""

import time
from typing import Any, Final

from dashboard.adapters.files import JsonFile
from dashboard.adapters.letters import Letters
from dashboard.adapters.nodes import Nodes
from dashboard.adapters.watch import TOPIC_NAMES, Watch, as_json, wall_ms
from dashboard.domain.city import City
from dashboard.domain.cluster import Cluster, topics_of
from dashboard.domain.demand import Scores
from dashboard.domain.health import GroupState, Health, ProcessState, judge
from dashboard.domain.rides import Ride
from dashboard.hexagons import is_land, name_of, shape

Json = dict[str, Any]  # Any: JSON
_RIDES_SHOWN: Final = 4_000
_SLOW_EVERY: Final = 4  # ticks
_LEDGER_FIELDS: Final = ("phase", "so_far", "balanced", "lines", "left_out", "audited_s_ago", "sabotage")
"""What the page shows of the demo's ledger; the demo writes all figures of its run beside them."""
_PROCESSES_FRESH_S: Final = 20.0
"""How old the demo's file may be for what it says of its processes to be shown."""


class View:
    """Turns the watch's state into messages. `tick` every 250 ms; `whole` at any time."""

    def __init__(
        self,
        watch: Watch,
        nodes: Nodes,
        letters: Letters,
        *,
        ledger: JsonFile,
        lake: JsonFile,
        has_faults: bool = False,
    ) -> None:
        self._watch = watch
        self._nodes = nodes
        self._letters = letters
        self._cluster_sent: Cluster | None = None
        self._ledger = ledger
        self._lake = lake
        self._has_faults = has_faults
        self._city = watch.city
        self._rate = 0.0
        self._last_event_ms = 0
        self._last_s = time.monotonic()
        self._ticks = 0

    def whole(self) -> Json:
        """Return everything."""
        city = self._watch.city
        rides = list(city.rides.open.values())[-_RIDES_SHOWN:]
        return {
            **self._clock(),
            **self._slow(),
            "full": self.full_ledger(),
            "cluster": self.cluster(),
            "faults": self._has_faults,
            "cells": [_cell(city, cell) for cell in city.cells],
            "shapes": [shape(cell) for cell in city.cells if not is_land(cell)],
            "rides": [_ride(ride) for ride in rides],
            "cars": [_car(city, number) for number in city.cars.places],
            "latest_ended": [_ride(ride) for ride in city.rides.latest_ended],
        }

    def tick(self) -> tuple[Json, bool]:
        """Return what changed since the last tick, and whether all must begin anew as the log is read again."""
        city = self._watch.city
        city.flow.tick()
        self._measure_rate(city)
        is_new = city is not self._city
        self._city = city
        self._ticks += 1
        message = self._clock()
        if self._ticks % _SLOW_EVERY == 0:
            self._lake.refresh()
            message |= self._slow()
            if city.cars.changed:
                message["cars"] = [_car(city, number) for number in city.cars.changed]
                city.cars.changed.clear()
            if self._ledger.refresh():
                message["full"] = self.full_ledger()
            if self._nodes.cluster != self._cluster_sent:
                self._cluster_sent = self._nodes.cluster
                message["cluster"] = self.cluster()
        if city.changed_cells:
            message["cells"] = [_cell(city, cell) for cell in city.changed_cells]
            outside = [shape(cell) for cell in city.changed_cells if not is_land(cell)]
            if outside:
                message["shapes"] = outside
        rides = city.rides
        if rides.changed:
            # In the order of their requests, so that every page lists them alike.
            changed = [ride for ride_id, ride in rides.open.items() if ride_id in rides.changed]
            message["rides"] = [_ride(ride) for ride in changed[-_RIDES_SHOWN:]]
        if rides.ended:
            message["ended"] = [[ride_id, phase] for ride_id, phase in rides.ended[-_RIDES_SHOWN:]]
        city.changed_cells.clear()
        rides.changed.clear()
        rides.ended.clear()
        return message, is_new

    def ledger(self) -> Json:
        """Return how many rides there are by the log."""
        city = self._watch.city
        counts = city.rides.counts
        return {
            "requested": counts.requested,
            "completed": counts.completed,
            "cancelled": counts.cancelled,
            "unmatched": counts.unmatched,
            "in_flight": len(city.rides.open),
            "unknown": counts.unknown,
            "repeated": counts.repeated,
        }

    def full_ledger(self) -> Json:
        """Return the lines of the demo's ledger and its verdict as the demo wrote them, or why there are none."""
        content = self._ledger.content
        return {
            "expected": self._ledger.path is not None,
            "error": self._ledger.error,
            "content": None if content is None else {name: content.get(name) for name in _LEDGER_FIELDS},
        }

    def cluster(self) -> Json | None:
        """Return brokers, and leader and replicas of each partition; `None` before the cluster described itself."""
        found = self._nodes.cluster
        return None if found is None else _cluster(found)

    def cluster_age_s(self) -> float | None:
        """Return how many seconds ago the cluster described itself."""
        return self._nodes.age_s()

    def health(self) -> Json:
        """Return the worst truth in words, the others, and a chip for each process and group."""
        return _health(
            judge(
                broker=self._watch.status.broker,
                cluster=self._nodes.cluster,
                cluster_age_s=self.cluster_age_s(),
                groups=[
                    GroupState(group=group.group, seconds=group.seconds, progress=group.progress)
                    for group in self._watch.groups
                ],
                processes=self._processes(),
                unread=self._watch.status.behind,
                is_unbalanced=(self._ledger.content or {}).get("balanced") is False,
            )
        )

    def _processes(self) -> list[ProcessState]:
        age_s = self._ledger.age_s()
        if self._ledger.content is None or age_s is None or age_s > _PROCESSES_FRESH_S:
            return []
        found = self._ledger.content.get("processes")
        if not isinstance(found, list):
            return []
        return [
            ProcessState(name=str(one["name"]), state=str(one["state"]), restarts=int(one.get("restarts") or 0))
            for one in found
            if isinstance(one, dict) and "name" in one and "state" in one
        ]

    def lag(self) -> list[Json]:
        """Return each group's lag."""
        return [as_json(group) for group in self._watch.groups]

    def _measure_rate(self, city: City) -> None:
        now_s = time.monotonic()
        elapsed_s = max(now_s - self._last_s, 0.001)
        moved_ms = city.event_ms - self._last_event_ms if self._last_event_ms else 0
        rate = max(0.0, moved_ms / 1000 / elapsed_s)
        # A second of memory: rates jump with the batches in which events come.
        self._rate += (min(rate, 1e6) - self._rate) * min(1.0, elapsed_s / 1.5)
        self._last_s, self._last_event_ms = now_s, city.event_ms

    def _clock(self) -> Json:
        status = self._watch.status
        return {
            "t": self._watch.city.event_ms,
            "rate": round(self._rate, 2),
            "now": wall_ms(),
            "broker": [status.broker, status.detail, status.since_ms],
        }

    def _slow(self) -> Json:
        city = self._watch.city
        recommendations = city.recommendations
        behind = self._watch.status.behind
        return {
            "behind": behind,
            "records": city.records,
            "unreadable": city.unreadable,
            "drivers": [len(city.drivers), city.free_drivers],
            "topics": list(TOPIC_NAMES),
            "flow": [
                [source, topic, round(rate, 1), city.flow.totals[source, topic]]
                for (source, topic), rate in sorted(city.flow.per_second().items())
            ],
            "groups": self.lag(),
            "health": self.health(),
            "cluster_age_s": self.cluster_age_s(),
            "letters": self._letters.waiting,
            "ledger": self.ledger(),
            "ledger_age_s": self._ledger.age_s(),
            "recommendations": {
                "served": recommendations.served,
                "chosen": recommendations.chosen,
                "chosen_first": recommendations.chosen_first,
                "recent": list(recommendations.recent),
            },
            "forecast": _forecast(city),
            "lake": {
                "expected": self._lake.path is not None,
                "error": self._lake.error,
                "progress": _lake(self._lake.content),
            },
        }


def _cluster(cluster: Cluster) -> Json:
    return {
        "id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "brokers": [
            {
                "id": broker.node_id,
                "address": broker.address,
                "rack": broker.rack,
                "up": broker.is_up,
                "controller": broker.is_controller,
                "leads": broker.leads,
                "replicas": broker.replicas,
                "in_sync": broker.in_sync,
            }
            for broker in cluster.brokers
        ],
        "topics": [
            [name, [[found.partition, found.leader, found.replicas, found.isr] for found in partitions]]
            for name, partitions in topics_of(cluster).items()
        ],
    }


def _health(health: Health) -> Json:
    return {
        "level": health.level,
        "words": health.words,
        "subject": health.subject,
        "others": [truth.words for truth in health.truths[1:]],
        "chips": [[chip.name, chip.level, chip.words, chip.about, chip.restarts] for chip in health.chips],
    }


def _forecast(city: City) -> Json | None:
    """Return the busiest cell's forecasts and the errors of all."""
    demand = city.demand
    cell = demand.shown()
    if cell is None:
        return None
    points = demand.points(cell)
    supply = city.supply.expected(cell, points[-1].forecast.issued_ms)
    return {
        "cell": cell,
        "zone": name_of(cell),
        **_scored(demand.scores),
        "supply": {
            "expected": None if supply is None else [round(level, 1) for level in (supply.p10, supply.p50, supply.p90)],
            **_scored(city.supply.scores),
        },
        "points": [
            [
                point.forecast.issued_ms,
                round(point.forecast.p10, 1),
                round(point.forecast.p50, 1),
                round(point.forecast.p90, 1),
                point.actual,
                point.naive,
            ]
            for point in points
        ],
    }


def _scored(scores: Scores) -> Json:
    mae = scores.mae
    return {"scored": scores.scored, "mae": None if mae is None else [round(error, 2) for error in mae]}


def _lake(content: Json | None) -> Json | None:
    if content is None:
        return None
    return {name: content.get(name) for name in ("state", "message", "rows", "lag_records", "updated_at")}


def _cell(city: City, cell: str) -> list[Any]:
    found = city.cells[cell]
    return [cell, found.multiplier, round(found.demand, 2), round(found.supply, 2), found.valid_until_ms]


def _car(city: City, number: int) -> list[float]:
    """Return a free car's number and place to about ten metres, and the number alone of one that is gone."""
    place = city.cars.places.get(number)
    return [number] if place is None else [number, round(place.lat, 4), round(place.lng, 4)]


def _ride(ride: Ride) -> list[Any]:
    return [
        ride.ride_id,
        ride.phase,
        round(ride.start.lat, 5),
        round(ride.start.lng, 5),
        round(ride.end.lat, 5),
        round(ride.end.lng, 5),
        ride.t0_ms,
        ride.t1_ms,
        round(ride.dropoff.lat, 5),
        round(ride.dropoff.lng, 5),
    ]


__all__ = ["View"]
