"""The router's settings: environment variables with the prefix ROUTER_."""

from pathlib import Path
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """The router's settings, frozen."""

    model_config = SettingsConfigDict(env_prefix="ROUTER_", frozen=True, extra="forbid")

    regions: Path = Field(description="TOML file of all regions, the same as BOOKING_REGIONS")
    listen: str = Field(default="127.0.0.1:8000", description="HOST:PORT to serve at; port 0 takes a free one")
    in_flight: int = Field(default=512, ge=1, le=100_000, description="requests under way to one region")
    answer_within_s: float = Field(default=75.0, gt=0, le=3_600, description="above BOOKING_COMMIT_TIMEOUT_S")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
