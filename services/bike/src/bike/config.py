"""The bike service's settings: environment variables with the prefix BIKE_."""

from datetime import timedelta
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from bike.app.ports import Policy


class Settings(BaseSettings):
    """The bike service's settings, frozen. Times are in seconds of the clock in use."""

    model_config = SettingsConfigDict(env_prefix="BIKE_", frozen=True, extra="forbid")

    bootstrap_servers: str = Field(min_length=1, description="HOST:PORT of the cluster, several joined by commas")
    database_url: SecretStr = Field(
        default=SecretStr("sqlite+aiosqlite:///bike.db"),
        description="sqlite+aiosqlite:///PATH or postgresql+asyncpg://USER:PASSWORD@HOST/NAME",
    )
    listen: str = Field(default="127.0.0.1:8002", description="HOST:PORT to serve at; port 0 takes a free one")
    clock: Literal["wall", "event"] = "wall"
    reservation_ttl_s: int = Field(default=600, ge=1, le=86_400)
    idempotency_keep_h: int = Field(default=24, ge=1, le=24 * 30)
    keep_d: int = Field(default=90, ge=1, le=3_650, description="how long rows of the outbox stay")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def policy(self) -> Policy:
        """Return the numbers for the decisions."""
        return Policy(reservation_ttl=timedelta(seconds=self.reservation_ttl_s))
