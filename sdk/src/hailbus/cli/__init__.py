"""The command `hailbus`."""

from hailbus._extras import extra

with extra("cli"):
    from hailbus.cli.main import app, main

__all__ = ["app", "main"]
