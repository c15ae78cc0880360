"""N agents join one job and settle its first world: seconds, requests and bytes, and how they grow with N.

Three ways in the same run: a real etcd (one member, its data in /dev/shm), the embedded store, and torch's
DynamicRendezvousHandler on its c10d backend as far as it comes within a limit of time.

Three of the N nodes are real (a `Membership` with a `Coordination` each; the first of them leads, in a process of its
own); the others are light: tasks in a few processes, each with a link, a record and a watch on the seat of its own.
They share their process's handle on the store, and read the seat once where a real node does so a few times.
What starts a process is not timed. Beats are left out of requests and bytes: they count time, not joins.

    seconds       from the first agent's start to the moment when the last one has the announcement of all N
    live          the same for the next world: every worker opens its Session, the second generation, its adoption
    requests      calls to the store, and frames over links
    bytes         payload over links and to the embedded store as the kernel counts it; etcd's as etcd does
    etcd          the calls as etcd itself has counted them
    join          one more (real) node joins: seconds, requests and bytes without the announcement to the N others and
                  their answers, whose bytes are in brackets. Most of what is left is the coordinator's document in
                  the store, which grows with the world and is written once a change
    take-over     the coordinator is killed: until all are linked to the next one and have its first world. Three real
                  nodes claim the seat; a light one claims it over a term that nobody holds, which costs the same and
                  is always lost

    python benchmarks/rendezvous.py --repeats 3 --markdown FILE
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.jobs.rendezvous_report import Result, growth, median, surroundings, table  # noqa: E402
from tests.etcd.server import Etcd, program  # noqa: E402

SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
TORCH_SIZES = (8, 16, 32, 64, 128)
TAKE_OVERS = (64, 256, 1024)
REAL_NODES = 3  # and a fourth that joins later, which is not one of the N
LIMIT_S = 120.0  # for everything that is done with one job


class Part:
    """A process of the measurement."""

    def __init__(self, script: str, plan: dict[str, Any]) -> None:
        command = [sys.executable, str(ROOT / "benchmarks" / "jobs" / script), json.dumps(plan)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def ask(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args[1]} ended, or took longer than {LIMIT_S:g} s")
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def parts(*planned: tuple[str, dict[str, Any]]) -> Iterator[list[Part]]:
    """Processes that are lined up: their interpreters run, their imports are done. Killed at the end, or when late."""
    started: list[Part] = []

    def kill_all() -> None:
        for part in started:
            part.process.kill()

    late = threading.Timer(LIMIT_S, kill_all)
    late.start()
    try:
        started += [Part(script, plan) for script, plan in planned]
        for part in started:
            part.answer()
        yield started
    finally:
        late.cancel()
        for part in reversed(started):  # whoever leads at last
            part.kill()


def ask_all(among: Sequence[Part], **command: Any) -> list[Any]:
    for part in among:
        part.ask(**command)
    return [part.answer() for part in among]


def shares(numbers: range, ways: int) -> list[list[int]]:
    return [list(numbers[way::ways]) for way in range(ways) if numbers[way::ways]]


# -- ours -------------------------------------------------------------------------------------------------------------


class Count:
    """Requests and bytes so far, of all processes and of etcd."""

    def __init__(self, among: Sequence[Part], etcd: Etcd | None) -> None:
        self.counted: Counter[str] = Counter()
        for each in ask_all(among, do="count"):
            self.counted.update(each)
        self.etcd = metrics(etcd) if etcd is not None else None

    def since(self, before: Count) -> tuple[float, float, float | None]:
        """Requests, bytes, and etcd's own count of the requests made to it."""
        new = Counter(self.counted)
        new.subtract(before.counted)
        calls = new["etcd call"] + new["etcd watch"] + new["tcp call"]
        frames = sum(n for what, n in new.items() if what.startswith(("up ", "down ")) and what != "up beat")
        transferred = float(new["link bytes"] + new["store bytes"])
        if self.etcd is None or before.etcd is None:
            return calls + frames, transferred, None
        handled, etcd_bytes = (now - then for now, then in zip(self.etcd, before.etcd, strict=True))
        return calls + frames, transferred + etcd_bytes, handled


def metrics(etcd: Etcd) -> tuple[float, float]:
    """Requests that etcd has handled, those on streams of watches too but for renewals, and bytes in and out."""
    host, port = etcd.endpoint
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{host}:{port}/metrics", timeout=10.0) as answer:
        lines = answer.read().decode().splitlines()
    handled = transferred = 0.0
    for line in lines:
        name, _, value = line.rpartition(" ")
        if (name.startswith("grpc_server_handled_total") and "KeepAlive" not in name) or (
            name.startswith("grpc_server_msg_received_total") and 'grpc_method="Watch"' in name
        ):
            handled += float(value)
        elif name.startswith("etcd_network_client_grpc_"):
            transferred += float(value)
    return handled, transferred


def settle(nodes: int, etcd: Etcd | None, processes: int, run_id: str, *, take_over: bool) -> Result:
    port = etcd.endpoint[1] if etcd is not None else free_port()
    with tempfile.TemporaryDirectory() as folder:
        backend = "tcp" if etcd is None else "etcd3"
        plan = {"backend": backend, "port": port, "run_id": run_id}
        real = {**plan, "folder": folder, "nodes": nodes}
        light = [("rendezvous_agents.py", {**plan, "numbers": n}) for n in shares(range(REAL_NODES, nodes), processes)]
        leader = ("rendezvous_members.py", {**real, "numbers": [0]})
        others = ("rendezvous_members.py", {**real, "numbers": [*range(1, REAL_NODES)]})
        newcomer = ("rendezvous_members.py", {**real, "numbers": [nodes]})
        with parts(leader, others, *light, newcomer) as started:
            *among, late = started
            first = Count(among, etcd)
            began = min(ask_all(among, do="join"))
            seconds = max(ask_all(among, do="until", kind="start", size=nodes, after=0)) - began
            requests, transferred, of_etcd = Count(among, etcd).since(first)
            began = time.monotonic()
            ask_all(started, do="open")
            live_s = max(ask_all(among, do="until", kind="live", size=nodes, after=0)) - began
            (number,) = ask_all(among[:1], do="quiet")
            joined = join(among, late, etcd, nodes, number)
            taken_s = take_over_from(started) if take_over else None
    return Result(
        nodes=nodes,
        seconds=seconds,
        requests=requests,
        bytes=transferred,
        of_etcd=of_etcd,
        live_s=live_s,
        take_over_s=taken_s,
        **joined,
    )


def join(among: list[Part], late: Part, etcd: Etcd | None, nodes: int, number: int) -> dict[str, float]:
    """One more, `late`, comes to the others. `number`: of the generation that is settled."""
    ask_all(among, do="one more may come")
    before, others_before = Count([*among, late], etcd), Count(among, etcd)
    (began,) = ask_all([late], do="join")
    seconds = max(ask_all([*among, late], do="until", kind="live", size=nodes + 1, after=number)) - began
    ask_all(among[:1], do="quiet")
    after, others_after = Count([*among, late], etcd), Count(among, etcd)
    requests, transferred, _ = after.since(before)
    told_bytes = others_after.counted["link bytes"] - others_before.counted["link bytes"]
    return {
        "join_s": seconds,
        "join_requests": requests - 2 * nodes,  # the others hear of the new world and say that they have adopted it
        "join_bytes": transferred - told_bytes,
        "told_bytes": told_bytes,
    }


def take_over_from(among: list[Part]) -> float | None:
    """Kill the coordinator's process; until all others have a later world, without it. None if some came too late."""
    (number,) = ask_all(among[:1], do="quiet")
    killed = time.monotonic()
    os.kill(among[0].process.pid, signal.SIGKILL)
    ends = ask_all(among[1:], do="until", kind="live", size=0, after=number)
    evicted = Count(among[1:], None).counted["down evicted"]
    if evicted:
        print(f"take-over: {evicted} nodes came too late and were evicted", flush=True)
    return None if evicted else max(ends) - killed


def free_port() -> int:
    return int(torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False).port)


# -- torch's ----------------------------------------------------------------------------------------------------------


def settle_torchs(nodes: int, processes: int, limit_s: float) -> Result | None:
    """None if it did not come so far within the limit."""
    limit = timedelta(seconds=limit_s)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    plan = {"port": store.port, "run_id": "torchs", "nodes": nodes, "limit_s": limit_s}
    with parts(*(("rendezvous_torch.py", {**plan, "numbers": n}) for n in shares(range(nodes), processes))) as among:
        began = min(ask_all(among, do="join"))
        ends = ask_all(among, do="until")
        counted: Counter[str] = Counter()
        for each in ask_all(among, do="count"):
            counted.update(each)
    if None in ends:
        return None
    return Result(nodes=nodes, seconds=max(ends) - began, requests=counted["requests"], bytes=counted["bytes"])


# -- all of it --------------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {"etcd": [], "embedded store": [], "torch, c10d": []}
    torch_sizes = set(TORCH_SIZES)

    def keep(way: str, repeats: list[Result]) -> None:
        found[way].append(median(repeats))
        r = found[way][-1]
        print(f"{way}, {r.nodes}: {r.seconds:.3f} s, {r.requests:,.0f} requests, {r.bytes:,.0f} bytes", flush=True)

    with Etcd() as etcd:
        for nodes in options.nodes:
            for way, store in (("etcd", etcd), ("embedded store", None)):
                take_over = store is not None and nodes in TAKE_OVERS
                names = (f"{nodes}-{repeat}" for repeat in range(options.repeats))
                keep(way, [settle(nodes, store, options.processes, name, take_over=take_over) for name in names])
            if nodes in torch_sizes:
                result = settle_torchs(nodes, options.processes, options.torch_limit)
                if result is None:
                    print(f"torch, c10d, {nodes}: not within {options.torch_limit:g} s", flush=True)
                    torch_sizes.clear()  # nor will it come any farther
                else:
                    keep("torch, c10d", [result])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="no more than 64 nodes, once")
    parser.add_argument("--nodes", type=int, nargs="+", default=SIZES, help="sizes (default 8 to 1024)")
    parser.add_argument("--repeats", type=int, default=3, help="of each size, of which the median counts (default 3)")
    parser.add_argument("--processes", type=int, default=2, help="in which the light nodes are (default 2)")
    parser.add_argument("--torch-limit", type=float, default=60.0, help="seconds that torch's may take (default 60)")
    parser.add_argument("--markdown", type=Path, help="where to write the result")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.repeats = [nodes for nodes in options.nodes if nodes <= 64], 1
    lines = [f"# Rendezvous, {time.strftime('%Y-%m-%d')}", "", surroundings(ROOT, program("etcd")), ""]
    results = {way: found for way, found in measure(options).items() if found}
    lines += ["```text", *(__doc__ or "").splitlines(), "```"]
    for way, found in results.items():
        lines += ["", f"## {way}", "", *table(found), "", growth(found)]
    print("\n".join(lines))
    if options.markdown is not None:
        options.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
