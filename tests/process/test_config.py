"""Jobs that a file describes: what reaches the agent, what reaches the Sessions, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

from tests.process import facts
from tests.process.cluster import JOBS, Agent, Cluster

SCRIPT = JOBS / "configured.py"
STEPS = 40


def written(directory: Path, text: str) -> Path:
    path = directory / "job.toml"
    path.write_text(text)
    return path


def test_a_job_in_a_file(cluster: Cluster) -> None:
    """Agents and Sessions get all they need from it; what the script gives wins, and it is told where all is from."""
    directory = cluster.directory
    path = written(
        directory,
        f"""
        script = "{SCRIPT}"
        args = ["--dir", "{directory}", "--steps", 6, "--reduction", "unused"]
        [launch]
        nproc-per-node = 2
        log_dir = "{directory / "logs"}"
        [session]
        global_batch_size = 24
        micro_batch_size = 4
        seed = 99
        [at.2]
        lr_scale = 0.5
        max_grad_norm = 9.0
        """,
    )
    process = cluster.run("-m", "launcher", "--config", path, "--rdzv-id=named")
    assert process.wait() == 0, process.output()
    facts.check_samples(cluster.ledger(), 6)  # in the order of the script's seed
    journal = Agent(process.popen, process.output_path, directory / "logs").journal()
    ready = [entry for entry in journal if entry["event"] == "ready"]
    assert len(ready) == 2
    sources = ready[0]["sources"]
    assert sources["global_batch_size"] == f"{path}:8" and sources["at.2.lr_scale"] == f"{path}:12"
    assert (sources["seed"], sources["lr_rule"]) == ("script", "default")
    assert json.loads(ready[0]["described"])["at"]["2"]["lr_scale"] == 0.5
    assert sources["at.2.max_grad_norm"] == "not used: the script gives max_grad_norm"
    assert process.output().count("not used, because the script itself gives the value: at.2.max_grad_norm") == 1


def test_what_differs_by_world_size_is_applied_when_the_world_changes(cluster: Cluster) -> None:
    path = written(
        cluster.directory,
        """
        [session]
        global_batch_size = 24
        micro_batch_size = 4
        [at.2]
        micro_batch_size = 2
        lr_scale = 0.5
        """,
    )
    slow = cluster.directory / "slow"
    slow.touch()
    options = ("--dir", cluster.directory, "--steps", STEPS, "--slow-s", 0.05)
    agents = [cluster.agent(SCRIPT, *options, flags=[f"--config={path}"])]
    cluster.wait_for("a step alone", lambda: [e for e in cluster.ledger() if e["kind"] == "committed"])
    agents.append(cluster.agent(SCRIPT, *options, flags=[f"--config={path}"]))
    cluster.wait_for("a step of two", lambda: [e for e in cluster.ledger() if e["world_size"] == 2])
    slow.unlink()
    assert [agent.wait() for agent in agents] == [0, 0], cluster.account()
    ledger = cluster.ledger()
    facts.check_samples(ledger, STEPS)  # the samples of a step are the same in any micro-batches
    sizes = {(e["world_size"], len(e["sample_indices"])) for e in ledger if e["kind"] == "read"}
    assert sizes == {(1, 4), (2, 2)}
    assert {(e["world_size"], e["lr_scale"]) for e in ledger if e["kind"] == "resized"} == {(2, 0.5)}


def test_every_mistake_of_a_file_is_a_line_with_its_place_and_nothing_starts(cluster: Cluster) -> None:
    path = written(cluster.directory, f"scrip = 'a.py'\n[launch]\nmax-restart = 3\nlog_dir = '{cluster.directory}/x'\n")
    process = cluster.run("-m", "launcher", "--config", path, SCRIPT)
    assert process.wait() == 2
    assert process.output().splitlines() == [
        f"elasticrun: {path}:1: scrip is not known; did you mean script?",
        f"elasticrun: {path}:3: [launch] max_restart is not known; did you mean max_restarts?",
    ]
    assert not (cluster.directory / "x").exists()
