"""The file of regions that `BOOKING_REGIONS` names: TOML, the same for every process.

::

    [manhattan]
    address = "http://127.0.0.1:8001"
    cells = ["862a1072fffffff", "862a1008fffffff"]

    [outer]
    address = "http://127.0.0.1:8002"
    rest = true
"""

import tomllib
from pathlib import Path
from typing import Annotated

from hailbus import ConfigurationError
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from booking.config import Settings
from booking.domain.region import Realm, Region, Regions, RegionsError

_URL = Annotated[str, Field(pattern=r"^https?://[^/\s]+$")]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    address: _URL
    cells: frozenset[str] = frozenset()
    rest: bool = False


_FILE = TypeAdapter(dict[str, _Entry])


def read_regions(path: Path, *, setting: str = "BOOKING_REGIONS") -> Regions:
    """Return the regions of a file.

    Args:
        path: The file.
        setting: What names it, for the sentence of an error.

    Raises:
        ConfigurationError: It cannot be read, or a place would have no owner or two.
    """
    try:
        entries = _FILE.validate_python(tomllib.loads(path.read_text(encoding="utf-8")))
        return Regions(
            [
                Region(name=name, address=entry.address, cells=entry.cells, takes_rest=entry.rest)
                for name, entry in entries.items()
            ]
        )
    except OSError as error:
        message = f"{setting} {path} cannot be read: {error.strerror}; name a TOML file of regions"
        raise ConfigurationError(message) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = f"{setting} {path}: {place}: {first['msg']}"
        raise ConfigurationError(message) from error
    except (RegionsError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        message = f"{setting} {path}: {error}"
        raise ConfigurationError(message) from error


def realm_of(settings: Settings) -> Realm | None:
    """Return this process's region, `None` where one process serves the whole city.

    Raises:
        ConfigurationError: The region is not one of the file's, or its database is not PostgreSQL.
    """
    if settings.region is None and settings.regions is None:
        return None
    if settings.region is None or settings.regions is None:
        lacking = "BOOKING_REGION" if settings.region is None else "BOOKING_REGIONS"
        message = f"{lacking} is not set: set both BOOKING_REGION and BOOKING_REGIONS, or neither to serve everywhere"
        raise ConfigurationError(message)
    regions = read_regions(settings.regions)
    own = regions.named(settings.region)
    if own is None:
        names = ", ".join(region.name for region in regions.all)
        message = f"BOOKING_REGION={settings.region} is not in {settings.regions}, which has {names}"
        raise ConfigurationError(message)
    if not settings.database_url.get_secret_value().startswith("postgresql"):
        message = "BOOKING_REGION needs PostgreSQL, because regions share a database: set BOOKING_DATABASE_URL"
        raise ConfigurationError(message)
    return Realm(own=own, regions=regions)
