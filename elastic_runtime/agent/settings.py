"""What an agent is told. Times are in seconds."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elastic_runtime.core.node import Limits
from elastic_runtime.core.view import Policy
from elastic_runtime.rendezvous.find import Rendezvous


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    command: Sequence[str]  # of a worker
    rendezvous: Rendezvous
    policy: Policy
    limits: Limits
    role: str
    run_dir: Path
    environment: dict[str, str]  # what workers inherit
    local_addr: str | None  # None: found out by `own_address`
    find_timeout_s: float  # how long to wait for a host of the store
    silent_after_s: float
    signals: tuple[signal.Signals, ...]
