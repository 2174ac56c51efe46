"""The entry point of the command `hailbus`, which also exists where its extra is not installed."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command, or print which extra it needs."""
    from hailbus.errors import MissingExtraError

    try:
        from hailbus.cli import main as command
    except MissingExtraError as error:
        print(f"hailbus: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    command()


if __name__ == "__main__":
    main()
