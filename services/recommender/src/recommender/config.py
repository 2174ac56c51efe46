"""The recommender's settings: environment variables with the prefix RECOMMENDER_."""

from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """The recommender's settings, frozen."""

    model_config = SettingsConfigDict(env_prefix="RECOMMENDER_", frozen=True, extra="forbid")

    bootstrap_servers: str = Field(min_length=1, description="HOST:PORT of the cluster, several joined by commas")
    database_url: SecretStr = Field(
        default=SecretStr("sqlite:///recommender.db"),
        description="sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME",
    )
    listen: str = Field(default="127.0.0.1:8003", description="HOST:PORT to serve at; port 0 takes a free one")
    sources: str = Field(default="ride.completed", description="event types to learn from, joined by commas")
    journeys_at_most: int = Field(default=300_000, ge=1, description="how many journeys a start learns again")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def source_types(self) -> tuple[str, ...]:
        """Return the event types to learn from."""
        return tuple(dict.fromkeys(part.strip() for part in self.sources.split(",") if part.strip()))
