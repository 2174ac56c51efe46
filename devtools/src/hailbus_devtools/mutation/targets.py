"""The code that mutation testing covers, and the fast tests that judge it."""

from dataclasses import dataclass

from hailbus_devtools.check import ROOT

SOURCES = tuple(sorted(path.relative_to(ROOT) for path in ROOT.glob("**/src") if ".venv" not in path.parts))
"""The import roots of all members, from the root of the repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The deciding modules of one package and their tests.

    Attributes:
        name: The package, as the report names it.
        files: Modules to mutate, as paths from the root of the repository.
        tests: Files, folders and single tests given to pytest; what takes seconds per test is left out.
        deselected: Tests left out because they start other processes or take longer than the rest together.
    """

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    deselected: tuple[str, ...] = ()


def _files(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}.py" for name in names)


def _all(folder: str) -> tuple[str, ...]:
    """Return the modules at and below a folder that hold more than a docstring."""
    modules = sorted(path for path in (ROOT / folder).rglob("*.py") if path.name != "__init__.py")
    return tuple(str(path.relative_to(ROOT)) for path in modules)


TARGETS = (
    Target(
        name="sdk",
        files=(
            *_files("sdk/src/hailbus", "settlement", "inbox", "outbox", "publish_buffer"),
            *_all("sdk/src/hailbus/_consuming"),
        ),
        tests=("tests/unit/sdk", "tests/property/sdk", "tests/integration/sdk/test_databases.py"),
        deselected=("tests/unit/sdk/test_public_surface.py",),
    ),
    Target(
        name="broker",
        files=(
            *_files("broker/src/hailbus_broker/log", "producer_state", "transaction_index"),
            *_files("broker/src/hailbus_broker/coordinators/transaction", "shard", "state", "views"),
        ),
        tests=(
            *(f"tests/unit/broker/test_{name}.py" for name in ("producer_state", "transaction_shard")),
            *(f"tests/unit/broker/test_{name}.py" for name in ("transaction_index", "partition_log")),
            *(f"tests/property/broker/test_{name}_model.py" for name in ("log", "transaction")),
        ),
    ),
    Target(
        name="booking",
        files=_all("services/booking/src/booking/domain"),
        tests=("tests/unit/booking", "tests/property/booking"),
    ),
    Target(
        name="demo",
        files=_all("demo/src/hailbus_demo/ledger"),
        tests=(
            *(
                f"tests/unit/demo/test_{name}.py"
                for name in ("ledger", "kafka_log", "repricing", "rules_of_money", "so_far")
            ),
            *(f"tests/integration/demo/test_{name}.py" for name in ("lines", "lines_of_surge", "several_faults")),
            *(f"tests/integration/demo/test_{name}.py" for name in ("reading_accounts", "the_auditor")),
        ),
        deselected=(
            "tests/integration/demo/test_the_auditor.py::test_a_fault_is_found_alike_with_and_without_a_broker",
            "tests/integration/demo/test_the_auditor.py::test_the_command_ends_with_0_when_balanced_and_1_when_not",
        ),
    ),
    Target(
        name="analytics_spark",
        files=(
            *_all("analytics_spark/src/analytics_spark/verify"),
            *_files("analytics_spark/src/analytics_spark", "broker_view", "topic_ids", "sinks"),
        ),
        # The lines of a verification are judged in memory; whole lakes show that they are drawn over the lake's tables.
        tests=(
            "tests/unit/analytics_spark",
            *(
                f"tests/integration/analytics_spark/test_verify.py::test_{name}"
                for name in (
                    "a_whole_lake_agrees_and_says_what_was_compared",
                    "a_lake_without_silver_or_gold_is_not_checked",
                    "a_later_run_reads_only_what_came_since",
                    "a_topic_outside_the_settings_is_compared_when_it_landed",
                    "a_damaged_note_of_the_last_verification_is_an_error",
                    "without_a_broker_bronze_is_not_checked",
                )
            ),
        ),
    ),
)
