"""Booking's settings: environment variables with the prefix BOOKING_."""

from datetime import timedelta
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from booking.app.policy import Policy


class Settings(BaseSettings):
    """Booking's settings, frozen. Times are in seconds of the clock in use."""

    model_config = SettingsConfigDict(env_prefix="BOOKING_", frozen=True, extra="forbid")

    bootstrap_servers: str = Field(min_length=1, description="HOST:PORT of the cluster, several joined by commas")
    database_url: SecretStr = Field(
        default=SecretStr("sqlite+aiosqlite:///booking.db"),
        description="sqlite+aiosqlite:///PATH or postgresql+asyncpg://USER:PASSWORD@HOST/NAME",
    )
    listen: str = Field(default="127.0.0.1:8001", description="HOST:PORT to serve at; port 0 takes a free one")
    region: str | None = Field(default=None, description="the region of this process; needs PostgreSQL")
    regions: Path | None = Field(default=None, description="TOML file of all regions, the same for every process")
    clock: Literal["wall", "event"] = "wall"
    auth: Literal["on", "off"] = Field(default="on", description="`off` only at a loopback address")
    auth_keys: Path | None = Field(default=None, description="JWKS file of the keys that sign tokens")
    auth_issuer: str | None = Field(default=None, min_length=1, description="the `iss` that tokens must have")
    auth_audience: str | None = Field(default=None, min_length=1, description="the `aud` that tokens must have")
    auth_leeway_s: int = Field(default=30, ge=0, le=300)
    rate_per_s: float = Field(default=200.0, gt=0, le=1_000_000, allow_inf_nan=False)
    rate_burst: int = Field(default=400, ge=1, le=1_000_000)
    quote_ttl_s: int = Field(default=120, ge=1, le=86_400)
    match_timeout_s: int = Field(default=300, ge=1, le=86_400)
    partner_wait_s: int = Field(default=120, ge=1, le=86_400)
    no_show_s: int = Field(default=300, ge=1, le=86_400)
    pickup_grace_s: int = Field(default=600, ge=1, le=86_400)
    ride_grace_s: int = Field(default=14_400, ge=1, le=86_400)
    silent_after_s: int = Field(default=30, ge=1, le=604_800, description="drivers not heard of get no ride")
    match_rings: int = Field(default=8, ge=0, le=30)
    max_redispatches: int = Field(default=3, ge=0, le=3)
    idempotency_keep_h: int = Field(default=24, ge=1, le=24 * 30)
    commit_timeout_s: float = Field(default=60.0, gt=0, le=3_600, description="a longer commit is cancelled")
    keep_d: int = Field(default=90, ge=1, le=3_650, description="how long rows of outbox and inbox stay")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def policy(self) -> Policy:
        """Return the numbers for the decisions."""
        return Policy(
            quote_ttl=timedelta(seconds=self.quote_ttl_s),
            match_timeout=timedelta(seconds=self.match_timeout_s),
            partner_wait=timedelta(seconds=self.partner_wait_s),
            no_show_after=timedelta(seconds=self.no_show_s),
            pickup_grace=timedelta(seconds=self.pickup_grace_s),
            ride_grace=timedelta(seconds=self.ride_grace_s),
            silent_after=timedelta(seconds=self.silent_after_s),
            match_rings=self.match_rings,
            max_redispatches=self.max_redispatches,
        )
