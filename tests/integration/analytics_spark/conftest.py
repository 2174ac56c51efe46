"""One Spark session per test run: starting a JVM takes longer than all tests that use it."""

from collections.abc import Iterator
from typing import Any

import pytest
from analytics_spark.session import LakeLayout, SessionPlan, end_session, start_session


@pytest.fixture(scope="session")
def layout(tmp_path_factory: pytest.TempPathFactory) -> LakeLayout:
    return LakeLayout(tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="session")
def spark(layout: LakeLayout) -> Iterator[Any]:
    session = start_session(SessionPlan(layout=layout, app_name="lake-tests", driver_memory_mb=640))
    yield session
    end_session(session)
