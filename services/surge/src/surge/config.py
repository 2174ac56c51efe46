"""Settings of the surge worker: environment variables with the prefix SURGE_."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from surge.adapters.calendars import calendar_of


class Settings(BaseSettings):
    """The worker's settings, frozen."""

    model_config = SettingsConfigDict(env_prefix="SURGE_", frozen=True, extra="forbid")

    @field_validator("time_zone")
    @classmethod
    def _is_a_time_zone(cls, value: str) -> str:
        calendar_of(value, "")
        return value

    @field_validator("holidays")
    @classmethod
    def _has_known_holidays(cls, value: str) -> str:
        calendar_of("UTC", value)
        return value

    bootstrap_servers: str = Field(min_length=1, description="HOST:PORT of the cluster, several joined by commas")
    database_url: SecretStr = Field(
        default=SecretStr("sqlite:///surge.db"), description="sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME"
    )
    state_dir: Path = Field(
        default=Path(".surge"), description="folder for snapshots of what the forecasts have learnt"
    )
    clock: Literal["wall", "event"] = Field(
        default="wall",
        description="wall for a live city, whose minutes also end when nothing happens; event for a replay",
    )
    group: str = Field(
        default="surge", pattern=r"^[a-zA-Z0-9._-]{1,100}$", description="consumer group, and owner of the rows"
    )
    instance: str = Field(
        default="surge",
        pattern=r"^[a-zA-Z0-9._-]{1,100}$",
        description="member of the group; another process with the same one takes its place",
    )
    batch_max: int = Field(default=1000, ge=1, le=10_000, description="events that are settled together at most")
    batch_wait_ms: int = Field(default=200, ge=1, le=5_000, description="how long a batch waits for more events")
    idle_after_ms: int = Field(
        default=3_000, ge=100, le=600_000, description="a partition that is silent for so long is not waited for"
    )
    session_timeout_ms: int = Field(
        default=10_000, ge=6_000, le=300_000, description="a worker that is silent for so long loses its partitions"
    )
    connect_timeout_s: float = Field(default=60.0, gt=0, description="how long the start waits for a broker")
    forecast_least_pickups: float = Field(
        default=3.0,
        ge=0,
        description="cells with fewer recent pickups, which halve each day, get no forecast; the same for free drivers",
    )
    time_zone: str = Field(default="UTC", description="the city's time zone, such as America/New_York")
    holidays: str = Field(
        default="", description="whose public holidays are like Sundays, such as US or US-NY; nobody's if empty"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="what stderr shows")
