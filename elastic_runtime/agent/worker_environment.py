"""The environment of a worker: the agent's own, plus torchrun's names with torchrun's meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elastic_runtime.core.supervision_events import Start
from elastic_runtime.environment import CHANNEL_FD, RUN_DIR

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    run_id: str
    run_dir: Path
    role: str
    slots: int
    max_restarts: int
    interface: str | None  # that peers reach this node at; None: loopback
    inherited: Mapping[str, str]
    virtual_local_rank: bool = False  # each worker sees one device, as the first one


def worker_environment(job: JobFacts, start: Start, channel_fd: int) -> dict[str, str]:
    """Ranks are those of the announced world; for a joiner they are provisional until its Session is entered."""
    announced = start.announced
    place = announced.members.get((start.slot, 0))  # a start generation names slots, not processes
    rank = place.rank if place else start.slot
    world_size = announced.world_size if place else job.slots
    names = {
        "LOCAL_RANK": 0 if job.virtual_local_rank else start.slot,
        "RANK": rank,
        "GROUP_RANK": place.node_rank if place else 0,
        "ROLE_RANK": rank,
        "ROLE_NAME": job.role,
        "LOCAL_WORLD_SIZE": job.slots,
        "WORLD_SIZE": world_size,
        "GROUP_WORLD_SIZE": place.node_count if place else 1,
        "ROLE_WORLD_SIZE": world_size,
        "MASTER_ADDR": announced.store_host,
        "MASTER_PORT": announced.store_port,
        "TORCHELASTIC_RESTART_COUNT": start.restarts,
        "TORCHELASTIC_MAX_RESTARTS": job.max_restarts,
        "TORCHELASTIC_RUN_ID": job.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": job.inherited.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        RUN_DIR: job.run_dir,
        CHANNEL_FD: channel_fd,
    }
    threads = {} if "OMP_NUM_THREADS" in job.inherited or job.slots == 1 else {"OMP_NUM_THREADS": "1"}
    interface = {"GLOO_SOCKET_IFNAME": job.interface} if job.interface else {}
    device = {VISIBLE_DEVICES: own_device(job.inherited, start.slot)} if job.virtual_local_rank else {}
    return {**interface, **job.inherited, **threads, **device, **{name: str(value) for name, value in names.items()}}


def own_device(inherited: Mapping[str, str], slot: int) -> str:
    """The only device that the worker of a slot is to see. Raises ValueError if there are not so many."""
    visible = inherited.get(VISIBLE_DEVICES)
    if visible is None:
        return str(slot)
    devices = visible.split(",")
    if slot >= len(devices):
        raise ValueError(f"local_rank {slot} exceeds available GPUs in {VISIBLE_DEVICES}={visible}")
    return devices[slot].strip()
