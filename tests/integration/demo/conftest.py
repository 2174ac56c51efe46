"""What the tests of the ledger share: a recorded run, and one whose records are read from memory."""

from pathlib import Path

import pytest
from hailbus_demo.ledger import gather

from tests.integration.demo.recorded import RecordedLog, RecordedRun, copy, unpack


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return unpack(tmp_path_factory.mktemp("recorded"))


@pytest.fixture
def run(clean: RecordedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedRun:
    run = copy(clean, tmp_path)
    monkeypatch.setattr(gather, "KafkaLog", lambda _: RecordedLog(run))
    return run
