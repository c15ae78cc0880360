"""Who was heard when, on the clock of the one who listens."""

from __future__ import annotations

import pytest

from elastic_runtime.core.liveness import Liveness


def heard(**at: float) -> Liveness:
    liveness = Liveness(silent_after_s=3.0)
    for node, time in at.items():
        liveness.heard(node, time)
    return liveness


@pytest.mark.parametrize(("now", "silent"), [(2.9, []), (3.0, ["a"]), (4.0, ["a", "b"])])
def test_silent_is_who_was_not_heard_for_so_long(now: float, silent: list[str]) -> None:
    assert heard(a=0.0, b=1.0).silent(now) == silent


def test_who_is_forgotten_is_not_silent() -> None:
    liveness = heard(a=0.0)
    liveness.forget("a")
    liveness.forget("never heard of")
    assert liveness.silent(100.0) == [] and liveness.next_look(100.0) is None


def test_the_next_look_sees_silence_in_time_and_one_s_own_pause() -> None:
    assert heard(a=0.0).next_look(0.0) == pytest.approx(0.5)
    assert heard(a=0.0).next_look(2.9) == pytest.approx(3.0)


def test_one_s_own_pause_is_nobody_s_silence() -> None:
    liveness = heard(a=0.0, b=1.0)
    liveness.excuse_own_pause(1.0)
    liveness.excuse_own_pause(61.0)
    assert liveness.silent(61.0) == []
    assert liveness.silent(63.0) == ["a"]  # a second of its silence was before the pause


def test_a_short_pause_of_one_s_own_counts() -> None:
    liveness = heard(a=0.0)
    for now in (0.0, 1.5, 3.0):
        liveness.excuse_own_pause(now)
    assert liveness.silent(3.0) == ["a"]
