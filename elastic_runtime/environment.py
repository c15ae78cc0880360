"""The one file that reads the environment of a process and rewrites a worker's."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elastic_runtime.core.messages import World
from elastic_runtime.errors import ConfigurationError

CHANNEL_FD = "ELASTIC_CHANNEL_FD"
RUN_DIR = "ELASTIC_RUN_DIR"
SESSION = "ELASTIC_SESSION"
TAKEN = "taken"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticWorld:
    """The fixed world that another launcher, such as torchrun, put this process in."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDefaults:
    """What a job's configuration says of Sessions, checked by the launcher that read it."""

    values: Mapping[str, Any] = field(default_factory=dict)
    at: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # world size -> what differs there
    sources: Mapping[str, str] = field(default_factory=dict)  # key, or at.N.key -> where it stands

    def to_text(self) -> str:
        return json.dumps({"values": dict(self.values), "at": dict(self.at), "sources": dict(self.sources)})


def session_defaults() -> SessionDefaults:
    text = os.environ.get(SESSION)
    if not text:
        return SessionDefaults()
    try:
        read = json.loads(text)
        at = {int(size): dict(own) for size, own in read["at"].items()}
        return SessionDefaults(values=dict(read["values"]), at=at, sources=dict(read["sources"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{SESSION} is not what elasticrun writes there: {error!r}") from None


def take_channel_fd() -> int | None:
    """The socket to this worker's agent, None without one. Once: one Session is a worker's place in its job."""
    text = os.environ.get(CHANNEL_FD)
    if text == TAKEN:
        raise ConfigurationError("one Session for a process under elasticrun: it is the worker's place in the job")
    if text:
        os.environ[CHANNEL_FD] = TAKEN
    return int(text) if text else None


def static_world() -> StaticWorld | None:
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    try:
        world = StaticWorld(
            rank=int(os.environ["RANK"]),
            world_size=int(os.environ["WORLD_SIZE"]),
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        )
    except ValueError as error:
        raise ConfigurationError(f"RANK, WORLD_SIZE and LOCAL_* must be whole numbers: {error}") from None
    if "MASTER_ADDR" not in os.environ or "MASTER_PORT" not in os.environ:
        raise ConfigurationError(
            "RANK and WORLD_SIZE are set but MASTER_ADDR or MASTER_PORT is not: start with elasticrun"
        )
    return world


def publish_world(world: World) -> None:
    """Make torch's names say what holds in this generation, for libraries that read them."""
    os.environ.update(
        RANK=str(world.rank),
        WORLD_SIZE=str(world.world_size),
        LOCAL_WORLD_SIZE=str(world.local_world_size),
        GROUP_RANK=str(world.node_rank),
        GROUP_WORLD_SIZE=str(world.node_count),
        ROLE_RANK=str(world.rank),
        ROLE_WORLD_SIZE=str(world.world_size),
        MASTER_ADDR=world.store_host,
        MASTER_PORT=str(world.master_port),
    )


def doorplate_directories() -> list[Path]:
    """Where this user's agents on this machine are found: the first one is this process's own.

    An agent that a batch system or a service started may have been given no XDG_RUNTIME_DIR.
    """
    temporary = Path(tempfile.gettempdir()) / f"elasticrun-{os.geteuid()}"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return [Path(runtime) / "elasticrun", temporary] if runtime else [temporary]
