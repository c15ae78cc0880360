"""`elasticctl doctor`: run the checks side by side, each in a process that is ended at its limit, and tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.checks import FAIL, OK, SLOW_LOOKUP, WARN, Finding, fail, warn
from launcher.shown import counted, printable

ROOT = Path(__file__).parents[1]  # what the processes import from, wherever they are started


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`function` of `checks` or `endpoint_checks`; `late`: what it means that it did not end in time."""

    name: str
    function: str
    arguments: tuple[str, ...] = ()
    limit_s: float = 5.0
    late: Finding | None = None


def run(endpoints: Sequence[tuple[str, int]], job: tuple[str, str, str], *, as_json: bool) -> int:
    """Print what was found. `job`: what is at the endpoints: backend, run id, conf. Returns 1 if a check failed."""
    checks = [*_of_machine([host for host, _ in endpoints]), *_of_endpoints(endpoints, job)]
    width = max(len(check.name) for check in checks)
    found = []
    for check, finding in examine(checks):
        found.append((check, finding))
        if not as_json:
            print(f"{finding.level:<4}  {check.name:<{width}}  {printable(finding.found)}", flush=True)
            if finding.remedy:
                print(f"{'':<{width + 6}}  -> {printable(finding.remedy)}", flush=True)
    levels = [finding.level for _, finding in found]
    if as_json:
        print(json.dumps([{"check": check.name, **asdict(finding)} for check, finding in found]))
    else:
        warnings, failures = counted(levels.count(WARN), "warning"), counted(levels.count(FAIL), "failure")
        print(f"{levels.count(OK)} ok, {warnings}, {failures}")
    return 1 if FAIL in levels else 0


def _of_machine(hosts: Sequence[str]) -> list[Check]:
    slow = fail("did not end within 20 s", "see host name and name lookup; GLOO_SOCKET_IFNAME names an interface")
    disk = warn("not imported within 20 s", "every worker pays this when it starts: install it on a local disk")
    return [
        Check(name="system", function="system"),
        Check(name="python", function="python"),
        Check(name="torch", function="torch", limit_s=20.0, late=disk),
        Check(name="gloo", function="gloo", limit_s=20.0, late=slow),
        Check(
            name="host name",
            function="host_name",
            late=warn("was not resolved within 5 s", "repair /etc/resolv.conf, or put it into /etc/hosts"),
        ),
        Check(
            name="name lookup",
            function="name_lookup",
            arguments=tuple(hosts),
            late=warn("an address was not looked up within 5 s", SLOW_LOOKUP),
        ),
        Check(name="ports", function="ports"),
        Check(name="shared memory", function="shared_memory"),
        Check(name="open files", function="open_files"),
        Check(name="temporary files", function="temporary_files"),
        Check(name="cores", function="cores"),
        Check(name="clock", function="clock"),
    ]


def _of_endpoints(endpoints: Sequence[tuple[str, int]], job: tuple[str, str, str]) -> list[Check]:
    if not endpoints:
        return []
    places = [(host, str(port)) for host, port in endpoints]
    reached = [Check(name=f"reach {h}:{p}", function="reach", arguments=(job[0], h, p)) for h, p in places]
    everything = tuple(part for place in places for part in place)
    return [
        *reached,
        Check(name="own address", function="own_address", arguments=places[0]),
        Check(name="store", function="store", arguments=(*job, *everything), limit_s=20.0),
    ]


def examine(checks: Sequence[Check]) -> Iterator[tuple[Check, Finding]]:
    """All at once; each finding in the order of the checks, as soon as it and those before it are there."""
    began = time.monotonic()
    inherited = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{inherited}" if inherited else str(ROOT)}
    with ExitStack() as ending:
        running = []
        for check in checks:
            process = subprocess.Popen(
                [sys.executable, "-m", "launcher.checks", check.function, *check.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                text=True,
                errors="replace",
            )
            ending.callback(_end, process)
            running.append((check, process))
        for check, process in running:
            try:
                output, errors = process.communicate(timeout=max(0.01, began + check.limit_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                yield check, check.late or fail(f"did not end within {check.limit_s:g} s", "something hangs there")
                continue
            yield check, _finding(process.returncode, output, errors)


def _finding(exit_code: int, output: str, errors: str) -> Finding:
    with suppress(ValueError, IndexError, TypeError):
        return Finding(**json.loads(output.splitlines()[-1]))
    last = (errors.strip().splitlines() or ["nothing was said"])[-1]
    return fail(f"the check ended with exit code {exit_code}: {last}", "the same happens to workers: see what it says")


def _end(process: subprocess.Popen[str]) -> None:
    """Not waited for longer than a moment: a process that hangs in the kernel may not even be killed."""
    process.kill()
    with suppress(subprocess.TimeoutExpired, ValueError):
        process.communicate(timeout=0.5)
