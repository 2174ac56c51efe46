"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs."""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from hailbus_broker.cluster.metadata.image import ResourceType
from hailbus_broker.cluster.options import BROKER_OPTIONS, GROUP_OPTIONS, TOPIC_OPTIONS, Option, OptionType, to_text
from hailbus_broker.protocol.definitions.describe_configs_response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from hailbus_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hailbus_broker.protocol.definitions.describe_configs_request import DescribeConfigsRequest
    from hailbus_broker.runtime.node_core import NodeCore
    from hailbus_broker.server.dispatch import Dispatcher
    from hailbus_broker.server.request import Request


SLICE: Final = 25
"""So many resources are described in one turn of the loop: one has 26 settings and more."""


class Source(IntEnum):
    """Where a value comes from, as DescribeConfigs numbers it."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


class Operation(IntEnum):
    """What IncrementalAlterConfigs does to a value."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def _broker_synonyms(core: NodeCore, option: Option) -> list[DescribeConfigsSynonym]:
    """Where a broker's option has values, the one that holds first."""
    found = []
    own = core.image.configs(ResourceType.BROKER, str(core.node_id))
    everywhere = core.image.configs(ResourceType.BROKER, "")
    for values, source in (
        (own, Source.DYNAMIC_BROKER),
        (everywhere, Source.DYNAMIC_DEFAULT_BROKER),
        (core.config.given, Source.STATIC_BROKER),
    ):
        if option.name in values:
            found.append(DescribeConfigsSynonym(name=option.name, value=values[option.name], source=source))
    if option.default is not None:
        found.append(DescribeConfigsSynonym(name=option.name, value=option.default, source=Source.DEFAULT))
    return found


def _describe(
    option: Option, synonyms: list[DescribeConfigsSynonym], value: str | None, *, read_only: bool
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=option.name,
        value=value,
        read_only=read_only,
        config_source=synonyms[0].source if synonyms else Source.DEFAULT,
        synonyms=synonyms,
        config_type=option.type,
        documentation=option.doc,
    )


class TopicConfigs:
    """All settings of topics with their sources. What the broker says of them is looked up once, for many topics."""

    def __init__(self, core: NodeCore) -> None:
        self._broker: Final[dict[str, tuple[Option, list[DescribeConfigsSynonym], str | None]]] = {}
        for name, option in sorted(TOPIC_OPTIONS.items()):
            assert option.broker_name is not None
            synonyms = _broker_synonyms(core, BROKER_OPTIONS[option.broker_name])
            value = core.config.text(option.broker_name)
            if synonyms == [] or synonyms[0].source == Source.DEFAULT:
                # log.retention.hours and the like stand for log.retention.ms.
                synonyms = [DescribeConfigsSynonym(name=option.broker_name, value=value, source=Source.DEFAULT)]
            self._broker[name] = option, synonyms, value

    def of(self, overrides: Mapping[str, str]) -> list[DescribeConfigsResourceResult]:
        """The settings of a topic with these overrides."""
        results = []
        for name, (option, broker_synonyms, broker_value) in self._broker.items():
            synonyms, value = broker_synonyms, broker_value
            if name in overrides:
                value = to_text(option.parse(overrides[name]))
                synonyms = [DescribeConfigsSynonym(name=name, value=value, source=Source.TOPIC), *synonyms]
            results.append(_describe(option, synonyms, value, read_only=False))
        return results


def _broker_configs(core: NodeCore) -> list[DescribeConfigsResourceResult]:
    return [
        _describe(option, _broker_synonyms(core, option), core.config.text(name), read_only=not option.is_dynamic)
        for name, option in sorted(BROKER_OPTIONS.items())
    ]


def _group_configs(core: NodeCore, group: str) -> list[DescribeConfigsResourceResult]:
    overrides = core.image.configs(ResourceType.GROUP, group)
    results = []
    for name, option in sorted(GROUP_OPTIONS.items()):
        assert option.broker_name is not None
        synonyms = _broker_synonyms(core, BROKER_OPTIONS[option.broker_name])
        value = core.config.text(option.broker_name)
        if name in overrides:
            value = overrides[name]
            synonyms.insert(0, DescribeConfigsSynonym(name=name, value=value, source=Source.DYNAMIC_GROUP))
        results.append(_describe(option, synonyms, value, read_only=False))
    return results


async def describe_configs(
    dispatcher: Dispatcher, _: Request, message: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """DescribeConfigs v1-4 for topics, the broker and groups, with sources, types and synonyms."""
    node = dispatcher.node
    results = []
    of_topics = TopicConfigs(node.core)
    for number, resource in enumerate(message.resources, 1):
        if number % SLICE == 0:
            await asyncio.sleep(0)
        result = DescribeConfigsResult(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        results.append(result)
        try:
            match resource.resource_type:
                case ResourceType.TOPIC:
                    if resource.resource_name not in node.image.topics:
                        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "")
                    entries = of_topics.of(node.image.configs(ResourceType.TOPIC, resource.resource_name))
                case ResourceType.BROKER:
                    if resource.resource_name == "":
                        overrides = node.image.configs(ResourceType.BROKER, "")
                        entries = [entry for entry in _broker_configs(node.core) if entry.name in overrides]
                    elif resource.resource_name == str(node.node_id):
                        entries = _broker_configs(node.core)
                    else:
                        raise ApiError(
                            ErrorCode.INVALID_REQUEST,
                            f"Unexpected broker id, expected {node.node_id} or empty string, but received "
                            f"{resource.resource_name}",
                        )
                case ResourceType.GROUP:
                    if not resource.resource_name:
                        raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
                    entries = _group_configs(node.core, resource.resource_name)
                case ResourceType.BROKER_LOGGER | ResourceType.CLIENT_METRICS:
                    entries = []
                case _:
                    raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {resource.resource_type}")
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        keys = resource.configuration_keys
        if keys:
            entries = [entry for entry in entries if entry.name in keys]
        for entry in entries:
            if not message.include_synonyms:
                entry.synonyms = []
            if not message.include_documentation:
                entry.documentation = None
        result.configs = entries
    return DescribeConfigsResponse(results=results)


async def incremental_alter_configs(dispatcher: Dispatcher, _: Request, message: Any) -> Any:
    """IncrementalAlterConfigs v0-1: set, delete, and for lists append and subtract."""
    from hailbus_broker.protocol.definitions.incremental_alter_configs_response import (
        AlterConfigsResourceResponse,
        IncrementalAlterConfigsResponse,
    )

    core = dispatcher.core

    def changes_of(resource: Any) -> dict[str, str | None]:  # Any: as the request
        names = [entry.name for entry in resource.configs]
        if len(set(names)) != len(names):
            raise ApiError(ErrorCode.INVALID_REQUEST, "A config is named twice.")
        return {
            entry.name: _changed(core, resource.resource_type, resource.resource_name, entry)
            for entry in resource.configs
        }

    return IncrementalAlterConfigsResponse(
        responses=await _altered(core, message, AlterConfigsResourceResponse, changes_of)
    )


async def _altered(
    core: NodeCore,
    message: Any,  # one of two requests
    answer: type[Any],  # of its resources
    changes_of: Callable[[Any], dict[str, str | None]],
) -> list[Any]:
    """Change each resource for itself, and answer for each when its records are in the metadata log."""
    results = []
    pending = []
    for resource in message.resources:
        result = answer(resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None)
        results.append(result)
        try:
            changes = changes_of(resource)
            records = core.controller.alter_configs(
                _resource_type(resource.resource_type), resource.resource_name, changes
            )
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        if not message.validate_only:
            pending.append(core.write_metadata(records))
    # What was refused may have been refused because of a decision that is not committed yet.
    for done in (*pending, core.metadata.write([])):
        await done
    return results


def _resource_type(number: int) -> ResourceType:
    try:
        return ResourceType(number)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unsupported resource type: {number}") from None


def _changed(core: NodeCore, resource_type: int, name: str, entry: Any) -> str | None:
    operation = entry.config_operation
    if operation == Operation.DELETE:
        return None
    if entry.value is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {entry.name}")
    if operation == Operation.SET:
        text: str = entry.value
        return text
    if operation not in {Operation.APPEND, Operation.SUBTRACT}:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown operation {operation}")
    tables = {ResourceType.TOPIC: TOPIC_OPTIONS, ResourceType.BROKER: BROKER_OPTIONS, ResourceType.GROUP: GROUP_OPTIONS}
    option = tables.get(_resource_type(resource_type), {}).get(entry.name)
    if option is None or option.type is not OptionType.LIST:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {Operation(operation).name} to key {entry.name} because its type is not LIST.",
        )
    current = core.controller.image.configs(_resource_type(resource_type), name).get(entry.name)
    if current is None:
        current = core.config.text(option.broker_name or option.name) or ""
    items = [item for item in current.split(",") if item]
    given = [item.strip() for item in entry.value.split(",") if item.strip()]
    if operation == Operation.APPEND:
        items += [item for item in given if item not in items]
    else:
        items = [item for item in items if item not in given]
    return ",".join(items)


async def alter_configs(dispatcher: Dispatcher, _: Request, message: Any) -> Any:
    """AlterConfigs v0-2: what is not named goes back to its default. Deprecated in Kafka, still sent by old clients."""
    from hailbus_broker.protocol.definitions.alter_configs_response import (
        AlterConfigsResourceResponse,
        AlterConfigsResponse,
    )

    core = dispatcher.core

    def changes_of(resource: Any) -> dict[str, str | None]:  # Any: as the request
        kind = _resource_type(resource.resource_type)
        changes: dict[str, str | None] = dict.fromkeys(core.controller.image.configs(kind, resource.resource_name))
        for entry in resource.configs:
            if entry.value is None:
                raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {entry.name}")
            changes[entry.name] = entry.value
        return changes

    return AlterConfigsResponse(responses=await _altered(core, message, AlterConfigsResourceResponse, changes_of))


def list_config_resources(dispatcher: Dispatcher, request: Request, message: Any) -> Any:
    """ListConfigResources v0-1: everything that has settings. v0 asks for client metrics, of which there are none."""
    from hailbus_broker.protocol.definitions.list_config_resources_response import (
        ConfigResource,
        ListConfigResourcesResponse,
    )

    node = dispatcher.node
    kinds: Sequence[int] = (
        message.resource_types or list(ResourceType) if request.version >= 1 else [ResourceType.CLIENT_METRICS]
    )
    names: dict[int, list[str]] = {
        ResourceType.TOPIC: sorted(node.image.topics),
        ResourceType.BROKER: [str(broker_id) for broker_id in sorted(node.image.brokers)],
        ResourceType.BROKER_LOGGER: [],
        ResourceType.CLIENT_METRICS: [],
        ResourceType.GROUP: node.image.config_resources(ResourceType.GROUP),
    }
    known = [kind for kind in kinds if kind != ResourceType.UNKNOWN]
    if any(kind not in names for kind in known):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind) for kind in known for name in names[kind]
        ]
    )
