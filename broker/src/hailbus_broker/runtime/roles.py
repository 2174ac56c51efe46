"""What a node is in its cluster, by its settings: broker, controller, both, or a cluster by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.raft.settings import RaftSettings
from hailbus_broker.cluster.raft.voters import Endpoint, ReplicaKey, Voter, VoterSet
from hailbus_broker.runtime.addresses import parse_listeners, parse_names, parse_servers, parse_voters
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.metadata import QuorumSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hailbus_broker.cluster.options import BrokerConfig

BROKER: Final = "broker"
CONTROLLER: Final = "controller"
DEFAULT_LISTENER: Final = "PLAINTEXT"

_ONLY_IN_CLUSTERS: Final = (
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
    "controller.listener.names",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRoles:
    """What a node is.

    Attributes:
        is_standalone: Whether the node is a cluster by itself: the settings name no roles.
        is_broker: Whether it serves clients.
        is_controller: Whether it votes in the quorum, and may become the active controller.
        controller_listeners: Names of the listeners that controllers have; of a broker, those that it dials.
        inter_broker_listener: Name of the listener over which brokers ask each other.
        quorum: What the settings say about the quorum.
    """

    is_standalone: bool
    is_broker: bool
    is_controller: bool
    controller_listeners: tuple[str, ...]
    inter_broker_listener: str
    quorum: QuorumSettings


def node_id_of(config: BrokerConfig) -> int:
    """Return the number of a node: `node.id`, or else `broker.id`."""
    node_id: int = config["node.id"] if "node.id" in config.given else config["broker.id"]
    return node_id


def node_roles(config: BrokerConfig) -> NodeRoles:
    """Return what a node is.

    Raises:
        StartError: Settings contradict each other.
    """
    roles: tuple[str, ...] = config["process.roles"]
    if not roles:
        return _standalone(config)
    if len(set(roles)) != len(roles):
        raise StartError(f"process.roles names {roles[0]} twice; name each role once")
    node_id = node_id_of(config)
    if not {"node.id", "broker.id"} & set(config.given):
        raise StartError("process.roles is set, and node.id is not: give each node of the cluster an id of its own")
    is_broker, is_controller = BROKER in roles, CONTROLLER in roles
    names = parse_names(config["controller.listener.names"])
    if not names:
        raise StartError(
            "process.roles is set, and controller.listener.names is not: set it to CONTROLLER, for example"
        )
    quorum = _quorum(config, names[0])
    _check_voter(config, node_id, quorum.voters, is_controller=is_controller)
    listeners = parse_listeners(config["listeners"], "listeners")
    advertised = parse_listeners(config["advertised.listeners"] or "", "advertised.listeners")
    own = [name for name in names if name in listeners]
    _check_listeners(listeners, advertised, names, is_broker=is_broker, is_controller=is_controller)
    inter_broker = config["inter.broker.listener.name"] or DEFAULT_LISTENER
    if is_broker and (inter_broker in names or inter_broker not in listeners):
        brokers = ", ".join(name for name in listeners if name not in names)
        raise StartError(
            f"inter.broker.listener.name is {inter_broker}, which is no listener of this broker: set it to "
            f"one of {brokers}"
        )
    return NodeRoles(
        is_standalone=False,
        is_broker=is_broker,
        is_controller=is_controller,
        controller_listeners=names,
        inter_broker_listener=inter_broker,
        quorum=_with_endpoints(quorum, node_id, own, listeners, advertised),
    )


def _standalone(config: BrokerConfig) -> NodeRoles:
    for name in _ONLY_IN_CLUSTERS:
        if config[name] is not None:
            raise StartError(
                f"{name} is set, and process.roles is not: set process.roles to broker, controller or both, "
                f"or remove {name}"
            )
    names = list(parse_listeners(config["listeners"], "listeners"))
    inter_broker = config["inter.broker.listener.name"]
    if inter_broker is not None and inter_broker not in names:
        raise StartError(
            f"inter.broker.listener.name is {inter_broker}, which is not among the listeners {', '.join(names)}"
        )
    node_id = node_id_of(config)
    return NodeRoles(
        is_standalone=True,
        is_broker=True,
        is_controller=True,
        controller_listeners=(),
        inter_broker_listener=inter_broker or names[0],
        quorum=QuorumSettings(voters=VoterSet([Voter(ReplicaKey(node_id), ())]), timing=_timing(config)),
    )


def _quorum(config: BrokerConfig, listener: str) -> QuorumSettings:
    voters = parse_voters(config["controller.quorum.voters"] or "", listener)
    bootstrap = parse_servers(config["controller.quorum.bootstrap.servers"] or "", listener)
    if not voters and not bootstrap:
        raise StartError(
            "process.roles is set, and no controllers are: set controller.quorum.voters to ID@HOST:PORT of each "
            "controller, or controller.quorum.bootstrap.servers to HOST:PORT of some"
        )
    return QuorumSettings(
        voters=voters,
        bootstrap=bootstrap,
        timing=_timing(config),
        request_timeout_ms=config["controller.quorum.request.timeout.ms"],
    )


def _timing(config: BrokerConfig) -> RaftSettings:
    return RaftSettings(
        fetch_timeout_ms=config["controller.quorum.fetch.timeout.ms"],
        election_timeout_ms=config["controller.quorum.election.timeout.ms"],
        election_backoff_max_ms=config["controller.quorum.election.backoff.max.ms"],
        retry_backoff_ms=config["controller.quorum.retry.backoff.ms"],
        auto_join=config["controller.quorum.auto.join.enable"],
    )


def _check_voter(config: BrokerConfig, node_id: int, voters: VoterSet, *, is_controller: bool) -> None:
    """Refuse a controller that is not among the static voters, and a broker that is.

    Raises:
        StartError: The node is one of these.
    """
    if not voters:
        return
    is_voter = voters.get(node_id) is not None
    listed = config["controller.quorum.voters"]
    if is_controller and not is_voter:
        raise StartError(
            f"process.roles has the role controller, and controller.quorum.voters={listed} does not name node "
            f"{node_id}: add {node_id}@HOST:PORT, or correct node.id"
        )
    if is_voter and not is_controller:
        raise StartError(
            f"process.roles is broker, and controller.quorum.voters={listed} names node {node_id}: choose another "
            "node.id, or add the role controller"
        )


def _check_listeners(
    listeners: Mapping[str, object],
    advertised: Mapping[str, object],
    controllers: tuple[str, ...],
    *,
    is_broker: bool,
    is_controller: bool,
) -> None:
    """Refuse listeners that do not fit the roles.

    Raises:
        StartError: One does not.
    """
    own = [name for name in listeners if name in controllers]
    others = [name for name in listeners if name not in controllers]
    if is_controller and not own:
        raise StartError(
            f"a controller needs a listener that controller.listener.names names: add "
            f"{controllers[0]}://HOST:PORT to listeners"
        )
    if own and not is_controller:
        raise StartError(
            f"process.roles is broker, and listeners has the controllers' listener {own[0]}: remove it from listeners"
        )
    if is_broker and not others:
        raise StartError(f"a broker needs a listener for clients: add {DEFAULT_LISTENER}://HOST:PORT to listeners")
    if others and not is_broker:
        raise StartError(
            f"process.roles is controller, and controller.listener.names does not name the listener {others[0]}: "
            "remove it from listeners, or add the role broker"
        )
    told = [name for name in advertised if name in controllers]
    if told and is_broker:
        raise StartError(
            f"advertised.listeners names the controllers' listener {told[0]}: remove it, clients do not connect there"
        )


def _with_endpoints(
    quorum: QuorumSettings,
    node_id: int,
    own: list[str],
    listeners: Mapping[str, tuple[str, int]],
    advertised: Mapping[str, tuple[str, int]],
) -> QuorumSettings:
    """Add where this node's controller listens, as the voters know it, or else as its listeners say."""
    voter = quorum.voters.get(node_id)
    if voter is not None:
        endpoints = voter.endpoints
    else:
        endpoints = tuple(Endpoint(name, *advertised.get(name, listeners[name])) for name in own)
    return QuorumSettings(
        voters=quorum.voters,
        endpoints=endpoints,
        bootstrap=quorum.bootstrap,
        timing=quorum.timing,
        request_timeout_ms=quorum.request_timeout_ms,
    )
