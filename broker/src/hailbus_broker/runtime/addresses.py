"""Reads addresses of the settings: listeners, voters, controllers to ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from hailbus_broker.runtime.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable


def parse_listeners(text: str, option: str) -> dict[str, tuple[str, int]]:
    """`NAME://HOST:PORT,…` → host and port by name.

    Raises:
        StartError: The text is something else.
    """
    found: dict[str, tuple[str, int]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, separator, address = item.partition("://")
        host, colon, port = address.rpartition(":")
        if not separator or not colon or not port.isdigit() or int(port) > 65535:
            raise StartError(f"{option}: {item!r} is not NAME://HOST:PORT")
        if name in found:
            raise StartError(f"{option}: {name} stands there twice")
        found[name] = (host.strip("[]"), int(port))
    return found


def check_protocols(text: str | None, names: Iterable[str]) -> None:
    """Refuse a listener that asks for another protocol than the one that is offered.

    Raises:
        StartError: One does, or the text is no map.
    """
    protocols = {}
    for item in filter(None, (part.strip() for part in (text or "").split(","))):
        name, colon, protocol = item.partition(":")
        if not colon:
            raise StartError(f"listener.security.protocol.map: {item!r} is not NAME:PROTOCOL")
        protocols[name] = protocol
    for name in names:
        protocol = protocols.get(name, name if name in {"SSL", "SASL_PLAINTEXT", "SASL_SSL"} else "PLAINTEXT")
        if protocol != "PLAINTEXT":
            raise StartError(
                f"listener {name} asks for {protocol}, and only PLAINTEXT is offered so far: give it PLAINTEXT"
            )


def parse_names(text: str | None) -> tuple[str, ...]:
    """Return the names of a comma-separated list, in their order."""
    return tuple(filter(None, (part.strip() for part in (text or "").split(","))))


def parse_voters(
    text: str,
    listener: str,
    option: str = "controller.quorum.voters",
    malformed: str | None = None,
) -> VoterSet:
    """`ID@HOST:PORT,…` → the voters, whose endpoints get the name of the controllers' listener.

    Args:
        text: The list.
        listener: Name of the listener.
        option: For errors: what has the list.
        malformed: What an error says of an entry of another form.

    Raises:
        StartError: The text is something else.
    """
    voters: dict[int, Voter] = {}
    for item in parse_names(text):
        number, at, address = item.partition("@")
        host, colon, port = address.rpartition(":")
        if not at or not number.isdecimal() or not colon or not host or not _is_port(port):
            raise StartError(f"{option}: {malformed or f'{item!r} is not ID@HOST:PORT, for example 1@localhost:9093'}")
        if host in {"0.0.0.0", "[::]", "::"}:  # noqa: S104 - compared, not bound
            raise StartError(f"{option}: other nodes cannot connect to {host}; name the host of {item!r}")
        node_id = int(number)
        if node_id in voters:
            raise StartError(f"{option} names node {node_id} twice; give each voter an id of its own")
        voters[node_id] = Voter(ReplicaKey(node_id), (Endpoint(listener, host.strip("[]"), int(port)),))
    return VoterSet(voters.values())


def parse_servers(text: str, listener: str) -> tuple[Endpoint, ...]:
    """`HOST:PORT,…` → endpoints of controllers.

    Raises:
        StartError: The text is something else.
    """
    found = []
    for item in parse_names(text):
        host, colon, port = item.rpartition(":")
        if not colon or not host or not _is_port(port):
            raise StartError(f"controller.quorum.bootstrap.servers: {item!r} is not HOST:PORT")
        found.append(Endpoint(listener, host.strip("[]"), int(port)))
    return tuple(found)


def _is_port(text: str) -> bool:
    return text.isdecimal() and 0 < int(text) <= 65535
