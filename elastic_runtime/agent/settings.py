"""What an agent is told. Times are in seconds."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elastic_runtime.agent.logs import OutputSettings
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
    output: OutputSettings = field(default_factory=OutputSettings)
    entrypoint: str = ""  # what failures are reported of
    command_prefixes: Mapping[int, Sequence[str]] = field(default_factory=dict)  # slot -> what its command runs under
    virtual_local_rank: bool = False
    event_log: str = "null"  # torch's name for where its events go
    health_port: int | None = None  # on which the agent answers whether it is well
