"""Places: coordinates and the H3 cells that demand, supply and prices are counted in."""

from typing import Annotated

import h3
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

PRICING_RESOLUTION = 8
"""H3 resolution of demand, supply and surge: 0.737 km² on average."""
ROLL_UP_RESOLUTION = 7
"""H3 resolution that sparse cells are summed up to: 5.16 km² on average."""


def _valid_cell(value: str) -> str:
    if not h3.is_valid_cell(value):
        raise ValueError(f"{value!r} is no H3 cell: give its 15 hexadecimal digits, as in '882a100d25fffff'")
    return value


Cell = Annotated[str, AfterValidator(_valid_cell)]
"""An H3 cell in hexadecimal digits."""


class LatLng(BaseModel):
    """A place in WGS-84 degrees."""

    model_config = ConfigDict(frozen=True)

    lat: float = Field(ge=-90, le=90)
    lng: float = Field(ge=-180, le=180)

    def cell(self, resolution: int = PRICING_RESOLUTION) -> str:
        """Return the H3 cell of this place at `resolution`."""
        return cell(self.lat, self.lng, resolution)


def cell(lat: float, lng: float, resolution: int = PRICING_RESOLUTION) -> str:
    """Return the H3 cell, in hexadecimal digits, that holds a place given in WGS-84 degrees."""
    return str(h3.latlng_to_cell(lat, lng, resolution))
