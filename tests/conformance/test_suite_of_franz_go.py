"""franz-go's own tests of its client, with our nodes and Apache Kafka's in place of those that they ask for.

Its topics have three replicas, so they run on three nodes (`HAILBUS_TEST_NODES=3`), and with one replica on one.
"""

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.needs import need

from .conftest import NODES, Cluster
from .test_other_clients import CLIENTS, built, run

PACKAGE = "github.com/twmb/franz-go/pkg/kgo"
RECORDS = "5000"
"""How many records its longest tests move; the default is 500,000."""
PASSES = [
    "TestClient_Produce",
    "TestClient_ProduceLargeMessages",
    "TestConsumeMaxDecompressBatchBytes",
    "TestIssue769",
    "TestIssue831",
    "TestIssueFetchLargerThanBrokerMaxReadBytes",
    "TestIssueProduceSyncManualPartitionNegativeDoesNotPanic",
    "TestPauseIssueOct2023",
    "TestPooling",
    "TestUnknownGroupOffsetFetchPinned",
]
"""An allow-list that only grows; tests that need SCRAM users or share groups are left out."""


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest) -> Path:
    need("go")
    where = CLIENTS / "franz-go"

    def build(folder: Path) -> None:
        run(["go", "test", "-c", "-o", folder / "kgo.test", PACKAGE], cwd=where)

    return built(request, "franz-go-suite", [where / name for name in ("go.mod", "go.sum")], build) / "kgo.test"


@pytest.fixture(scope="session")
def suite_outcomes(cluster: Cluster, program: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Run all tests of the list in one go; return how each one ended."""
    chosen = f"^({'|'.join(PASSES)})$"
    done = subprocess.run(
        [program, "-test.v", "-test.timeout=20m", f"-test.run={chosen}"],
        cwd=tmp_path_factory.mktemp("suite"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
        env=os.environ
        | {
            "KGO_SEEDS": cluster.bootstrap,
            "KGO_TEST_RF": str(NODES),
            "KGO_TEST_RECORDS": RECORDS,
            "KGO_LOG_LEVEL": "none",
        },
    )
    ended = {name: end for end, name in re.findall(r"^--- (PASS|FAIL|SKIP): (\w+)", done.stdout, re.MULTILINE)}
    return {name: ended.get(name, done.stdout[-2000:]) for name in PASSES}


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("test", PASSES)
def test_franz_go_passes_its_own_test(suite_outcomes: Mapping[str, str], test: str) -> None:
    assert suite_outcomes[test] == "PASS"
