"""The logger's settings: environment variables with the prefix LOGGER_."""

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """The logger's settings, frozen."""

    model_config = SettingsConfigDict(env_prefix="LOGGER_", frozen=True, extra="forbid")

    bootstrap_servers: str = Field(min_length=1, description="HOST:PORT of the cluster, several joined by commas")
    database_url: SecretStr = Field(
        default=SecretStr("sqlite+aiosqlite:///event-logger.db"),
        description="sqlite+aiosqlite:///PATH or postgresql+asyncpg://USER:PASSWORD@HOST/NAME",
    )
    file: Path = Path("events.jsonl")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
