"""DescribeGroupsResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, data, int16, int32, string


class DescribedGroupMember(Struct):
    """Part of DescribeGroupsResponse."""

    member_id: str = string("0+")
    group_instance_id: str | None = string("4+", default=None, nullable="4+")
    client_id: str = string("0+")
    client_host: str = string("0+")
    member_metadata: bytes | memoryview = data("0+")
    member_assignment: bytes | memoryview = data("0+")


class DescribedGroup(Struct):
    """Part of DescribeGroupsResponse."""

    error_code: int = int16("0+")
    error_message: str | None = string("6+", default=None, nullable="6+")
    group_id: str = string("0+")
    group_state: str = string("0+")
    protocol_type: str = string("0+")
    protocol_data: str = string("0+")
    members: list[DescribedGroupMember] = array(DescribedGroupMember, "0+")
    authorized_operations: int = int32("3+", default=-2147483648)


class DescribeGroupsResponse(Message, versions="0-6", flexible="5+", api_key=15):
    """DescribeGroupsResponse, API key 15, versions 0-6, flexible 5+."""

    throttle_time_ms: int = int32("1+")
    groups: list[DescribedGroup] = array(DescribedGroup, "0+")
