"""Which worker's failure is named as the cause, and which ends are no failures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from elastic_runtime.agent.failures import Death, Failures, record_own, report
from elastic_runtime.agent.logs import ERROR_FILE, Output

NOW = 1_700_000_000.0


def error_file(path: Path, error: str, at: float) -> str:
    extra = {"py_callstack": f"Traceback of {error}", "timestamp": str(int(at))}
    path.write_text(json.dumps({"message": {"message": error, "extraInfo": extra}}))
    os.utime(path, (at, at))
    return str(path)


def death(
    slot: int, *, exit_code: int = 1, at: float = NOW, file: str = "", signalled_at: float | None = None
) -> Death:
    output = Output(environment={}, stderr=f"/logs/{slot}/stderr.log", error_file=file)
    return Death(
        slot=slot,
        rank=slot + 4,
        pid=100 + slot,
        exit_code=exit_code,
        at=at,
        signalled_at=signalled_at,
        output=output,
    )


def root(failures: Failures) -> str:
    return str(failures.error()).partition("Root Cause (first observed failure):")[2]


def test_the_first_one_is_the_cause_within_one_second_too(tmp_path: Path) -> None:
    """It wrote its error down first, and was gone last."""
    failures = Failures("train.py")
    failures.add(death(1, at=NOW + 0.2, file=error_file(tmp_path / "1", "RuntimeError: peer", NOW + 0.1)))
    failures.add(death(0, at=NOW + 0.9, file=error_file(tmp_path / "0", "ValueError: cause", NOW)))
    text = str(failures.error())
    assert "train.py FAILED" in text
    assert "Traceback of ValueError: cause" in root(failures) and "rank      : 4 (local_rank: 0)" in root(failures)
    assert "Traceback of RuntimeError: peer" in text


def test_what_the_agent_signalled_did_not_fail(tmp_path: Path) -> None:
    failures = Failures("train.py")
    assert failures.add(death(0, exit_code=-15, signalled_at=NOW - 1)) == ""
    late = error_file(tmp_path / "1", "KeyboardInterrupt: ", NOW)
    assert failures.add(death(1, exit_code=1, signalled_at=NOW - 1, file=late)) == ""
    assert failures.add(death(2, exit_code=0)) == ""
    assert failures.error() is None
    early = error_file(tmp_path / "2", "ValueError: before", NOW - 2)
    assert failures.add(death(3, exit_code=-15, signalled_at=NOW - 1, file=early)) != ""
    assert failures.error() is not None


def test_the_line_about_one(tmp_path: Path) -> None:
    failures = Failures("train.py")
    file = error_file(tmp_path / "0", "ValueError: first line\nsecond", NOW)
    assert failures.add(death(0, file=file)) == " (ValueError: first line), see /logs/0/stderr.log"
    assert failures.add(death(0, file=file), told="the same") == ", see /logs/0/stderr.log"
    assert failures.add(death(0)) == ", see /logs/0/stderr.log"


def test_a_replaced_worker_is_not_reported() -> None:
    failures = Failures("train.py")
    failures.add(death(0))
    failures.replaced(0)
    assert failures.error() is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"message": {}}', '{"message": {"extraInfo": {"timestamp": "x"}}}', '{"message": 3}'],
)
def test_an_error_file_that_makes_no_sense(tmp_path: Path, text: str) -> None:
    path = tmp_path / "error.json"
    path.write_text(text)
    failures = Failures("train.py")
    failures.add(death(0, exit_code=-9, file=str(path)))
    assert "Signal 9 (SIGKILL) received by PID 100" in root(failures)
    assert str(path) in root(failures)


def test_a_traceback_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": {"message": "x", "extraInfo": {"py_callstack": 3, "timestamp": "1"}}}))
    failures = Failures("train.py")
    failures.add(death(0, file=str(path)))
    assert "rank      : 4" in root(failures)


def test_the_report_is_handed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.json"
    monkeypatch.setenv(ERROR_FILE, str(own))
    failures = Failures("train.py")
    failures.add(death(0, exit_code=3, file=error_file(tmp_path / "0", "ValueError: cause", NOW)))
    report(failures, str(own))
    told = capsys.readouterr().err
    assert told.count("train.py FAILED") == 1
    assert "/logs/0/stderr.log" in told
    message = json.loads(own.read_text())["message"]
    assert (message["message"], message["errorCode"]) == ("ValueError: cause", 3)


def test_an_error_of_the_launcher_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.json"
    monkeypatch.setenv(ERROR_FILE, str(own))
    record_own(OSError("the store is gone"), str(own))
    assert json.loads(own.read_text())["message"]["message"] == "OSError: the store is gone"


def test_nothing_to_report_is_no_report(capsys: pytest.CaptureFixture[str]) -> None:
    report(Failures("train.py"), "")
    assert capsys.readouterr().err == ""
