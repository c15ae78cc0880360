"""A worker that runs its script by `runpy`, as `--run-path` wants it: what the script raises is in its error file,
whether or not it uses `record`.

    python -m elastic_runtime.agent.run_path SCRIPT ARGUMENT...
"""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.run import run_script_path

if __name__ == "__main__":
    record(run_script_path)(*sys.argv[1:])
