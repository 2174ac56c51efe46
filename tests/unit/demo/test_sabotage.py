"""`--sabotage`: which faults there are, and which of them a run cannot have."""

import pytest
from hailbus_demo.errors import UsageError
from hailbus_demo.ledger.lines import LINES
from hailbus_demo.sabotage.faults import FAULTS, Target, require_possible

NAMED = {
    "lost-tail",
    "invented",
    "reordered",
    "altered",
    "double-apply",
    "double-payment",
    "idle-consumer",
    "lake-row-missing",
}


def test_the_faults_that_people_are_told_of_are_there() -> None:
    assert set(FAULTS) >= NAMED
    assert all(name == fault.name and fault.does for name, fault in FAULTS.items())
    assert {fault.line for fault in FAULTS.values()} <= {spec.id for spec in LINES}


@pytest.mark.parametrize("name", FAULTS)
def test_a_run_with_all_parts_can_have_every_fault(name: str) -> None:
    assert require_possible(name, in_house=True, brokers=1, spark=True, chaos=False) is FAULTS[name]


def test_an_unknown_fault_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(UsageError, match="--sabotage lost-tale is no fault") as refused:
        require_possible("lost-tale", in_house=True, brokers=1, spark=True, chaos=False)
    assert all(name in str(refused.value) for name in FAULTS)


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS.values() if fault.target is Target.LOG_FILES])
def test_files_of_another_cluster_are_out_of_reach(name: str) -> None:
    with pytest.raises(UsageError, match="--bootstrap names another cluster"):
        require_possible(name, in_house=False, brokers=1, spark=True, chaos=False)


@pytest.mark.parametrize("name", [fault.name for fault in FAULTS.values() if fault.target is Target.LOG_FILES])
def test_the_files_of_one_broker_of_three_are_not_the_log(name: str) -> None:
    with pytest.raises(UsageError, match="with --brokers 3 the others have copies: leave out --brokers"):
        require_possible(name, in_house=True, brokers=3, spark=True, chaos=False)


def test_without_spark_there_is_no_lake_to_sabotage() -> None:
    with pytest.raises(UsageError, match="needs the lake: leave out --no-spark"):
        require_possible("lake-row-missing", in_house=True, brokers=1, spark=False, chaos=False)


def test_kills_and_sabotage_have_opposite_ends() -> None:
    with pytest.raises(UsageError, match="does not go with --chaos"):
        require_possible("invented", in_house=True, brokers=1, spark=True, chaos=True)
