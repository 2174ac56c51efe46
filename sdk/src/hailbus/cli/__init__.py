"""The command `hailbus`."""

from hailbus.cli.main import app, main

__all__ = ["app", "main"]
