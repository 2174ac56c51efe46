"""The bike service's settings: environment variables with the prefix BIKE_."""

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Literal

from hailbus import ConfigurationError
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from bike.app.ports import Policy

PREFIX = "BIKE_"


class Settings(BaseSettings):
    """The bike service's settings, frozen. Times are in seconds of the clock in use."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    bootstrap_servers: str = Field(min_length=1, description="HOST:PORT of the cluster, several joined by commas")
    database_url: SecretStr = Field(
        default=SecretStr("sqlite+aiosqlite:///bike.db"),
        description="sqlite+aiosqlite:///PATH or postgresql+asyncpg://USER:PASSWORD@HOST/NAME",
    )
    listen: str = Field(default="127.0.0.1:8002", pattern=r"^(\[[0-9a-fA-F:]+\]|[^:]+):[0-9]{1,5}$")
    clock: Literal["wall", "event"] = "wall"
    reservation_ttl_s: int = Field(default=600, ge=1, le=86_400)
    idempotency_keep_h: int = Field(default=24, ge=1, le=24 * 30)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def policy(self) -> Policy:
        """Return the numbers for the decisions."""
        return Policy(reservation_ttl=timedelta(seconds=self.reservation_ttl_s))

    def address(self) -> tuple[str, int]:
        """Return host and port to listen on."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)


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
