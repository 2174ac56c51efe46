"""The dashboard's settings: environment variables with the prefix DASHBOARD_."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """The dashboard's settings, frozen."""

    model_config = SettingsConfigDict(env_prefix="DASHBOARD_", frozen=True, extra="forbid", env_ignore_empty=True)

    bootstrap_servers: str = Field(min_length=1, description="HOST:PORT of the cluster, several joined by commas")
    listen: str = Field(default="127.0.0.1:8080", description="HOST:PORT to serve at; port 0 takes a free one")
    booking_url: str | None = Field(
        default=None, pattern=r"^https?://", description="to compare a ride with booking's own word"
    )
    booking_token: SecretStr | None = Field(default=None, description="an operator's token for booking")
    ledger_file: Path | None = Field(default=None, description="JSON that the demo writes")
    lake_file: Path | None = Field(default=None, description="JSON that the lake sink writes")
    faults_url: str | None = Field(
        default=None, pattern=r"^http://", description="the demo's launcher, which causes the faults of the page"
    )
    faults_token: SecretStr | None = Field(default=None, description="the launcher's token")
    letters: Literal["read", "replay"] = Field(
        default="read", description="whether the page of dead letters only shows them, or replays and drops them too"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _faults_have_a_token(self) -> Self:
        if (self.faults_url is None) != (self.faults_token is None):
            raise ValueError("faults_url and faults_token go together: give both, or neither")
        return self
