"""Which roles a node has, and which settings contradict each other."""

from __future__ import annotations

import pytest
from hailbus_broker.cluster.options import BrokerConfig
from hailbus_broker.cluster.raft.voters import Endpoint
from hailbus_broker.runtime.errors import StartError
from hailbus_broker.runtime.roles import node_roles

COMBINED = {
    "process.roles": "broker,controller",
    "node.id": "2",
    "listeners": "PLAINTEXT://b:9092,CONTROLLER://b:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@a:9093,2@b:9093,3@c:9093",
}
BROKER = {
    **COMBINED,
    "process.roles": "broker",
    "node.id": "4",
    "listeners": "PLAINTEXT://d:9092",
}
CONTROLLER = {**COMBINED, "process.roles": "controller", "listeners": "CONTROLLER://b:9093"}


def test_without_roles_a_node_is_a_cluster_by_itself() -> None:
    roles = node_roles(BrokerConfig({"broker.id": "5"}))
    assert (roles.is_standalone, roles.is_broker, roles.is_controller) == (True, True, True)
    assert list(roles.quorum.voters.ids) == [5]


@pytest.mark.parametrize(
    ("settings", "is_broker", "is_controller"),
    [(COMBINED, True, True), (BROKER, True, False), (CONTROLLER, False, True)],
)
def test_roles_are_those_of_the_settings(settings: dict[str, str], *, is_broker: bool, is_controller: bool) -> None:
    roles = node_roles(BrokerConfig(settings))
    assert (roles.is_standalone, roles.is_broker, roles.is_controller) == (False, is_broker, is_controller)
    assert [voter.endpoints for voter in roles.quorum.voters] == [
        (Endpoint("CONTROLLER", host, 9093),) for host in ("a", "b", "c")
    ]
    assert roles.quorum.endpoints == ((Endpoint("CONTROLLER", "b", 9093),) if is_controller else ())


def test_timeouts_of_the_quorum_are_those_of_the_settings() -> None:
    names = {
        "controller.quorum.election.timeout.ms": "11",
        "controller.quorum.fetch.timeout.ms": "12",
        "controller.quorum.election.backoff.max.ms": "13",
        "controller.quorum.retry.backoff.ms": "14",
        "controller.quorum.request.timeout.ms": "15",
    }
    quorum = node_roles(BrokerConfig({**COMBINED, **names})).quorum
    timing = quorum.timing
    assert (timing.election_timeout_ms, timing.fetch_timeout_ms, timing.election_backoff_max_ms) == (11, 12, 13)
    assert (timing.retry_backoff_ms, quorum.request_timeout_ms) == (14, 15)


def test_controllers_to_ask_take_the_place_of_voters() -> None:
    settings = {**BROKER, "controller.quorum.bootstrap.servers": "a:9093,b:9093"}
    del settings["controller.quorum.voters"]
    quorum = node_roles(BrokerConfig(settings)).quorum
    assert (len(quorum.voters), [one.host for one in quorum.bootstrap]) == (0, ["a", "b"])


@pytest.mark.parametrize(
    ("settings", "changed", "sentence"),
    [
        (COMBINED, {"node.id": None}, "node.id is not: give each node"),
        (COMBINED, {"node.id": "9"}, "does not name node 9: add 9@HOST:PORT, or correct node.id"),
        (COMBINED, {"controller.quorum.voters": None}, "no controllers are: set controller.quorum.voters"),
        (COMBINED, {"controller.listener.names": None}, "controller.listener.names is not: set it to CONTROLLER"),
        (COMBINED, {"listeners": "PLAINTEXT://b:9092"}, "add CONTROLLER://HOST:PORT to listeners"),
        (COMBINED, {"listeners": "CONTROLLER://b:9093"}, "add PLAINTEXT://HOST:PORT to listeners"),
        (
            COMBINED,
            {"advertised.listeners": "CONTROLLER://b:9093"},
            "advertised.listeners names the controllers' listener",
        ),
        (COMBINED, {"inter.broker.listener.name": "CONTROLLER"}, "inter.broker.listener.name is CONTROLLER"),
        (COMBINED, {"inter.broker.listener.name": "INSIDE"}, "set it to one of PLAINTEXT"),
        (COMBINED, {"process.roles": "broker,broker"}, "names broker twice"),
        (COMBINED, {"controller.quorum.voters": "2@b"}, "'2@b' is not ID@HOST:PORT"),
        (COMBINED, {"controller.quorum.voters": "2@0.0.0.0:9093"}, "cannot connect to 0.0.0.0"),
        (COMBINED, {"controller.quorum.voters": "2@a:9093,2@b:9093"}, "names node 2 twice"),
        (BROKER, {"node.id": "3"}, "names node 3: choose another node.id, or add the role controller"),
        (BROKER, {"listeners": "PLAINTEXT://d:9092,CONTROLLER://d:9093"}, "remove it from listeners"),
        (CONTROLLER, {"listeners": "CONTROLLER://b:9093,PLAINTEXT://b:9092"}, "or add the role broker"),
        ({}, {"controller.quorum.voters": "1@a:9093"}, "process.roles is not: set process.roles to broker"),
        ({}, {"inter.broker.listener.name": "INSIDE"}, "which is not among the listeners PLAINTEXT"),
    ],
)
def test_contradictions_are_refused_with_advice(
    settings: dict[str, str], changed: dict[str, str | None], sentence: str
) -> None:
    given = {name: value for name, value in {**settings, **changed}.items() if value is not None}
    with pytest.raises(StartError) as refused:
        node_roles(BrokerConfig(given))
    assert sentence in str(refused.value)
