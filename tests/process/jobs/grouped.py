"""A script without a Session, for launchers that restart it: it does a collective again and again and writes down what
it is in. It ends when the file `stop` is there, and fails in the rank that the file `fail` names."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

directory = Path(os.environ["ELASTIC_TEST_DIRECTORY"])


def write(event: str) -> None:
    entry = {
        "time": time.time(),
        "event": event,
        "pid": os.getpid(),
        "agent": os.getppid(),
        "rank": int(os.environ["RANK"]),
        "world_size": int(os.environ["WORLD_SIZE"]),
        "node": int(os.environ["GROUP_RANK"]),
        "nodes": int(os.environ["GROUP_WORLD_SIZE"]),
        "port": int(os.environ["MASTER_PORT"]),
        "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
    }
    with (directory / "grouped.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, began = dist.get_rank(), False
    while True:
        fail, stop = directory / "fail", directory / "stop"
        seen = torch.tensor([1, int(stop.exists())])
        dist.all_reduce(seen)
        assert int(seen[0]) == dist.get_world_size()
        if not began:
            write("began")
            began = True
        if seen[1]:
            break
        if fail.exists() and fail.read_text() == str(rank):
            fail.unlink()
            write("failed")
            sys.exit(3)
        time.sleep(0.02)
    dist.destroy_process_group()
    write("done")


main()
