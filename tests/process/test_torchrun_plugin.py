"""Stock torchrun whose rendezvous is this project's membership: its own restarts, at what the membership tells it."""

from __future__ import annotations

import signal
from importlib.metadata import entry_points

import pytest

from tests.etcd.server import Etcd
from tests.process.cluster import JOBS, Cluster, Entry, Lines, Process

SCRIPT = JOBS / "grouped.py"
SOON_S = 10.0  # a restart takes two or three seconds here, most of them torch's import


class Torchrun:
    """A job of stock torchrun's agents, and what its workers wrote down. On the embedded store the first one hosts."""

    def __init__(self, cluster: Cluster, backend: str, endpoint: str) -> None:
        self.cluster, self._backend, self._endpoint = cluster, backend, endpoint
        self._facts = Lines(cluster.directory / "grouped.jsonl")

    def agent(self, *conf: str, nnodes: str = "1:3") -> Process:
        settings = ",".join(["last_call_timeout=1.5", *conf])
        return self.cluster.run(
            *("-m", "torch.distributed.run", f"--nnodes={nnodes}", "--nproc-per-node=1", "--max-restarts=3"),
            *(f"--rdzv-backend={self._backend}", f"--rdzv-endpoint={self._endpoint}", "--rdzv-id=job"),
            *("--local-addr=127.0.0.1", f"--rdzv-conf={settings}", SCRIPT),
            variables={"TMPDIR": str(self.cluster.directory)},
        )

    def groups(self) -> list[list[Entry]]:
        """The groups that began, by their store, each with the entries of its workers."""
        found: dict[int, list[Entry]] = {}
        for entry in self._facts.read():
            if entry["event"] == "began":
                found.setdefault(entry["port"], []).append(entry)
        return list(found.values())

    def group(self, number: int, *agents: Process, within_s: float = 60.0) -> list[Entry]:
        """The number-th group (from 0) once all of its workers have begun, one for each of these agents."""

        def look() -> list[Entry]:
            groups = self.groups()
            here = groups[number] if len(groups) > number else []
            return here if here and len(here) == here[0]["world_size"] else []

        entries = self.cluster.wait_for(f"group {number} has begun", look, within_s)
        assert {e["agent"] for e in entries} == {agent.pid for agent in agents}
        assert sorted(e["rank"] for e in entries) == list(range(len(agents)))
        assert all((e["nodes"], e["node"]) == (e["world_size"], e["rank"]) for e in entries)
        assert len(self.groups()) == number + 1, "nothing restarts without a reason"
        return entries

    def mark(self, name: str, text: str = "") -> None:
        """Tell the workers something; the file appears with its text in it."""
        temporary = self.cluster.directory / f"{name}.new"
        temporary.write_text(text)
        temporary.rename(self.cluster.directory / name)

    def finish(self, *agents: Process) -> None:
        self.mark("stop")
        assert [agent.wait() for agent in agents] == [0] * len(agents)
        assert not {agent.pid for agent in agents} & self.journals().keys(), "a success leaves no files"

    def journals(self) -> dict[int, list[Entry]]:
        """What agents that are still there, or ended badly, wrote down, by their process."""
        found = {}
        for path in self.cluster.directory.glob("torchrun_*/journal.jsonl"):
            if entries := Lines(path).read():
                found[int(entries[0]["node"].split("-")[-2])] = entries
        return found


@pytest.fixture
def torchrun(cluster: Cluster) -> Torchrun:
    names = {point.name for point in entry_points(group="torchrun.handlers")}
    assert {"elastic", "etcd3"} <= names, "the package is not installed as it is now: make test does that"
    return Torchrun(cluster, "elastic", f"127.0.0.1:{cluster.port}")


def test_a_job_forms_restarts_grows_shrinks_and_finishes(torchrun: Torchrun) -> None:
    a, b = torchrun.agent("is_host=1"), torchrun.agent("is_host=0")
    first = torchrun.group(0, a, b)

    torchrun.mark("fail", "1")
    second = torchrun.group(1, a, b, within_s=SOON_S)
    assert {e["pid"] for e in first}.isdisjoint(e["pid"] for e in second)

    c = torchrun.agent("is_host=0")
    torchrun.group(2, a, b, c)

    c.signal(signal.SIGKILL)
    fourth = torchrun.group(3, a, b, within_s=SOON_S)
    assert min(e["restarts"] for e in fourth) == 0, "only a worker's own failure is charged"
    torchrun.finish(a, b)


@pytest.mark.slow
def test_an_agent_that_was_silent_comes_back_as_a_new_node(torchrun: Torchrun) -> None:
    a, b = (torchrun.agent(f"is_host={host}", "dead_after=1") for host in (1, 0))
    torchrun.group(0, a, b)
    b.signal(signal.SIGSTOP)
    torchrun.group(1, a, within_s=SOON_S)
    b.signal(signal.SIGCONT)
    torchrun.group(2, a, b)
    assert "it joins anew" in b.output()
    torchrun.finish(a, b)


@pytest.mark.slow
def test_without_the_store_that_an_agent_served_the_others_end(torchrun: Torchrun) -> None:
    a, b = torchrun.agent("is_host=1"), torchrun.agent("is_host=0")
    torchrun.group(0, a, b)
    a.signal(signal.SIGKILL)
    assert b.wait(SOON_S) == 1
    assert "the job cannot go on without it" in b.output()


def test_on_etcd_any_agent_may_go(cluster: Cluster) -> None:
    with Etcd() as server:
        torchrun = Torchrun(cluster, "etcd3", ",".join(f"{host}:{port}" for host, port in server.endpoints))
        a, b, c = (torchrun.agent() for _ in range(3))
        first = torchrun.group(0, a, b, c)
        host = next(agent for agent in (a, b, c) if agent.pid == first_rank(first))
        others = [agent for agent in (a, b, c) if agent is not host]
        host.signal(signal.SIGKILL)  # the first to come: it coordinates, and serves the store of the group
        second = torchrun.group(1, *others, within_s=SOON_S)
        server.kill()
        told = {agent.pid for agent in others}
        torchrun.cluster.wait_for(
            "the outage is noticed",
            lambda: told <= {pid for pid, js in torchrun.journals().items() if "store_out" in {e["event"] for e in js}},
        )
        assert len(torchrun.groups()) == 2, "nothing changes for running workers"
        server.restart()
        host, other = sorted(others, key=lambda agent: agent.pid != first_rank(second))
        host.signal(signal.SIGTERM)
        torchrun.group(2, other, within_s=SOON_S)
        assert host.wait(SOON_S) == 1
        torchrun.finish(other)


def first_rank(group: list[Entry]) -> int:
    """The agent of rank 0."""
    return next(int(e["agent"]) for e in group if e["rank"] == 0)


@pytest.mark.parametrize("joins", ["torchrun", pytest.param("elasticrun", marks=pytest.mark.slow)])
def test_the_two_launchers_are_not_mixed(torchrun: Torchrun, joins: str) -> None:
    def elasticrun() -> Process:
        return torchrun.cluster.agent(SCRIPT, flags=[f"--rdzv-conf=is_host={int(joins == 'torchrun')}"])

    first, other = (elasticrun, torchrun.agent) if joins == "torchrun" else (torchrun.agent, elasticrun)
    member = first()
    torchrun.cluster.wait_for("the job runs", torchrun.groups)
    stranger = other()
    assert stranger.wait() == (1 if joins == "torchrun" else 2)
    member_front = "elasticrun" if joins == "torchrun" else "torchrun"
    reason = f"started by {joins} and the job by {member_front}: choose another --rdzv-id"
    if joins == "torchrun":  # what torch's agent ends by, which goes into its error file, and not only a line beside it
        assert f"RendezvousError: the job goes on without this node: it was {reason}" in stranger.output()
    assert reason in stranger.output()
    assert len(torchrun.groups()) == 1
    torchrun.mark("stop")
    assert member.wait() == 0
