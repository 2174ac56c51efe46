"""The checker finds each kind of broken promise, and nothing in a sound history."""

from dataclasses import replace

import pytest

from .checker import History, Polled, Sent, violations


def sent(value: int, offset: int | None, **more: object) -> Sent:
    base = Sent(process="p", partition=0, value=value, outcome="ok" if offset is not None else "unknown", offset=offset)
    return replace(base, **more)  # type: ignore[arg-type]  # the fields are named by each test


def read(value: int, offset: int, *, process: str = "c", life: int = 0) -> Polled:
    return Polled(process=process, life=life, partition=0, offset=offset, value=value)


SOUND = History(
    sent=[sent(10, 0), sent(11, 1), sent(12, None), sent(20, 3, transaction=1), sent(21, 5, transaction=2)],
    polled=[read(10, 0), read(11, 1), read(12, 2), read(20, 3), read(10, 0, life=1)],
    final=[read(10, 0), read(11, 1), read(12, 2), read(20, 3)],
    transactions={1: "ok", 2: "fail"},
)


def test_a_sound_history_has_no_violations() -> None:
    assert violations(SOUND) == {}


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("inconsistent_offsets", replace(SOUND, polled=[read(12, 0)])),
        ("duplicates", replace(SOUND, polled=[read(10, 0), read(10, 4)])),
        ("lost_writes", replace(SOUND, sent=[*SOUND.sent, sent(13, 2)])),
        ("unseen", replace(SOUND, sent=[*SOUND.sent, sent(13, 9)])),
        ("aborted_reads", replace(SOUND, final=[*SOUND.final, read(21, 5)])),
        (
            "aborted_reads",
            replace(SOUND, sent=[*SOUND.sent, sent(14, None, outcome="fail")], final=[*SOUND.final, read(14, 7)]),
        ),
        (
            "torn_transactions",
            replace(
                SOUND,
                sent=[*SOUND.sent, sent(30, 6, transaction=3), sent(31, 7, transaction=3)],
                final=[*SOUND.final, read(30, 6)],
                transactions={**SOUND.transactions, 3: "unknown"},
            ),
        ),
        ("never_written", replace(SOUND, final=[*SOUND.final, read(99, 8)])),
        ("poll_order", replace(SOUND, polled=[read(11, 1), read(10, 0)])),
        ("poll_order", replace(SOUND, polled=[read(10, 0), read(12, 2)])),
        ("nonmonotonic_sends", replace(SOUND, sent=[sent(11, 1), sent(10, 0), *SOUND.sent[2:]])),
    ],
)
def test_each_broken_promise_is_found(name: str, broken: History) -> None:
    assert name in violations(broken)
