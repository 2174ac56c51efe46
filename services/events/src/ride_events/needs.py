"""Which fields of these events consumers read: the files in `data/needs`, which `pytest --record-needs` writes."""

from importlib.resources import as_file, files

from hailbus.needs import Need, read_needs


def recorded_needs() -> tuple[Need, ...]:
    """Return the needs of all consumers, sorted by consumer and event type."""
    with as_file(files("ride_events").joinpath("data/needs")) as folder:
        return tuple(read_needs(folder))


__all__ = ["recorded_needs"]
