"""The services behind an application factory, for commands that describe them and start nothing."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeGuard

from hailbus._transport import Bus
from hailbus.errors import ConfigurationError
from hailbus.service import Service, services_made
from hailbus.testing import MemoryBus

__all__ = ["is_factory", "services_made_by"]


def is_factory(found: object) -> TypeGuard[Callable[..., object]]:
    """Whether it is a function, which is to be called for what it makes."""
    return inspect.isroutine(found) or isinstance(found, partial)


def services_made_by(factory: Callable[..., object], name: str) -> list[Service]:
    """The services that a factory makes, or returns; they are not started.

    What it must be given: settings are read from the environment, a bus is one in memory, and anything else is a
    stand-in that it may hand on and not use.

    Args:
        factory: As for uvicorn's `--factory`.
        name: Of the factory, for errors.

    Raises:
        ConfigurationError: It makes no service, is a coroutine, a setting is wrong, or it uses a stand-in.
    """
    try:
        parameters = inspect.signature(factory, eval_str=True).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        message = f"the parameters of {name!r} cannot be read: {error}"
        raise ConfigurationError(message) from error
    if inspect.iscoroutinefunction(factory):
        message = f"{name!r} is a coroutine; give a factory that only makes the service"
        raise ConfigurationError(message)
    given: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.default is not parameter.empty or parameter.kind in {
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        }:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = _argument(parameter, name)
        else:
            given.append(_argument(parameter, name))
    with services_made() as made:
        found = factory(*given, **named)
    if isinstance(found, Service) and found not in made:
        made.append(found)
    if not made:
        message = f"{name!r} makes no hailbus.Service"
        raise ConfigurationError(message)
    return made


def _argument(parameter: inspect.Parameter, factory: str) -> object:
    wanted = parameter.annotation
    settings = sys.modules.get("pydantic_settings")  # a factory that takes settings has imported it
    if settings is not None and isinstance(wanted, type) and issubclass(wanted, settings.BaseSettings):
        from hailbus.settings import read_settings

        return read_settings(wanted)
    if wanted is Bus:
        return MemoryBus()
    return _StandIn(parameter.name, factory)


class _StandIn:
    """For what a factory hands on to its handlers, which are never called here."""

    def __init__(self, parameter: str, factory: str) -> None:
        self.__parameter = parameter
        self.__factory = factory

    def __refuse(self, *_: object, **__: object) -> NoReturn:
        message = (
            f"{self.__factory!r} uses its parameter {self.__parameter!r}, which is neither settings nor a bus; "
            "give it a default, or name a factory that makes it itself"
        )
        raise ConfigurationError(message)

    __getattr__ = __iter__ = __call__ = __len__ = __getitem__ = __bool__ = __refuse
