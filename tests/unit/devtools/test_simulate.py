"""The mutants of the simulator's campaigns, and how a process runs with one of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hailbus_broker.testing.campaign import PlannedClient, PlannedFault, Scenario, draw, draw_cluster
from hailbus_broker.testing.campaign.scenario import SERVICES_AT
from hailbus_devtools.simulate.guests.pinned import problems_of
from hailbus_devtools.simulate.main import (
    FIRST_SCENARIO,
    REQUIRED_IN_A_CLUSTER,
    Campaign,
    main,
    reports,
    source_of_test,
    write_report,
    write_table,
)
from hailbus_devtools.simulate.mutants import Mutant, MutantError, apply, package_of_the_broker, read_mutants
from hailbus_devtools.tools import ROOT

MUTANTS = read_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_mutant_has_its_place_in_the_broker(mutant: Mutant) -> None:
    file, source = apply(mutant, package_of_the_broker())
    assert source != file.read_text()
    ast.parse(source)


def test_there_are_forty_mutants_and_ten_that_are_held_out() -> None:
    of_one_broker = [mutant for mutant in MUTANTS if mutant.nodes == 1]
    assert sum(mutant.is_held_out for mutant in of_one_broker) >= 10
    assert len(of_one_broker) >= 50
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_there_are_mutants_of_clusters() -> None:
    of_clusters = [mutant for mutant in MUTANTS if mutant.nodes > 1]
    assert sum(mutant.is_held_out for mutant in of_clusters) >= 9
    assert len(of_clusters) >= 40


def write(folder: Path, **files: str) -> Path:
    for name, source in files.items():
        (folder / f"{name}.py").write_text(source)
    return folder


def test_a_mutant_is_found_however_deep_its_lines_are_indented(tmp_path: Path) -> None:
    package = write(tmp_path, a="def f():\n    if True:\n        one()\n        two()\n", b="one()\n")
    mutant = Mutant(name="m", old="one()\ntwo()\n", new="if three():\n    four()\n")
    file, source = apply(mutant, package)
    assert file == package / "a.py"
    assert source == "def f():\n    if True:\n        if three():\n            four()\n"


@pytest.mark.parametrize("old", ["nowhere()", "one()", "one"])
def test_a_mutant_without_exactly_one_place_is_refused(tmp_path: Path, old: str) -> None:
    package = write(tmp_path, a="one()\n", b="if True:\n    one()\n")
    with pytest.raises(MutantError, match=r"0 places|2 places"):
        apply(Mutant(name="m", old=old, new="pass"), package)


def test_the_table_says_how_many_seeds_each_mutant_needed(tmp_path: Path) -> None:
    mutants = [Mutant(name=name, old="a", new="b", is_held_out=name == "late") for name in ("early", "late")]
    found = {"seed": 12, "problems": {"unseen": ["1"], "failures": ["x"]}}
    write_table(tmp_path / "table.md", 10, [(mutants[0], 3, found), (mutants[1], 1_000, None)])
    first, _, *rows = (tmp_path / "table.md").read_text().splitlines()
    assert first.endswith("first seed 10.")
    assert rows[2:] == ["| early |  | 3 | unseen, failures |", "| late | yes | 1000 | **not found** |"]


def test_the_report_says_what_a_campaign_reached_and_found(tmp_path: Path) -> None:
    clean = Campaign(seed_count=2_000, end=2_000, simulated_s=12_345.6, node_count=3, took_s=60)
    clean.notes.update(dict.fromkeys(REQUIRED_IN_A_CLUSTER, 1_000))
    write_report(tmp_path / "clean.md", clean)
    report = (tmp_path / "clean.md").read_text()
    assert "# Seeds 0 to 1999 of 3 simulated nodes" in report
    assert "`uv run just simulate --nodes 3 --seed 0 --seeds 2000`" in report
    assert "2,000 seeds in 60 s, of which 0 failed.\nThey simulated 12,346 seconds." in report
    assert "Nothing was found, and everything required was reached." in report
    assert "| truncation | 1,000 | yes |" in report
    failed = Campaign(
        seed_count=200, node_count=3, took_s=60, failures=[{"seed": 7, "problems": {"unseen": ["1"]}}], differing=[9]
    )
    failed.notes.update(["metadata truncated"])
    write_report(tmp_path / "failed.md", failed)
    report = (tmp_path / "failed.md").read_text()
    assert "200 seeds in 60 s, of which 1 failed" in report
    assert "- seed 7 found: unseen\n- seed 9 left two different traces\n- never reached: " in report
    assert "Nothing was found" not in report
    write_report(tmp_path / "few.md", Campaign(seed_count=3, node_count=3))
    assert "\nNothing was found.\n" in (tmp_path / "few.md").read_text()  # three seeds need not reach anything


def test_a_campaign_that_is_kept_goes_on_where_it_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[int, int]] = []

    def run(first: int, count: int, **_: object) -> Campaign:
        if first == 400:
            raise KeyboardInterrupt
        ran.append((first, count))
        return a_block(first, count)

    def a_block(first: int, count: int, commit: str = "abc") -> Campaign:
        notes = Counter(dict.fromkeys(REQUIRED_IN_A_CLUSTER, 1))
        block = Campaign(node_count=3, first=first, end=first + count, seed_count=count, notes=notes)
        return replace(block, simulated_s=1.5, took_s=2.0, commits=Counter({commit: count}))

    monkeypatch.setattr("hailbus_devtools.simulate.main.run_campaign", run)
    file, report = tmp_path / "kept.json", tmp_path / "report.md"
    arguments = ["--nodes", "3", "--seed", "0", "--seeds", "500", "--keep", str(file), "--report", str(report)]
    with pytest.raises(KeyboardInterrupt):
        main(arguments)
    assert ran == [(0, 200), (200, 200)]
    assert not report.exists()
    monkeypatch.setattr(
        "hailbus_devtools.simulate.main.run_campaign", lambda first, count, **_: a_block(first, count, commit="def")
    )
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert "continues with seed 400" in capsys.readouterr().out
    text = report.read_text()
    assert "# Seeds 0 to 499 of 3 simulated nodes" in text
    assert "at commit abc (400 seeds), def (100 seeds), " in text
    assert "500 seeds in 6 s, of which 0 failed.\nThey simulated 4 seconds." in text
    assert "| truncation | 3 | yes |" in text
    with pytest.raises(SystemExit):
        main(["--nodes", "3", "--seed", "7", "--keep", str(file)])
    assert f"{file} is of --nodes 3 --seed 0: give these, or another file" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--keep", str(file)])
    assert "--keep needs --seed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--table", "x"], ["--report", "x", "--mutants"], ["--report", "x", "--speed"], ["--keep", "x", "--mutants"]],
)
def test_files_go_with_what_they_are_written_by(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert f"error: {arguments[0]} " in capsys.readouterr().err


def test_a_worker_that_dies_names_the_seed_that_it_was_running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "worker"
    script.write_text(
        '#!/bin/sh\necho \'{"begins": 3}\'\necho \'{"seed": 3, "problems": {}}\'\n'
        "echo '{\"begins\": 5}'\necho Timeout >&2\nexit 1\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    first, last = reports("--first=3")
    assert first == {"seed": 3, "problems": {}}
    assert last["seed"] == 5
    assert last["problems"] == {"the worker ended": ["Timeout\n"]}


SMALLEST = Scenario(
    seed=5,
    duration_s=2.5,
    clients=(PlannedClient(name="trimmer-1", kind="trimmer"),),
    faults=(PlannedFault(at_s=1.5, kind="crash in a swap", path="accounts", amount=3, is_power_cut=False),),
    segment_bytes=2_048,
)


@pytest.mark.parametrize("scenario", [SMALLEST, replace(SMALLEST, clients=(), faults=()), draw(3), draw_cluster(3, 3)])
def test_a_scenario_is_written_as_a_test_that_style_and_lint_accept(scenario: Scenario) -> None:
    source = source_of_test(scenario, 3, ["unseen", "failures"])
    path = str(ROOT / FIRST_SCENARIO / "test_scenario_3.py")
    for command in (["format", "--diff"], ["check", "--quiet"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", path, "-"],
            input=source,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
    names: dict[str, object] = {}
    exec(source, names)  # noqa: S102 - what the command itself has written
    assert names["SCENARIO"] == scenario
    assert callable(names["test_scenario_3"])


def test_a_shrunk_scenario_with_guests_runs_in_a_process_with_a_fixed_hash_seed() -> None:
    scenario = replace(draw(SERVICES_AT), faults=())
    source = source_of_test(scenario, SERVICES_AT, ["unpublished"])
    names: dict[str, object] = {}
    exec(compile(source, "test_scenario.py", "exec"), names)  # noqa: S102 - what `source_of_test` has written
    assert names["SCENARIO"] == scenario
    assert names["problems_of"] is problems_of
    assert "problems_of(SCENARIO) == {}" in source


def test_some_seeds_cut_a_leader_off_together_with_a_client_until_others_lead() -> None:
    scenarios = [draw_cluster(seed, 3) for seed in range(200)]
    found = [
        (fault, scenario)
        for scenario in scenarios
        for fault in scenario.faults
        if fault.kind == "node and client cut off"
    ]
    assert {fault.node for fault, _ in found} == {"leader of loose-0", "leader of rides-0", "active controller"}
    for fault, scenario in found:
        assert min(fault.duration_s, scenario.duration_s - fault.at_s) >= 6.99
        assert fault.client in {client.name for client in scenario.clients}
    assert not any(fault.kind == "node and client cut off" for fault in draw_cluster(5, 2).faults)


def test_some_seeds_let_a_proposal_of_an_isr_arrive_late_before_other_faults_begin() -> None:
    found = [scenario for scenario in (draw_cluster(seed, 3) for seed in range(200)) if has_late_proposal(scenario)]
    assert 10 < len(found) < 50
    for scenario in found:
        late, *others = scenario.faults
        assert late.kind == "late ISR proposal"
        assert all(fault.at_s - late.at_s > 8 for fault in others)
        assert scenario.duration_s >= 16
    assert not any(has_late_proposal(draw_cluster(seed, 2)) for seed in range(50))


def test_some_seeds_spread_brokers_over_racks_with_readers_in_them() -> None:
    scenarios = [draw_cluster(seed, 3) for seed in range(200)]
    nodes = [scenario.nodes for scenario in scenarios if scenario.nodes is not None]
    found = [one for one in nodes if one.racks]
    assert 50 < len(found) < 110
    for one in found:
        assert [bool(rack) for rack in one.racks] == ["broker" in roles for roles in one.roles]
        assert len({rack for rack in one.racks if rack}) in {2, 3}
    assert {one.factor for one in found} == {2, 3}
    for scenario, one in zip(scenarios, nodes, strict=True):
        racks = {client.rack for client in scenario.clients if client.rack}
        assert racks <= set(one.racks)
        assert bool(racks) == bool(one.racks)


def test_some_seeds_let_a_broker_that_is_no_voter_lose_its_disk() -> None:
    scenarios = [draw_cluster(seed, 3) for seed in range(200)]
    found = [(fault, scenario) for scenario in scenarios for fault in scenario.faults if fault.kind == "lost disk"]
    assert 30 < len(found) < 80
    assert {fault.amount for fault, _ in found} == {0, 1}
    for fault, scenario in found:
        assert scenario.nodes is not None
        assert "broker" in scenario.nodes.roles
        if fault.amount:
            others = [other for other in scenario.faults if other is not fault and other.kind != "late ISR proposal"]
            assert all(other.at_s - fault.at_s > 3 for other in others)
    assert not any(fault.kind == "lost disk" for seed in range(50) for fault in draw_cluster(seed, 1).faults)


def test_some_seeds_remove_voters_and_add_them_again() -> None:
    scenarios = [draw_cluster(seed, 3) for seed in range(200)]
    found = [scenario for scenario in scenarios if scenario.nodes is not None and scenario.nodes.has_dynamic_voters]
    assert 30 < len(found) < 100
    for scenario in scenarios:
        changes = [fault for fault in scenario.faults if fault.kind == "voter change"]
        assert bool(changes) == (scenario in found)
        assert scenario.nodes is not None
        if changes:
            assert sum("controller" in roles for roles in scenario.nodes.roles) >= 3


def has_late_proposal(scenario: Scenario) -> bool:
    return any(fault.kind == "late ISR proposal" for fault in scenario.faults)
