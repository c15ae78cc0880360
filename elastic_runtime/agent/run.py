"""Run an agent from its start to its exit code."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys

from elastic_runtime.agent.agent import Agent
from elastic_runtime.agent.settings import AgentSettings
from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.rendezvous.find import Found, find_store
from elastic_runtime.stores.tcp_client import quiet_torch_log


def run_agent(settings: AgentSettings) -> int:
    """Find the job, take part in it, return the exit code. Raises ConfigurationError before anything is started."""
    if shutil.which(settings.command[0]) is None:
        raise ConfigurationError(f"{settings.command[0]!r} is not a program that can be started")
    quiet_torch_log()
    try:
        found = find_store(
            settings.endpoint, settings.run_id, may_host=settings.may_host, timeout_s=settings.find_timeout_s
        )
        address = settings.local_addr or own_address(found)

        async def main() -> int:
            return await Agent(settings, found, address).run()

        return asyncio.run(main())
    except StoreError as error:
        print(f"elasticrun: {error}", file=sys.stderr)
        return 1


def own_address(found: Found) -> str:
    """The address that peers reach this node at: the endpoint's own if it hosts the store, else the one that the route
    to the store starts from."""
    if found.hosts_store:
        return found.endpoint.host
    with socket.create_connection((found.endpoint.host, found.endpoint.port), timeout=5.0) as probe:
        return str(probe.getsockname()[0])
