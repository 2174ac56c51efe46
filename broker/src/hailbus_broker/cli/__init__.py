"""The command `hailbus-broker`."""

from hailbus_broker.cli.main import main

__all__ = ["main"]
