"""What people rely on is frozen here, and importing it does nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

# Adding a name is a decision, taking one away breaks somebody's script.
PUBLIC = {"Change", "ConfigurationError", "ElasticError", "LoopContractError", "Session"}

# Imports each module named on the command line after torch and the standard library's servers, and prints what changed.
PROBE = """
import importlib, json, logging, os, signal, sys, threading, warnings
import asyncio, concurrent.futures, multiprocessing, socket
import numpy, torch, torch.distributed, torch.distributed.run, torch.utils.data

def sockets():
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            link = os.readlink("/proc/self/fd/" + name)
        except OSError:
            continue
        if link.startswith("socket:"):
            found.append(link)
    return sorted(found)

def state():
    return {
        "threads": sorted(os.listdir("/proc/self/task")),
        "sockets": sockets(),
        "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "environment": dict(os.environ),
        "log": str([logging.getLogger().level, logging.getLogger().handlers]),
        "children": open("/proc/self/task/%d/children" % os.getpid()).read(),
        "device": torch.cuda.is_initialized(),
        "torch threads": torch.get_num_threads(),
    }

before = state()
for name in sys.argv[1:]:
    importlib.import_module(name)
after = state()
print(json.dumps(sorted(key for key in before if before[key] != after[key])))
"""


def changed_by_importing(*names: str, path: Path = ROOT) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *names], env=environment, capture_output=True, text=True, timeout=100.0
    )
    assert done.returncode == 0, done.stderr
    changed = json.loads(done.stdout.splitlines()[-1])
    assert isinstance(changed, list)
    return changed


def test_the_exported_names_are_the_frozen_ones() -> None:
    import elastic_runtime

    assert set(elastic_runtime.__all__) == PUBLIC
    assert {name for name in PUBLIC if not hasattr(elastic_runtime, name)} == set()
    visible = {name for name, value in vars(elastic_runtime).items() if not isinstance(value, ModuleType)}
    # A subset: some come only when asked for.
    assert {name for name in visible if not name.startswith("_")} - {"annotations"} <= PUBLIC


def test_errors_come_without_torch() -> None:
    code = "import sys, elastic_runtime; elastic_runtime.LoopContractError; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_every_export_is_documented() -> None:
    import elastic_runtime

    assert [name for name in sorted(PUBLIC) if not (getattr(elastic_runtime, name).__doc__ or "").strip()] == []


def test_importing_any_of_it_does_nothing(sources: Any) -> None:
    names = [module.name for module in sources.shipped if not module.name.endswith("__main__")]
    assert "elastic_runtime" in names and len(names) > 20
    assert changed_by_importing("elastic_runtime", *names) == []


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ("threads", "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"),
        ("sockets", "import socket\nkept = socket.socket()"),
        ("signals", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)"),
        ("environment", "import os\nos.environ['PLANTED'] = '1'"),
        ("log", "import logging\nlogging.basicConfig()"),
        ("torch threads", "import torch\ntorch.set_num_threads(torch.get_num_threads() + 1)"),
    ],
)
def test_the_probe_finds_what_it_looks_for(tmp_path: Path, changed: str, text: str) -> None:
    (tmp_path / "planted.py").write_text(text)
    assert changed in changed_by_importing("planted", path=tmp_path)
