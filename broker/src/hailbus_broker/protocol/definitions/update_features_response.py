"""UpdateFeaturesResponse. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, Struct, array, int16, int32, string


class UpdatableFeatureResult(Struct):
    """Part of UpdateFeaturesResponse."""

    feature: str = string("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")


class UpdateFeaturesResponse(Message, versions="0-2", flexible="0+", api_key=57):
    """UpdateFeaturesResponse, API key 57, versions 0-2, flexible 0+."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+")
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, "0-1")
