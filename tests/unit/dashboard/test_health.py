"""The health strip: the worst truth in words, on the page and in the terminal alike."""

from typing import Any

import pytest
from dashboard.domain import health as of_page
from dashboard.domain.cluster import Partition, Registered, cluster_of
from dashboard.domain.health import GroupState, Health, ProcessState, Progress, judge
from hailbus_demo import health as of_terminal


def judged(**values: Any) -> Health:
    calm: dict[str, Any] = {"cluster": None, "cluster_age_s": None, "groups": (), "processes": (), "unread": 0}
    return judge(**{"broker": "up", **calm, **values})


def group(name: str, seconds: float, progress: str = "catching up") -> GroupState:
    return GroupState(group=name, seconds=seconds, progress=progress)


def process(name: str, state: str = "ready", restarts: int = 0) -> ProcessState:
    return ProcessState(name=name, state=state, restarts=restarts)


def test_a_city_in_which_nothing_is_late_is_up_to_date() -> None:
    health = judged(groups=[group("surge", 4.9)], processes=[process("surge")])
    assert (health.level, health.words, health.truths) == ("ok", "up to date", ())
    assert [(chip.name, chip.level, chip.words) for chip in health.chips] == [("surge", "ok", "")]


@pytest.mark.parametrize(("seconds", "level"), [(5.0, "ok"), (5.1, "late"), (60.0, "late"), (60.1, "bad")])
def test_a_group_is_late_above_five_seconds_and_in_trouble_above_sixty(seconds: float, level: str) -> None:
    assert judged(groups=[group("surge", seconds)]).level == level


def test_the_worst_truth_is_said_and_the_others_follow() -> None:
    health = judged(
        groups=[group("booking", 8), group("surge", 107)],
        processes=[process("booking", "restarting", 1), process("surge", restarts=1), process("payment-provider")],
    )
    assert (health.level, health.words) == ("bad", "surge 107 s behind, catching up")
    assert [truth.words for truth in health.truths[1:]] == ["booking restarting", "booking 8 s behind, catching up"]
    assert [(chip.name, chip.level, chip.words, chip.about) for chip in health.chips] == [
        ("booking", "late", "restarting", "restarting, booking 8 s behind, catching up, restarted 1×"),
        ("surge", "bad", "107 s", "ready, surge 107 s behind, catching up, restarted 1×"),
        ("payment-provider", "ok", "", "ready"),
    ]


def test_what_is_worst_is_the_same_while_only_the_seconds_change() -> None:
    first, later = (judged(groups=[group("surge", seconds)]) for seconds in (70, 107))
    assert (first.level, first.subject) == (later.level, later.subject)
    assert judged(groups=[group("surge", 30)]).level != later.level


def test_payments_group_belongs_to_payment_and_not_to_its_provider() -> None:
    health = judged(groups=[group("payment-saga", 9)], processes=[process("payment"), process("payment-provider")])
    assert [(chip.name, chip.words) for chip in health.chips] == [("payment", "9 s"), ("payment-provider", "")]


def test_a_stopped_process_is_neither_well_nor_unwell() -> None:
    health = judged(processes=[process("lake", "stopped")])
    assert (health.level, health.chips[0].level, health.chips[0].words) == ("ok", "off", "stopped")


def test_brokers_come_before_groups() -> None:
    def partition(number: int, leader: int, *isr: int) -> Partition:
        return Partition(topic="rides.v1", partition=number, leader=leader, replicas=(1, 2), isr=isr)

    cluster = cluster_of(
        cluster_id="c",
        controller_id=1,
        registered=[Registered(node_id=1, address="b:1", rack=None, is_fenced=False)],
        partitions=[partition(0, 1, 1), partition(1, -1)],
    )
    known: dict[str, Any] = {"cluster": cluster, "cluster_age_s": 1.0, "groups": [group("surge", 107)]}
    assert [truth.words for truth in judged(**known).truths] == [
        "1 partition without a leader",
        "surge 107 s behind, catching up",
        "1 of 2 brokers away",
    ]
    assert judged(**{**known, "broker": "down", "cluster_age_s": 60.0}).words == "broker down"
    assert judged(broker="connecting").words == "waiting for the broker"
    assert judged(unread=12_000).words == "this page is catching up, 12,000 records to read"
    assert judged(is_unbalanced=True, groups=[group("surge", 107)]).words == "the ledger does not balance"


@pytest.mark.parametrize("progress_of", [Progress, of_terminal.Progress])
def test_a_groups_progress_is_seen_over_eight_seconds(progress_of: type[Progress]) -> None:
    progress = progress_of()
    assert progress.words() == ""
    for second in range(4):
        progress.note(second, position=100, lag=50 + second)
    assert progress.words() == "reading nothing"
    for second in range(4, 12):
        progress.note(second, position=100 + second, lag=60 + second)
    assert progress.words() == "falling behind"
    for second in range(12, 24):
        progress.note(second, position=200 + 10 * second, lag=100 - second)
    assert progress.words() == "catching up"


@pytest.mark.parametrize("seconds", [0.0, 5.0, 5.1, 60.0, 61.0, 107.4, 299.0, 300.0, 7_199.0, 7_200.0])
@pytest.mark.parametrize("progress", ["", "catching up", "falling behind", "reading nothing"])
@pytest.mark.parametrize("state", ["ready", "restarting", "failed", "starting", "stopped"])
@pytest.mark.parametrize("balanced", [True, None, False])
def test_the_terminal_says_the_same_as_the_page(
    seconds: float, progress: str, state: str, balanced: bool | None
) -> None:
    page = judged(
        groups=[group("payment-saga", seconds, progress), group("surge", 1)],
        processes=[process("payment", state), process("surge")],
        is_unbalanced=balanced is False,
    )
    run = {
        "balanced": balanced,
        "groups": [
            {"group": "payment-saga", "lag_s": seconds, "progress": progress},
            {"group": "surge", "lag_s": 1.0, "progress": ""},
        ],
        "processes": [{"name": "payment", "state": state}, {"name": "surge", "state": "ready"}],
    }
    assert of_terminal.health(run) == (page.level, page.words)
    assert (of_terminal.LATE_S, of_terminal.VERY_LATE_S) == (of_page.LATE_S, of_page.VERY_LATE_S)
