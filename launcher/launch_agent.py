"""The agent of `elastic_launch`, as a process of its own: `python -P launch_agent.py RUN_DIRECTORY CALLER`.

Torch is not imported up here: where it is found is known once the caller's `sys.path` is.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from launcher import call

ORDERS = "agent.pickle"  # in the run directory: how to prepare, then (settings, configuration of metrics)
OUTCOME = "outcome.pickle"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    exit_code: int
    entrypoint: str = ""
    failures: dict[int, Any] = field(default_factory=dict)  # rank -> torch's ProcessFailure
    refused: str | None = None
    unreachable: str | None = None


def main(run_dir: Path, caller: int) -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != caller:  # it died before the call took effect
        return 1
    with (run_dir / ORDERS).open("rb") as file:
        call.prepare(pickle.load(file))
        settings, metrics_cfg = pickle.load(file)
    outcome = _take_part(settings, metrics_cfg)
    (run_dir / OUTCOME).write_bytes(pickle.dumps(outcome))
    return outcome.exit_code


def _take_part(settings: Any, metrics_cfg: dict[str, str]) -> Outcome:
    from torch.distributed.elastic import metrics

    from elastic_runtime.agent.run import take_part
    from elastic_runtime.errors import ConfigurationError, StoreError

    metrics.initialize_metrics(metrics.MetricsConfig(metrics_cfg))
    try:
        exit_code, failures = take_part(settings)
    except ConfigurationError as error:
        return Outcome(exit_code=2, refused=str(error))
    except StoreError as error:
        return Outcome(exit_code=1, unreachable=str(error))
    failed = failures.error() if exit_code == 1 else None
    if failed is None:
        return Outcome(exit_code=exit_code)
    return Outcome(exit_code=1, entrypoint=failed.name, failures=failed.failures)


if __name__ == "__main__":
    from launcher import launch_agent  # whose Outcome the caller knows by this name

    sys.exit(launch_agent.main(Path(sys.argv[1]), int(sys.argv[2])))
