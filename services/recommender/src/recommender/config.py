"""The recommender's settings: environment variables with the prefix RECOMMENDER_."""

import os
from collections.abc import Mapping
from typing import Literal

from hailbus import ConfigurationError
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "RECOMMENDER_"


class Settings(BaseSettings):
    """The recommender's settings, frozen."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    bootstrap_servers: str = Field(min_length=1, description="HOST:PORT of the cluster, several joined by commas")
    database_url: SecretStr = Field(
        default=SecretStr("sqlite:///recommender.db"),
        description="sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME",
    )
    listen: str = Field(default="127.0.0.1:8003", pattern=r"^(\[[0-9a-fA-F:]+\]|[^:]+):[0-9]{1,5}$")
    sources: str = Field(default="ride.completed", description="event types to learn from, joined by commas")
    journeys_at_most: int = Field(default=300_000, ge=1, description="how many journeys a start learns again")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def address(self) -> tuple[str, int]:
        """Return host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    def source_types(self) -> tuple[str, ...]:
        """Return the event types to learn from."""
        return tuple(dict.fromkeys(part.strip() for part in self.sources.split(",") if part.strip()))


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
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = PREFIX + "_".join(str(part) for part in first["loc"]).upper()
        raise ConfigurationError(f"{name}: {first['msg']}; set it in the environment") from error


__all__ = ["PREFIX", "Settings", "read_settings"]
