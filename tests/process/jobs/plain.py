"""A script without a Session: an all_reduce by torchrun's environment. With a file named, the first try fails."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
print(f"sum {total.item():g} of {dist.get_world_size()} after {restarts} restarts\n", end="")  # one write a line
if len(sys.argv) > 1 and dist.get_rank() == 0 and not Path(sys.argv[1]).exists():
    Path(sys.argv[1]).touch()
    sys.exit(3)
dist.barrier()
dist.destroy_process_group()
