"""Settings of the surge worker: environment variables with the prefix SURGE_."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from hailbus import ConfigurationError
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "SURGE_"


class Settings(BaseSettings):
    """The worker's settings, frozen.

    `clock` says what event time is: `wall` for a live city, whose minutes also end when nothing happens; `event` for
    a replay, whose time comes from the events alone.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    bootstrap_servers: str = Field(min_length=1, description="HOST:PORT of the cluster, several joined by commas")
    database_url: SecretStr = Field(
        default=SecretStr("sqlite:///surge.db"), description="sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME"
    )
    state_dir: Path = Field(default=Path(".surge"), description="folder for the worker's files")
    clock: Literal["wall", "event"] = "wall"
    group: str = Field(default="surge", pattern=r"^[a-zA-Z0-9._-]{1,100}$")
    instance: str = Field(default="surge", pattern=r"^[a-zA-Z0-9._-]{1,100}$")
    batch_max: int = Field(default=1000, ge=1, le=10_000, description="events that are settled together at most")
    batch_wait_ms: int = Field(default=200, ge=1, le=5_000, description="how long a batch waits for more events")
    idle_after_ms: int = Field(default=3_000, ge=100, le=600_000)
    session_timeout_ms: int = Field(default=10_000, ge=6_000, le=300_000)
    connect_timeout_s: float = Field(default=60.0, gt=0, description="how long the start waits for a broker")
    forecast_least_mean: float = Field(default=0.5, ge=0, description="forecasts below this mean are not published")
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings from the environment.

    Raises:
        ConfigurationError: A value is wrong, or a variable with the prefix is unknown: a misspelt one would otherwise
            be as good as absent.
    """
    names = environment if environment is not None else os.environ
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    unknown = sorted(name for name in names if name.upper().startswith(PREFIX) and name.upper() not in known)
    if unknown:
        raise ConfigurationError(f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    given = {name[len(PREFIX) :].lower(): value for name, value in names.items() if name.upper().startswith(PREFIX)}
    try:
        return Settings(**given)  # type: ignore[arg-type]  # pydantic parses the texts
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = PREFIX + "_".join(str(part) for part in first["loc"]).upper()
        raise ConfigurationError(f"{name}: {first['msg']}; set it in the environment") from error
