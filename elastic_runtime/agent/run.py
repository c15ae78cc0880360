"""Run an agent from its start to its exit code."""

from __future__ import annotations

import asyncio
import shutil
import sys

from torch.distributed.elastic.metrics import MetricsConfig, initialize_metrics

from elastic_runtime.agent.agent import REJOIN, Agent
from elastic_runtime.agent.failures import Failures, record_own, report
from elastic_runtime.agent.health import Health
from elastic_runtime.agent.logs import ERROR_FILE
from elastic_runtime.agent.settings import AgentSettings
from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.rendezvous.find import find_store, own_address
from elastic_runtime.stores.tcp_client import quiet_torch_log


def run_agent(settings: AgentSettings) -> int:
    """Take part in the job, tell what failed, return the exit code. Raises ConfigurationError as `take_part` does."""
    error_file = settings.environment.get(ERROR_FILE, "")
    initialize_metrics(MetricsConfig({}))
    try:
        exit_code, failures = take_part(settings)
    except StoreError as error:
        print(f"elasticrun: {error}", file=sys.stderr)
        record_own(error, error_file)
        return 1
    except ConfigurationError:
        raise
    except Exception as error:
        record_own(error, error_file)
        raise
    if exit_code == 1:  # not when a signal ended the job, or its Sessions were refused
        report(failures, error_file)
    return exit_code


def take_part(settings: AgentSettings) -> tuple[int, Failures]:
    """Find the job and be a node of it: the exit code, and whatever failed here.

    Raises ConfigurationError before anything is started, and StoreError.
    """
    if shutil.which(settings.command[0]) is None:
        raise ConfigurationError(f"{settings.command[0]!r} is not a program that can be started")
    quiet_torch_log()
    exit_code, failures = _as_one_node(settings)
    while exit_code == REJOIN:  # each time as a new node, with nothing of the one before
        exit_code, failures = _as_one_node(settings, came_back=True)
    return exit_code, failures


def _as_one_node(settings: AgentSettings, *, came_back: bool = False) -> tuple[int, Failures]:
    found = find_store(settings.rendezvous, timeout_s=settings.find_timeout_s, silent_after_s=settings.silent_after_s)
    address = settings.local_addr or own_address(found)

    async def main() -> tuple[int, Failures]:
        agent = Agent(settings, found, address, came_back=came_back)
        try:
            with Health(settings.health_port):
                exit_code = await agent.run()
        except Exception:
            agent.crew.events.broken()
            raise
        agent.crew.events.finished(exit_code)
        return exit_code, agent.crew.failures

    return asyncio.run(main())
