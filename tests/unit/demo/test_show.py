"""The terminal: what it says of a run, and that it never says "ready" or "balanced" in green of a city that is late."""

from typing import Any

from hailbus_demo.show import Screen, ledger_table, plain_line
from rich.console import Console

GREEN, YELLOW, RED = "\x1b[32m", "\x1b[33m", "\x1b[31m"


def state(*, lag_s: float = 0.4, balanced: bool | None = None, so_far: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "phase": "catching_up",
        "event_time": "2014-05-01T07:35:12Z",
        "rides": {"requested": 3_001, "completed": 2_762, "cancelled": 30, "unmatched": 9, "in_flight": 200},
        "events": 41_204,
        "events_per_s": 341.2,
        "recommendations_served": 12,
        "lake_rows": None,
        "hottest": [
            {"cell": "882a100d67fffff", "zone": "Midtown Center", "multiplier": 1.5},
            {"cell": "882a100d65fffff", "zone": "Midtown Center", "multiplier": 1.4},
            {"cell": "882a100d61fffff", "zone": "Chelsea", "multiplier": 1.2},
        ],
        "groups": [{"group": "surge", "lag_records": 90_100, "lag_s": lag_s, "progress": "catching up"}],
        "processes": [{"name": "surge", "state": "ready", "memory_mb": 90.0, "restarts": 1}],
        "balanced": balanced,
        "so_far": so_far,
        "lines": [{"name": "a", "verdict": "agrees", "between": ["b", "c"], "detail": "all"}],
        "left_out": [],
        "share_done": None,
        "kills": [],
        **more,
    }


def printed(thing: Any, *, width: int = 120) -> str:
    console = Console(width=width, force_terminal=True, color_system="standard", legacy_windows=False)
    with console.capture() as capture:
        console.print(thing)
    return capture.get()


def test_a_group_that_is_far_behind_is_red_and_nothing_is_ready() -> None:
    text = printed(Screen(Console())._table(state(lag_s=107)))
    assert "✗ surge 107 s behind, catching up" in text
    assert f"{RED}107 s behind" in text
    assert GREEN not in text
    assert "ready" not in text


def test_a_group_that_is_late_is_yellow() -> None:
    text = printed(Screen(Console())._table(state(lag_s=8)))
    assert "▲ surge 8 s behind, catching up" in text
    assert f"{YELLOW}8 s behind" in text
    assert GREEN not in text


def test_a_city_that_keeps_up_is_green() -> None:
    text = printed(Screen(Console())._table(state()))
    assert "✓ up to date" in text
    assert f"{GREEN}ready" in text


def test_a_ledger_that_balances_is_green_only_when_every_group_has_read_to_the_end() -> None:
    green = "\x1b[1;3;32m"
    assert green in printed(ledger_table(state(balanced=True, so_far=False)))
    assert green not in printed(ledger_table(state(balanced=True, so_far=False, lag_s=107)))


def test_places_have_their_names() -> None:
    text = printed(Screen(Console())._table(state()))
    assert "Midtown Center 1.5×  Chelsea 1.2×" in text
    assert "882a" not in text + plain_line(state())


def test_a_plain_line_begins_with_the_worst_and_is_not_long() -> None:
    line = plain_line(state(lag_s=107))
    assert line == (
        "✗ surge 107 s behind, catching up | catching up 2014-05-01 07:35:12 | 3,001 rides (200 in flight) "
        "| 41,204 events, 341/s | Midtown Center 1.5× | restarts surge:1"
    )
    assert len(line) < 170


def test_a_run_with_an_end_has_a_bar() -> None:
    assert "43%" in printed(Screen(Console())._table(state(share_done=0.43)))
    assert "catching up 43% 2014-05-01 07:35:12" in plain_line(state(share_done=0.43))


def test_kills_are_listed_with_how_long_the_process_was_away() -> None:
    kills = [
        {"process": "broker-2", "role": "active controller", "back_after_s": 1.42},
        {"process": "surge", "role": "surge", "back_after_s": None},
    ]
    lines = printed(Screen(Console())._table(state(kills=kills))).splitlines()
    (broker,) = [line for line in lines if "broker-2" in line]
    assert broker.split() == ["broker-2", "active", "controller", "1.4", "s"]
    (surge,) = [line for line in lines if "not yet" in line]
    assert surge.split()[0] == "surge"
    assert YELLOW in surge
