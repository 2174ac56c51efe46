"""The provider's settings: environment variables with the prefix PROVIDER_."""

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from payment_provider.domain.faults import Faults, Outage


class Settings(BaseSettings):
    """The provider's settings, frozen."""

    model_config = SettingsConfigDict(env_prefix="PROVIDER_", frozen=True, extra="forbid")

    database_url: SecretStr = Field(
        default=SecretStr("sqlite+aiosqlite:///payment-provider.db"),
        description="sqlite+aiosqlite:///PATH or postgresql+asyncpg://USER:PASSWORD@HOST/NAME",
    )
    listen: str = Field(default="127.0.0.1:8004", description="HOST:PORT to serve at; port 0 takes a free one")
    decline_percent: float = Field(default=0.0, ge=0, le=100)
    seed: int = Field(default=1, description="Decides which requests are declined")
    latency_ms: int = Field(default=0, ge=0, le=60_000)
    outage: Outage = Outage.NONE
    hang_s: float = Field(default=30.0, ge=0, le=600)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def faults(self) -> Faults:
        """Return the faults that are switched on at the start."""
        return Faults(
            decline_percent=self.decline_percent,
            seed=self.seed,
            latency_ms=self.latency_ms,
            outage=self.outage,
            hang_s=self.hang_s,
        )
