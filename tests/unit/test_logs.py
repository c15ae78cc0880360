"""Where the output of each process goes; what an earlier process wrote is never touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from elastic_runtime.agent.logs import ERROR_FILE, Logs, Output, OutputSettings
from elastic_runtime.core.supervision_events import Announced, Start
from elastic_runtime.core.view import Kind


def start(slot: int, *, generation: int = 1, kind: Kind = Kind.START) -> Start:
    announced = Announced(
        generation=generation,
        kind=kind,
        planned=True,
        reason="",
        world_size=2,
        node_count=1,
        store_host="",
        store_port=0,
        meeting_port=0,
        host_node="",
        members={},
    )
    return Start(slot=slot, spawn=1, announced=announced, restarts=0)


def environment_of(slot: int) -> dict[str, str]:
    return {"RANK": str(10 + slot), "TORCHELASTIC_RESTART_COUNT": "7", "TORCHELASTIC_RUN_ID": "run"}


class Room:
    def __init__(self, run_dir: Path, settings: OutputSettings, slots: int = 2) -> None:
        self.run_dir = run_dir
        self.logs = Logs(settings, run_dir=run_dir, role="trainer", slots=slots)

    def place(self, slot: int, **what: object) -> Output:
        return self.logs.place(start(slot, **what), environment_of)  # type: ignore[arg-type]

    def where(self, path: str) -> str:
        return str(Path(path).relative_to(self.run_dir)) if os.path.isabs(path) and path != os.devnull else path


def test_by_default_only_errors_have_a_file(tmp_path: Path) -> None:
    room = Room(tmp_path, OutputSettings())
    output = room.place(0)
    assert (output.stdout, output.stderr, output.log) == ("", "", "")
    assert room.where(output.error_file) == "attempt_0/0/error.json"
    assert output.environment == {**environment_of(0), ERROR_FILE: output.error_file}


def test_streams_by_local_rank(tmp_path: Path) -> None:
    room = Room(tmp_path, OutputSettings(redirects={0: Std.ALL}, tee={1: Std.ERR, 11: Std.ALL}), slots=12)
    first, second, last = room.place(0), room.place(1), room.place(11)
    assert [room.where(p) for p in (first.stdout, first.stderr)] == ["attempt_0/0/stdout.log", "attempt_0/0/stderr.log"]
    assert [room.where(p) for p in (second.stdout, second.stderr)] == ["", "attempt_0/1/stderr.log"]
    assert [len(each.streams) for each in (first, second, last)] == [0, 1, 2]
    assert last.streams[0].prefix == b"[trainer11]:"
    room.logs.close()


def test_hidden_ranks_keep_their_files_and_are_silent_otherwise(tmp_path: Path) -> None:
    room = Room(tmp_path, OutputSettings(tee=Std.OUT, shown=frozenset({1})))
    hidden, shown = room.place(0), room.place(1)
    assert (room.where(hidden.stdout), hidden.stderr, hidden.streams) == ("attempt_0/0/stdout.log", os.devnull, [])
    assert (shown.stderr, len(shown.streams)) == ("", 1)
    room.logs.close()


def test_a_template_for_what_precedes_a_line(tmp_path: Path) -> None:
    room = Room(tmp_path, OutputSettings(tee=Std.OUT, prefix="${role_name}/${local_rank}/${rank}/${else} "))
    assert room.place(1).streams[0].prefix == b"trainer/1/11/${else} "
    room.logs.close()


def test_a_group_shares_an_attempt_and_a_replaced_worker_has_its_own(tmp_path: Path) -> None:
    room = Room(tmp_path, OutputSettings(redirects=Std.ALL))
    starts = [
        (0, 1, Kind.START),
        (1, 1, Kind.START),
        (0, 3, Kind.START),  # the group is started anew
        (1, 3, Kind.START),
        (1, 4, Kind.LIVE),  # replaced
        (0, 4, Kind.LIVE),
        (0, 4, Kind.LIVE),
    ]
    placed = [room.place(slot, generation=generation, kind=kind) for slot, generation, kind in starts]
    assert [room.where(each.stdout).removesuffix("/stdout.log") for each in placed] == [
        "attempt_0/0",
        "attempt_0/1",
        "attempt_1/0",
        "attempt_1/1",
        "attempt_2/1",
        "attempt_3/0",
        "attempt_4/0",
    ]


def test_the_workers_that_a_node_joins_with_share_an_attempt(tmp_path: Path) -> None:
    room = Room(tmp_path, OutputSettings())
    placed = [room.place(slot, generation=5, kind=Kind.LIVE) for slot in (0, 1)]
    assert [room.where(each.error_file) for each in placed] == ["attempt_0/0/error.json", "attempt_0/1/error.json"]


def test_an_agent_that_comes_back_leaves_what_is_there(tmp_path: Path) -> None:
    before = Room(tmp_path, OutputSettings()).place(0)
    Path(before.error_file).write_text("kept")
    again = Room(tmp_path, OutputSettings())
    assert again.where(again.place(0).error_file) == "attempt_1/0/error.json"
    assert Path(before.error_file).read_text() == "kept"


def test_without_files(tmp_path: Path) -> None:
    output = Room(tmp_path, OutputSettings(redirects=Std.ALL, tee=Std.ALL, to_files=False)).place(0)
    assert (output.stdout, output.stderr, output.error_file, output.streams) == ("", "", "", [])
    assert output.environment[ERROR_FILE] == ""
    assert list(tmp_path.iterdir()) == []


def test_lines_that_match_are_kept_apart(tmp_path: Path) -> None:
    room = Room(tmp_path, OutputSettings(tee=Std.OUT, stdout_filters=("loss",)))
    for slot in (0, 1):
        output = room.place(slot)
        Path(output.stdout).write_text(f"loss {slot}\nother\n")
        room.logs.ended(output)
    room.logs.close()
    lines = (tmp_path / "attempt_0" / "filtered_stdout.log").read_text().splitlines()
    assert sorted(lines) == ["[trainer0]:loss 0", "[trainer1]:loss 1"]


def test_another_layout(tmp_path: Path) -> None:
    """torch's own stands for any that is installed: it is asked for groups, each time under a number never used."""
    specs = DefaultLogsSpecs(log_dir=str(tmp_path / "theirs"), redirects=Std.ALL)
    (tmp_path / "ours").mkdir()
    room = Room(tmp_path / "ours", OutputSettings(specs=specs))
    first = [room.place(0), room.place(1)]
    Path(first[1].stdout).write_text("kept")
    replaced = room.place(1, generation=2, kind=Kind.LIVE)
    (run,) = (tmp_path / "theirs").iterdir()
    assert [str(Path(each.stdout).relative_to(run)) for each in (*first, replaced)] == [
        "attempt_0/0/stdout.log",
        "attempt_0/1/stdout.log",
        "attempt_1/1/stdout.log",
    ]
    assert Path(first[1].stdout).read_text() == "kept"
    assert replaced.environment == {**environment_of(1), ERROR_FILE: str(run / "attempt_1/1/error.json")}


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        (OutputSettings(), False),
        (OutputSettings(tee=Std.OUT), True),
        (OutputSettings(redirects={0: Std.ERR}), True),
        (OutputSettings(redirects=Std.ALL, to_files=False), False),
    ],
)
def test_whether_files_are_kept_after_a_job_that_went_well(settings: OutputSettings, kept: bool) -> None:
    assert settings.keeps_files is kept
