"""`elasticctl` against a coordinator that is a thread of this process: command line, finding the job, what is shown."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.agent.doorplate import Doorplate
from elastic_runtime.journal import Journal
from elastic_runtime.rendezvous import control
from elastic_runtime.rendezvous.find import SEAT
from elastic_runtime.stores.tcp import host
from launcher import ctl, doctor, shown
from launcher.checks import Finding
from launcher.doctor import Check
from tests.unit.test_control import LIMIT_S, RUN_ID, TOKEN, Nodes, Served

JOB = {
    "run_id": RUN_ID,
    "generation": 7,
    "kind": "live",
    "state": "settled",
    "reason": "n3 joined",
    "coordinator": {"node": "n1", "address": "10.0.0.1", "port": 41, "since_s": 131.0, "why": "it serves the store"},
    "min_nodes": 1,
    "max_nodes": 4,
    "target": 2,
    "world_size": 4,
    "waiting": "",
    "nodes": [
        {"node": "n1", "address": "10.0.0.1", "slots": 2, "state": "member", "why": "since n3 joined", "ranks": [0, 1]}
        | {"heard_s": 0.12, "joined_s": 4000.0},
        {"node": "n2", "address": "10.0.0.2", "slots": 2, "state": "member", "why": "", "ranks": [2, 3]}
        | {"heard_s": 0.0, "joined_s": 75.0},
        {"node": "n3\x1b[2J", "address": "10.0.0.3", "slots": 2, "state": "standby", "why": "at most 2", "ranks": []}
        | {"heard_s": 12.0, "joined_s": 200000.0},
    ],
}


class Job(Nodes):
    def status(self) -> dict[str, Any]:
        return JOB


class Door:
    """A doorplate in a thread of its own."""

    def __init__(self, **about: Any) -> None:
        self._about = {"run_id": RUN_ID, "node": "n1", "run_dir": "/tmp/x", "token": TOKEN, **about}
        self._up, self.told = threading.Event(), list[str]()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        assert self._up.wait(LIMIT_S)

    async def _main(self) -> None:
        self._loop, self._down = asyncio.get_running_loop(), asyncio.Event()
        plate = Doorplate(self.told.append)
        await plate.open(lambda: self._about)
        self._up.set()
        await self._down.wait()
        plate.close()

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._down.set)
        self._thread.join(LIMIT_S)


@pytest.fixture(autouse=True)
def nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Agents that run on this machine for other reasons are not seen. Returns the directory of doorplates."""
    (tmp_path / "runtime").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "runtime" / "elasticrun"


@pytest.fixture
def governor(tmp_path: Path) -> Job:
    return Job(tmp_path / "journal.jsonl", ["n1-a", "n1-b", "n2-a"])


@pytest.fixture
def here(governor: Job) -> Iterator[Door]:
    """A job with an agent on this machine."""
    served = Served(governor)
    door = Door(address=served.address, port=served.port)
    yield door
    door.end()
    served.end()


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_status_on_one_page() -> None:
    assert shown.status(JOB).splitlines() == [
        "job job: generation 7 (live), 2 nodes, 4 workers, coordinated by n1 since 2m: it serves the store",
        "  settled: n3 joined",
        "  it takes 1 to 4 nodes, resized to at most 2",
        "",
        "  node    address   state    ranks  workers  heard     here for  why",
        "  n1      10.0.0.1  member   0-1    2        0.1s ago  1h06m",
        "  n2      10.0.0.2  member   2-3    2        0.0s ago  1m",
        "  n3?[2J  10.0.0.3  standby  -      2        12s ago   2d07h     at most 2",
    ]


def test_a_job_that_waits_for_its_first_node() -> None:
    waits = {**JOB, "nodes": [], "world_size": 0, "target": None, "waiting": "for 1 node", "max_nodes": 1}
    text = shown.status(waits)
    assert "0 nodes, 0 workers" in text and "  now: for 1 node" in text and "  it takes 1 node\n" in text


def test_an_event_is_one_line() -> None:
    entry = {"time": 1.5, "event": "settled", "generation": 3, "node": "n1", "reason": "n2\nleft", "planned": True}
    entry |= {"world": [{"slot": 0}, {"slot": 1}], "phases": {"detect": 0.00123, "leave": 2.0}, "said": "x" * 99}
    line = shown.event(entry)
    assert ":01.500  g3    settled " in line and line.endswith(
        " n1: n2?left planned=True world=[2] phases=(detect=0.00123 leave=2) said=" + "x" * 60 + "..."
    )
    assert "\n" not in line and shown.event({})


def test_ranges() -> None:
    assert [shown.ranges(r) for r in ([], [4], [2, 0, 1], [0, 2, 3, 9])] == ["-", "4", "0-2", "0,2-3,9"]


# -- the command line -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "COMMAND"),
        ("stop", "invalid choice"),
        ("drain", "NODE"),
        ("resize", "N"),
        ("resize 0", "'0' is not a whole number from 1"),
        ("resize two", "'two' is not a whole number"),
        ("events --last=-1", "'-1' is not a whole number from 0"),
        ("events --last=1000000000000", "not a whole number"),
        ("status --endpoint=host:port", "'port' is not a port"),
        ("status --endpoint=host:0", "'0' is not a port"),
        ("status --endpoint=host:99999999999", "is not a port"),
        ("status --rdzv-backend=etcd3 --endpoint=127.0.0.1:1", "name one by --run-id"),
        ("status --endpoint=a:1,b:2", "one endpoint"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_code_2(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: Any = ctl.main(line.split())
    except SystemExit as exit:
        code = exit.code
    said = capsys.readouterr()
    assert code == 2 and words in said.err and said.err.startswith("elasticctl: ") and said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("", []),
        ("host", [("host", 29400)]),
        ("host:1, other:2,", [("host", 1), ("other", 2)]),
        ("[::1]:7", [("::1", 7)]),
        ("[::1]", [("::1", 29400)]),
        ("fe80::1", [("fe80::1", 29400)]),
        (":5", [("localhost", 5)]),
    ],
)
def test_endpoints(text: str, endpoints: list[tuple[str, int]]) -> None:
    assert ctl._endpoints(text, 29400) == endpoints


def test_flags_may_stand_on_either_side(here: Door, capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("--json --run-id=job status", "status --run-id=job --json", "--run-id job status --json"):
        assert ctl.main(line.split()) == 0
        assert json.loads(capsys.readouterr().out) == JOB


def test_the_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for line, words in (("--help", "examples:"), ("resize --help", "come back when N grows")):
        with pytest.raises(SystemExit) as exit:
            ctl.main(line.split())
        assert exit.value.code == 0 and words in capsys.readouterr().out


def test_the_commands_and_flags_that_people_rely_on() -> None:
    for command in ("status", "events", "drain n", "resize 1", "doctor"):
        found = ctl._parser().parse_args(["--run-id=j", "--endpoint=h:1", "--json", *command.split()])
        assert (found.command, found.run_id, found.endpoint, found.json) == (command.split()[0], "j", "h:1", True)


def test_limits_are_those_of_the_other_side() -> None:
    assert ctl.MOST_EVENTS == control.MOST_EVENTS


# -- a job ------------------------------------------------------------------------------------------------------------


def test_the_job_of_this_machine_is_found(here: Door, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main(["status"]) == 0
    assert capsys.readouterr().out == shown.status(JOB) + "\n"


def test_orders(here: Door, governor: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main(["drain", "n2"]) == 0
    assert ctl.main(["resize", "1", "--json"]) == 0
    assert capsys.readouterr().out.splitlines() == ["n2-a leaves", '{"text": "at most 1 take part"}']
    assert governor.names == ["n1-a", "n1-b"] and governor.target == 1


def test_a_refusal_is_exit_code_2(here: Door, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main(["drain", "n1"]) == 2
    assert ctl.main(["resize", "4"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "elasticctl: 'n1' is none of n1-a, n1-b, n2-a" and "max_nodes=3" in second


def test_events(here: Door, governor: Job, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal(governor.journal, "n1")
    for number in range(30):
        journal.write("settled", generation=number)
    journal.close()
    assert ctl.main(["events"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 20
    assert ctl.main(["events", "--json", "--last=2"]) == 0
    assert [json.loads(line)["generation"] for line in capsys.readouterr().out.splitlines()] == [28, 29]


def test_nobody_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main(["status"]) == 1
    assert "--endpoint HOST:PORT" in capsys.readouterr().err


def test_another_job_here(here: Door, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main(["status", "--run-id=other"]) == 1
    assert "'other', but in job:" in capsys.readouterr().err


def test_several_jobs_here(here: Door, nobody_else: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (nobody_else / next(iter(nobody_else.iterdir())).name).rename(nobody_else / "1.sock")  # of another process
    other = Door(run_id="second", node="m1", address="127.0.0.1", port=1)
    try:
        assert ctl.main(["status"]) == 2
        said = capsys.readouterr().err
        assert "--run-id" in said and "  job: agent n1 (process 1)" in said and "  second: agent m1" in said
        assert ctl.main(["status", "--run-id=job"]) == 0
    finally:
        other.end()


def test_an_agent_that_does_not_know_its_coordinator_yet(capsys: pytest.CaptureFixture[str]) -> None:
    door = Door(address="", port=0)
    try:
        assert ctl.main(["status"]) == 1
        assert "n1 is still looking" in capsys.readouterr().err
    finally:
        door.end()


def test_nobody_at_the_endpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl.main(["status", "--endpoint=127.0.0.1:1"]) == 1
    assert "127.0.0.1:1: Connection refused" in capsys.readouterr().err


def test_a_store_without_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    store = host("127.0.0.1", 0, timeout_s=LIMIT_S)
    try:
        assert ctl.main(["status", f"--endpoint=127.0.0.1:{store.port}"]) == 1
        assert "nobody coordinates an elastic job there" in capsys.readouterr().err
        holder = {"run_id": "job", "node": "n1", "address": "127.0.0.1", "port": 1, "token": TOKEN}
        store.swap(SEAT, holder, 0)
        assert ctl.main(["status", f"--endpoint=127.0.0.1:{store.port}"]) == 1
        assert "coordinator at 127.0.0.1:1 does not answer" in capsys.readouterr().err
        assert ctl.main(["status", "--run-id=x", f"--endpoint=127.0.0.1:{store.port}"]) == 2
    finally:
        store.close()


# -- doctor -----------------------------------------------------------------------------------------------------------


def test_a_check_that_hangs_or_crashes_holds_up_no_other() -> None:
    late = Finding(level="warn", found="too late")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = ("127.0.0.1", str(silent.getsockname()[1]))
        checks = [
            Check(name="hangs", function="store", arguments=("c10d", "", "", *place), limit_s=0.1, late=late),
            Check(name="crashes", function="no such check", limit_s=LIMIT_S),
            Check(name="works", function="python", limit_s=LIMIT_S),
        ]
        found = {check.name: finding for check, finding in doctor.examine(checks)}
    assert found["hangs"] == late
    assert found["crashes"].level == "fail" and "no such check" in found["crashes"].found
    assert found["works"].level == "ok"
