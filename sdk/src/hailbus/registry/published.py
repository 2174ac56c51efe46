"""The contracts that a schema registry has, as `hailbus check --against URL` compares with them."""

from __future__ import annotations

from collections.abc import Collection

from hailbus.contract import Contract
from hailbus.errors import ConfigurationError, RegistryRefusedError
from hailbus.registry.client import SchemaRegistry
from hailbus.registry.schemas import contract_from

__all__ = ["published_states"]


async def published_states(registry: SchemaRegistry, topics: Collection[str]) -> list[list[Contract]]:
    """States of the contracts on some topics, oldest first; the last has the newest schema of each event.

    Subjects that other programs have registered are passed over.

    Raises:
        ConfigurationError: There are no contracts of these topics in the registry.
    """
    histories: list[list[Contract]] = []
    for subject in await registry.subjects():
        if not any(subject.startswith(f"{topic}-") for topic in topics):
            continue
        found: list[Contract] = []
        for number in await registry.versions(subject):
            try:
                registered = await registry.version(subject, number)
            except RegistryRefusedError:
                continue  # deleted meanwhile
            contract = contract_from(registered.schema)
            if contract is not None:
                found.append(contract)
        if found:
            histories.append(found)
    if not histories:
        message = (
            f"the registry at {', '.join(registry.urls)} has no events of {', '.join(sorted(topics))}; "
            "`hailbus registry register MODULE` puts them there"
        )
        raise ConfigurationError(message)
    longest = max(len(history) for history in histories)
    return [[history[max(len(history) - back, 0)] for history in histories] for back in range(longest, 0, -1)]
