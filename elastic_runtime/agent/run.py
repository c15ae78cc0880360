"""Run an agent from its start to its exit code."""

from __future__ import annotations

import asyncio
import shutil
import sys

from elastic_runtime.agent.agent import REJOIN, Agent
from elastic_runtime.agent.settings import AgentSettings
from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.rendezvous.find import find_store, own_address
from elastic_runtime.stores.tcp_client import quiet_torch_log


def run_agent(settings: AgentSettings) -> int:
    """Find the job, take part in it, return the exit code. Raises ConfigurationError before anything is started."""
    if shutil.which(settings.command[0]) is None:
        raise ConfigurationError(f"{settings.command[0]!r} is not a program that can be started")
    quiet_torch_log()
    try:
        exit_code = REJOIN
        while exit_code == REJOIN:  # each time as a new node, with nothing of the one before
            exit_code = _take_part(settings)
    except StoreError as error:
        print(f"elasticrun: {error}", file=sys.stderr)
        exit_code = 1
    return exit_code


def _take_part(settings: AgentSettings) -> int:
    found = find_store(settings.rendezvous, timeout_s=settings.find_timeout_s, silent_after_s=settings.silent_after_s)
    address = settings.local_addr or own_address(found)

    async def main() -> int:
        return await Agent(settings, found, address).run()

    return asyncio.run(main())
