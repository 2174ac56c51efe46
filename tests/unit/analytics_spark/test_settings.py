"""Settings: what is accepted works, the rest is refused in one sentence."""

from pathlib import Path

import pytest
from analytics_spark.config import SettingsError, read_settings
from analytics_spark.sources import topic_pattern
from ride_events import TOPICS


def test_defaults_land_every_topic_of_the_catalogue() -> None:
    settings = read_settings({})
    assert settings.topics == tuple(topic.name for topic in TOPICS)
    assert settings.dir == Path(".hailbus/lake")
    assert settings.driver_memory_mb <= 1024


def test_variables_and_arguments_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_TOPICS", "rides.v1, payments.v1,")
    monkeypatch.setenv("LAKE_DIR", "/elsewhere")
    assert read_settings().topics == ("rides.v1", "payments.v1")
    assert read_settings(dir=Path("/here"), bootstrap_servers=None).dir == Path("/here")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("LAKE_BOOTSTRAP_SERVERS", "localhost", "'localhost' is no HOST:PORT"),
        ("LAKE_TOPICS", "rides/v1", "'rides/v1' is no topic name"),
        ("LAKE_TOPICS", " , ", "no topic is named"),
        ("LAKE_JAVA", "graal", "LAKE_JAVA"),
        ("LAKE_TRIGGER_S", "0", "greater than 0"),
        ("LAKE_TRIGER_S", "1", "unknown setting LAKE_TRIGER_S"),
    ],
)
def test_what_does_not_do_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=words):
        read_settings()


def test_the_pattern_matches_the_topics_and_no_others() -> None:
    import re

    pattern = re.compile(topic_pattern(("driver-locations.v1", "rides.v1")))
    assert pattern.search("rides.v1.surge-dlt") is None  # Spark looks for it anywhere in a name
    names = ("driver-locations.v1", "rides.v1", "ridesxv1", "rides.v11", "rides.v1.booking-dlt", "my-rides.v1")
    assert [name for name in names if pattern.fullmatch(name)] == ["driver-locations.v1", "rides.v1"]
