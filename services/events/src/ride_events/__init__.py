"""The ride-hailing example's published language: one module per topic group, every topic declared once."""

from hailbus import Catalogue

from ride_events import bikes, drivers, payments, pricing, quotes, recommendations, rides, timers
from ride_events.geo import Cell, LatLng, cell
from ride_events.money import Money

CATALOGUE = Catalogue.of(quotes, rides, drivers, pricing, recommendations, payments, timers, bikes)
"""Every event of the example, by type and version."""

TOPICS = CATALOGUE.topics
"""Every topic of the example, sorted by name."""

__all__ = ["CATALOGUE", "TOPICS", "Cell", "LatLng", "Money", "cell"]
