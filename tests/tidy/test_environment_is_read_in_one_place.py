"""The environment is read in few places and threads start in few, each listed here."""

from __future__ import annotations

import ast
from typing import Any

READS_ENVIRONMENT = ("elastic_runtime/environment.py", "launcher/")

STARTS_THREADS = {
    "elastic_runtime/session/group.py": "gloo's destructor may never return, and others wait meanwhile",
    "elastic_runtime/session/waiting.py": "a transfer may never return, and whoever waits for it must be free to leave",
    "elastic_runtime/agent/agent.py": "opening a store blocks, and the one deciding thread must not",
    "elastic_runtime/agent/health.py": "whether the loop hangs is asked when it does",
    "elastic_runtime/agent/logs_tail.py": "a console that takes nothing blocks whoever writes to it",
    "elastic_runtime/rendezvous/coordination.py": "one at a time, writes to the store, which block",
    "elastic_runtime/rendezvous/seat_watch.py": "asking for the seat and waiting for it to change block",
    "elastic_runtime/rendezvous/torch_handler.py": "torch's agent has no event loop, and the membership needs one",
    "elastic_runtime/rendezvous/torch_group.py": "finding and asking a store block, and no exit may wait for that",
    "elastic_runtime/session/membership.py": "orders have to be heard while the script computes",
    "elastic_runtime/stores/etcd_lease.py": "a lease is kept alive whatever its holder is doing",
    "elastic_runtime/stores/etcd_watch.py": "the stream of all watches blocks, and a wait has to end in time",
    "elastic_runtime/stores/tcp_client.py": "torch's constructor may hang for ever and is left to itself then",
}

ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}
THREADS = {
    "threading": {"Thread", "Timer"},
    "_thread": {"start_new_thread"},
    "concurrent.futures": {"ThreadPoolExecutor"},
    "concurrent.futures.thread": {"ThreadPoolExecutor"},
    "multiprocessing.pool": {"ThreadPool"},
    "multiprocessing.dummy": {"Pool", "Process"},
    "asyncio": {"to_thread"},
}


def uses(module: Any, wanted: dict[str, set[str]], methods: frozenset[str] = frozenset()) -> list[int]:
    """Lines that mention one of the wanted names of a module, imported or reached by its module, or a method's name."""
    modules = {}
    lines = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            modules.update({alias.asname or alias.name: alias.name for alias in node.names})
    for line, target, name in module.imports():
        if name in wanted.get(target, ()):
            lines.append(line)
        elif name and f"{target}.{name}" in wanted:  # from concurrent import futures
            modules[name] = f"{target}.{name}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute):
            owner = modules.get(ast.unparse(node.value), "")
            if node.attr in wanted.get(owner, ()) or node.attr in methods:
                lines.append(node.lineno)
    return lines


def reads_environment(module: Any) -> list[int]:
    return uses(module, {"os": ENVIRONMENT, "posix": ENVIRONMENT})


def starts_threads(module: Any) -> list[int]:
    return uses(module, THREADS, frozenset({"run_in_executor"}))


def test_the_environment_is_read_in_the_listed_places_only(sources: Any) -> None:
    readers = [module for module in sources.shipped if reads_environment(module)]
    stray = [
        f"{module.path}:{line}"
        for module in readers
        for line in reads_environment(module)
        if not module.path.startswith(READS_ENVIRONMENT)
    ]
    assert stray == []
    for place in READS_ENVIRONMENT:
        assert any(module.path.startswith(place) for module in readers), f"{place} reads nothing: take it off the list"


def test_threads_start_in_the_listed_places_only(sources: Any) -> None:
    found = {module.path: starts_threads(module) for module in sources.shipped if starts_threads(module)}
    assert found.keys() - STARTS_THREADS.keys() == set(), found
    assert STARTS_THREADS.keys() - found.keys() == set(), "take what starts no thread off the list"


def test_the_checks_find_what_they_look_for(sources: Any) -> None:
    for text in (
        "import os\nx = os.environ['A']",
        "import os as system\nx = system.getenv('A')",
        "from os import environ",
        "def f():\n    from os import getenv",
    ):
        assert reads_environment(sources.sample("elastic_runtime/a.py", text)), text
    for text in ("import os\nx = os.getpid()", "from elastic_runtime import environment", "settings.environ"):
        assert not reads_environment(sources.sample("elastic_runtime/a.py", text)), text
    for text in (
        "import threading\nthreading.Thread()",
        "from threading import Timer",
        "import threading\nclass Mine(threading.Thread): ...",
        "from concurrent.futures import ThreadPoolExecutor",
        "from concurrent import futures\nfutures.ThreadPoolExecutor(1)",
        "import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor(1)",
        "import asyncio\nasyncio.to_thread(f)",
        "loop.run_in_executor(None, f)",
    ):
        assert starts_threads(sources.sample("elastic_runtime/a.py", text)), text
    for text in ("import threading\nthreading.Lock()", "from threading import Condition", "class Thread: ..."):
        assert not starts_threads(sources.sample("elastic_runtime/a.py", text)), text
