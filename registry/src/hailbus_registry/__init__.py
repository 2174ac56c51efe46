"""A schema registry with Confluent's REST interface that keeps its state in a compacted topic."""

from hailbus_registry.server import create_app

__all__ = ["create_app"]
