"""Settings from environment variables, where a misspelt name stops the start."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from hailbus._extras import extra

with extra("service"):
    from pydantic_settings import BaseSettings

from hailbus.errors import ConfigurationError

__all__ = ["read_settings"]

S = TypeVar("S", bound=BaseSettings)


def read_settings(cls: type[S], environment: Mapping[str, str] | None = None) -> S:
    """Read a process' settings from the environment.

    Args:
        cls: With an `env_prefix` of its own in `model_config`, as `BOOKING_`.
        environment: In place of the process' own, for tests.

    Raises:
        ConfigurationError: A value is wrong, or a variable with the prefix is unknown: a misspelt one would otherwise
            be as good as absent.
    """
    names = environment if environment is not None else os.environ
    prefix = cls.model_config.get("env_prefix", "")
    assert prefix, f"{cls.__name__} needs an env_prefix"
    given = {name: value for name, value in names.items() if name.upper().startswith(prefix)}
    known = {prefix + name.upper() for name in cls.model_fields}
    unknown = sorted(name for name in given if name.upper() not in known)
    if unknown:
        raise ConfigurationError(f"unknown setting {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    skips_empty = cls.model_config.get("env_ignore_empty", False)
    values = {name[len(prefix) :].lower(): value for name, value in given.items() if value or not skips_empty}
    try:
        return cls(**values)  # type: ignore[arg-type]  # pydantic parses the texts
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = prefix + "_".join(str(part) for part in first["loc"]).upper()
        raise ConfigurationError(f"{name}: {first['msg']}; set it in the environment") from error
