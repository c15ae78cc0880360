"""Whether an agent is well is answered while its loop turns, and while it does not."""

from __future__ import annotations

import asyncio
import socket
import time
import urllib.error
import urllib.request

import pytest

from elastic_runtime.agent.health import Health


def ask(port: int) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10.0) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_well_and_not() -> None:
    async def main() -> None:
        with Health(0, unwell_after_s=0.5) as health:
            assert health.port
            loop = asyncio.get_running_loop()
            assert await loop.run_in_executor(None, ask, health.port) == (200, "ok\n")
            deadline = time.monotonic() + 20.0
            while (answer := ask(health.port))[0] == 200:  # the loop stands still meanwhile
                assert time.monotonic() < deadline
            assert answer[0] == 503 and "stood still" in answer[1]

    asyncio.run(main())


def test_nobody_asks() -> None:
    with Health(None) as health:
        assert health.port is None


def test_a_port_that_is_taken_ends_no_job(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with Health(port):
            assert f"port {port} cannot be asked" in capsys.readouterr().err
