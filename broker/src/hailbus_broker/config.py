"""Where settings come from: defaults, a properties file, BROKER_ variables, `--set`; the later one wins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.cluster.options import BROKER_OPTIONS, BrokerConfig
from hailbus_broker.protocol.errors import ApiError
from hailbus_broker.runtime.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PREFIX = "BROKER_"


def load(
    *,
    file_text: str | None = None,
    environment: Mapping[str, str],
    settings: Sequence[str] = (),
    flags: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """Settings from all places.

    Args:
        file_text: `name=value` lines, as in Kafka's server.properties.
        environment: Of the process; `BROKER_LOG_DIRS` is `log.dirs`.
        settings: `name=value` each, from `--set`.
        flags: What other flags stand for.

    Raises:
        StartError: A name is unknown or a value does not fit.
    """
    values: dict[str, str] = {}
    for line in (file_text or "").splitlines():
        text = line.strip()
        if text and not text.startswith(("#", "!")):
            values.update([_pair(text, "the properties file")])
    variables = {PREFIX + name.replace(".", "_").upper(): name for name in BROKER_OPTIONS}
    for variable, value in environment.items():
        if variable.startswith(PREFIX):
            if variable not in variables:
                raise StartError(f"there is no option for the variable {variable}; unset it or correct its name")
            values[variables[variable]] = value
    for setting in settings:
        values.update([_pair(setting, "--set")])
    values.update(flags or {})
    if "log.dir" in values:
        values.setdefault("log.dirs", values.pop("log.dir"))
    try:
        return BrokerConfig(values)
    except ApiError as error:
        raise StartError(str(error)) from error


def _pair(text: str, place: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise StartError(f"{place}: {text!r} is not name=value")
    return name.strip(), value.strip()
