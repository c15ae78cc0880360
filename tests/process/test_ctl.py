"""`elasticctl` and a real job: what a person sees of it, and what it does when it is told to."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher import ctl, endpoint_checks
from tests.etcd.server import Etcd
from tests.process.cluster import JOBS, Agent, Cluster, Process

ENDLESS = 10**6


class Job:
    """The ledger job, and the commands of a person who sits at the same machine or, with an endpoint, elsewhere."""

    def __init__(self, cluster: Cluster, runtime: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.cluster, self._capture = cluster, capture
        (cluster.directory / "slow").touch()
        self.variables = {"XDG_RUNTIME_DIR": str(runtime), "TMPDIR": str(runtime)}
        self.endpoint = f"--endpoint=127.0.0.1:{cluster.port}"

    def agent(self, *flags: str) -> Agent:
        options = ("--dir", self.cluster.directory, "--steps", ENDLESS, "--slow-s", 0.02)
        return self.cluster.agent(JOBS / "ledger.py", *options, flags=flags, variables=self.variables)

    def start(self, *arguments: object) -> Process:
        return self.cluster.run("-m", "launcher.ctl", *arguments, variables=self.variables)

    def ctl(self, *arguments: object, exit_code: int = 0) -> str:
        """The same in this process, which has imported torch already."""
        found = ctl.main([str(argument) for argument in arguments])
        said = self._capture.readouterr()
        assert found == exit_code, said.out + said.err + self.cluster.account()
        return said.out or said.err

    def status(self) -> dict[str, Any]:
        answer = json.loads(self.ctl("status", "--json", self.endpoint))
        assert isinstance(answer, dict)
        return answer

    def steps_go_on(self, workers: int) -> None:
        """Wait until three steps more than by now are committed, in a world of so many workers."""
        seen = len(self.cluster.ledger())

        def look() -> bool:
            new = [e for e in self.cluster.ledger()[seen:] if e["kind"] == "committed"]
            return len({e["step"] for e in new if e["world_size"] == workers}) >= 3

        self.cluster.wait_for(f"three more steps by {workers} workers", look)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Agents that run on this machine for other reasons are not seen."""
    path = tmp_path / "runtime"
    path.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    monkeypatch.setattr("tempfile.tempdir", str(path))
    return path


@pytest.fixture
def job(cluster: Cluster, runtime: Path, capsys: pytest.CaptureFixture[str]) -> Job:
    return Job(cluster, runtime, capsys)


@pytest.fixture
def two_jobs(tmp_path: Path, runtime: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[tuple[Job, Job]]:
    clusters = [Cluster(tmp_path / name, run_id=name) for name in ("first", "second")]
    first, second = (Job(cluster, runtime, capsys) for cluster in clusters)
    yield first, second
    for cluster in clusters:
        cluster.close()


def states(status: dict[str, Any]) -> dict[str, str]:
    return {node["node"]: node["state"] for node in status["nodes"]}


def test_status_tells_who_takes_part(job: Job) -> None:
    host, other = job.agent(), job.agent()
    job.steps_go_on(2)
    status = job.status()
    assert (status["run_id"], status["kind"], status["state"]) == ("job", "live", "settled")
    assert (status["min_nodes"], status["max_nodes"], status["world_size"]) == (1, 4, 2)
    assert status["generation"] == job.cluster.events("settled")[-1]["generation"]
    assert status["coordinator"]["node"] == host.node
    assert states(status) == {host.node: "member", other.node: "member"}
    assert {node["node"]: node["ranks"] for node in status["nodes"]} == {host.node: [0], other.node: [1]}
    text = job.ctl("status", job.endpoint)
    assert text.startswith(f"job job: generation {status['generation']} (live), 2 nodes, 2 workers, coordinated by")
    assert [line.split()[2:4] for line in text.splitlines() if other.node in line.split()[:1]] == [["member", "1"]]


@pytest.mark.slow
def test_events_are_those_of_the_journal_and_can_be_followed_to_the_end(job: Job) -> None:
    host = job.agent()
    job.steps_go_on(1)
    follower = job.start("events", "--follow", "--last=10000", "--json", job.endpoint)
    job.cluster.wait_for("the past is told", lambda: '"event": "settled"' in follower.output())
    other = job.agent()
    joined = job.cluster.wait_for_event("joined", count=2)[-1]
    name = joined["reason"].split()[0]
    job.cluster.wait_for("a later event is told", lambda: name in follower.output())
    job.steps_go_on(2)
    told = [json.loads(line) for line in job.ctl("events", "--last=10000", "--json", job.endpoint).splitlines()]
    assert joined in told and told == host.journal()[: len(told)]
    assert len(job.ctl("events", "--last=2", job.endpoint).splitlines()) == 2
    host.signal(signal.SIGINT)
    host.wait()
    other.wait()
    assert follower.wait() == 0
    assert "has ended" in follower.output()
    followed = [json.loads(line) for line in follower.output().splitlines() if line.startswith("{")]
    assert followed == host.journal()[: len(followed)] and len(followed) >= len(told)


@pytest.mark.slow
def test_a_drained_node_leaves_and_the_others_go_on(job: Job) -> None:
    host, other = job.agent(), job.agent()
    job.steps_go_on(2)
    refusal = job.ctl("drain", "nobody", job.endpoint, exit_code=2)
    assert host.node in refusal and other.node in refusal and refusal.count("\n") == 1
    assert other.node in job.ctl("drain", other.node, job.endpoint)
    assert other.wait() == 0, job.cluster.account()
    (exited,) = job.cluster.events("worker_exited", node=other.node)
    assert exited["exit_code"] == 0, "a drained worker finishes its step and ends by itself"
    job.steps_go_on(1)
    assert states(job.status()) == {host.node: "member"}


@pytest.mark.slow
def test_a_node_is_named_by_the_beginning_of_its_name(job: Job) -> None:
    host, other = job.agent(), job.agent()
    job.steps_go_on(2)
    common = next(i for i, (a, b) in enumerate(zip(host.node, other.node, strict=False)) if a != b)
    both = job.ctl("drain", other.node[:common], job.endpoint, exit_code=2)
    assert host.node in both and other.node in both, "the beginning of two names is none"
    job.ctl("drain", other.node[: common + 1], job.endpoint)
    assert other.wait() == 0
    job.steps_go_on(1)


def test_resized_down_a_node_stands_by_and_comes_back(job: Job) -> None:
    host, other = job.agent(), job.agent()
    job.steps_go_on(2)
    job.ctl("resize", 1, job.endpoint)
    job.steps_go_on(1)
    status = job.status()
    assert status["target"] == 1 and states(status) == {host.node: "member", other.node: "standby"}
    assert other.popen.poll() is None
    job.ctl("resize", 2, job.endpoint)
    job.steps_go_on(2)
    assert states(job.status()) == {host.node: "member", other.node: "member"}
    assert "4" in job.ctl("resize", 5, job.endpoint, exit_code=2), "the refusal names the job's MAX"


def test_the_job_of_this_machine_needs_no_endpoint(job: Job) -> None:
    job.agent()
    job.steps_go_on(1)
    assert job.ctl("status").startswith("job job: ")
    assert job.ctl("status", "--run-id=job").startswith("job job: ")
    assert "job" in job.ctl("status", "--run-id=other", exit_code=1)


@pytest.mark.slow
def test_of_several_jobs_one_has_to_be_named(two_jobs: tuple[Job, Job]) -> None:
    first, second = two_jobs
    for each in two_jobs:
        each.agent()
    for each in two_jobs:
        each.steps_go_on(1)
    listed = first.ctl("status", exit_code=2)
    assert "--run-id" in listed and "first" in listed and "second" in listed
    assert first.ctl("status", "--run-id=second").startswith("job second: ")


@pytest.mark.slow
def test_what_is_not_the_job_is_told(job: Job) -> None:
    job.agent()
    job.steps_go_on(1)
    assert "serves the job 'job', not 'other'" in job.ctl("status", "--run-id=other", job.endpoint, exit_code=2)
    assert job.ctl("status", "--endpoint=127.0.0.1:1", exit_code=1).count("\n") == 1


@pytest.mark.slow
def test_doctor_follows_the_way_to_a_job(job: Job) -> None:
    host = job.agent()
    job.steps_go_on(1)
    found = {each["check"]: each for each in json.loads(job.ctl("doctor", "--json", job.endpoint))}
    assert not [each for each in found.values() if each["level"] == "fail"]
    assert found["gloo"]["level"] == "ok", found
    assert found[f"reach 127.0.0.1:{job.cluster.port}"]["level"] == "ok"
    assert found["store"]["level"] == "ok" and host.node in found["store"]["found"], found["store"]
    text = job.ctl("doctor")
    assert text.splitlines()[-1].endswith("0 failures")


def test_no_job_on_this_machine(job: Job) -> None:
    process = job.start("status")
    assert process.wait() == 1
    told = process.output()
    assert told.startswith("elasticctl: ") and "--endpoint HOST:PORT" in told and told.count("\n") == 1


def test_on_etcd_the_job_is_found_by_its_name_and_drains_its_coordinator(job: Job) -> None:
    with Etcd() as server:
        where = ",".join(f"{host}:{port}" for host, port in server.endpoints)
        store = ("--rdzv-backend=etcd3", f"--endpoint={where}")
        flags = ("--rdzv-backend=etcd3", f"--rdzv-endpoint={where}")
        agents = [job.agent(*flags), job.agent(*flags)]
        job.steps_go_on(2)
        assert "by --run-id" in job.ctl("status", *store, exit_code=2)
        assert "nobody coordinates job 'other'" in job.ctl("status", *store, "--run-id=other", exit_code=1)
        by_name = ("--run-id=job", "--json", *store)
        coordinator = json.loads(job.ctl("status", *by_name))["coordinator"]["node"]
        place = [str(part) for part in server.endpoints[0]]
        assert coordinator in endpoint_checks.store("etcd3", "job", "", *place).found
        assert "--rdzv-backend=etcd3" in endpoint_checks.store("c10d", "job", "", *place).remedy
        job.ctl("drain", coordinator, *by_name)
        (leaving,) = (agent for agent in agents if agent.node == coordinator)
        assert leaving.wait() == 0
        job.steps_go_on(1)
        status = json.loads(job.ctl("status", *by_name))
        assert status["coordinator"]["node"] != coordinator and len(status["nodes"]) == 1
        assert json.loads(job.ctl("status", "--json"))["coordinator"] | {"since_s": 0} == (
            status["coordinator"] | {"since_s": 0}
        ), "the agent of this machine knows of the new coordinator"
