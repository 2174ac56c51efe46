"""The payment service's settings: environment variables with the prefix PAYMENT_."""

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from payment.adapters.streams.saga import Policy
from payment.domain.fees import Fees


class Settings(BaseSettings):
    """The payment service's settings, frozen."""

    model_config = SettingsConfigDict(env_prefix="PAYMENT_", frozen=True, extra="forbid")

    bootstrap_servers: str = Field(min_length=1, description="HOST:PORT of the cluster, several joined by commas")
    database_url: SecretStr = Field(
        default=SecretStr("sqlite+aiosqlite:///payment.db"),
        description="sqlite+aiosqlite:///PATH or postgresql+asyncpg://USER:PASSWORD@HOST/NAME",
    )
    listen: str = Field(default="127.0.0.1:8005", description="HOST:PORT to serve at; port 0 takes a free one")
    provider_url: str = Field(default="http://127.0.0.1:8004", description="Where the payment provider serves")
    provider_timeout_s: float = Field(default=5.0, gt=0, le=120)
    schema_registry_url: str | None = Field(
        default=None, description="where schemas are registered, several joined by commas; none: records name no schema"
    )
    schema_cache: Path = Field(default=Path("schemas"), description="a folder: with it a start needs no registry")
    clock: Literal["wall", "event"] = "wall"
    cancellation_fee_minor: int = Field(default=500, ge=0)
    free_cancellation_s: int = Field(default=120, ge=0, le=86_400)
    no_show_fee_minor: int = Field(default=500, ge=0)
    retry_first_s: float = Field(default=3_600, gt=0, le=30 * 86_400)
    retry_max_s: float = Field(default=86_400, gt=0, le=30 * 86_400)
    retry_limit: int = Field(default=10, ge=0, le=100)
    keep_d: int = Field(default=90, ge=1, le=3_650, description="how long rows of outbox and inbox stay")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def policy(self) -> Policy:
        """Return the numbers for the decisions."""
        return Policy(
            fees=Fees(
                cancellation_minor=self.cancellation_fee_minor,
                grace=timedelta(seconds=self.free_cancellation_s),
                no_show_minor=self.no_show_fee_minor,
            ),
            retry_first=timedelta(seconds=self.retry_first_s),
            retry_max=timedelta(seconds=self.retry_max_s),
            retry_limit=self.retry_limit,
            keeps_event_time=self.clock == "event",
        )
