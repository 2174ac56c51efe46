"""The logger's settings: environment variables with the prefix LOGGER_."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from hailbus import ConfigurationError
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "LOGGER_"


class Settings(BaseSettings):
    """The logger's settings, frozen."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    bootstrap_servers: str = Field(min_length=1, description="HOST:PORT of the cluster, several joined by commas")
    database_url: SecretStr = Field(
        default=SecretStr("sqlite+aiosqlite:///event-logger.db"),
        description="sqlite+aiosqlite:///PATH or postgresql+asyncpg://USER:PASSWORD@HOST/NAME",
    )
    file: Path = Path("events.jsonl")
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
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = PREFIX + "_".join(str(part) for part in first["loc"]).upper()
        raise ConfigurationError(f"{name}: {first['msg']}; set it in the environment") from error
