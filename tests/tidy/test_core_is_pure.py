"""The core decides and never does: the same arguments give the same answer, on every machine, whenever asked."""

from __future__ import annotations

import ast
from typing import Any

# A list of what is allowed, so that a new way to a clock or a file has to be argued for here.
ALLOWED = {
    "__future__": None,
    "abc": None,
    "bisect": None,
    "collections": None,
    "collections.abc": None,
    "dataclasses": None,
    "difflib": {"get_close_matches"},
    "enum": None,
    "fractions": None,
    "functools": None,
    "hashlib": None,
    "heapq": None,
    "itertools": None,
    "json": {"dumps", "loads", None},
    "math": None,
    "operator": None,
    "signal": {"Signals"},  # names for numbers; nothing is installed or sent
    "string": None,
    "struct": None,
    "types": None,
    "typing": None,
}
# `hash` and `id` differ from process to process.
FORBIDDEN_CALLS = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint", "hash", "id"}


def offences(module: Any) -> list[str]:
    found = []
    for line, target, name in module.imports():
        if target.startswith(("elastic_runtime.core", "elastic_runtime.errors")):
            continue
        names = ALLOWED.get(target, set())
        if names is not None and name not in names:
            found.append(f"{module.path}:{line} imports {target}{'.' + name if name else ''}")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FORBIDDEN_CALLS:
            found.append(f"{module.path}:{node.lineno} calls {node.func.id}()")
        if isinstance(node, ast.Global):
            found.append(f"{module.path}:{node.lineno} keeps state in a global")
    return found


def test_the_core_is_pure(sources: Any) -> None:
    core = [module for module in sources.shipped if module.is_in("elastic_runtime.core")]
    assert len(core) > 5
    assert [each for module in core for each in offences(module)] == []


def test_the_check_finds_what_it_looks_for(sources: Any) -> None:
    for text in (
        "import time",
        "from time import monotonic",
        "import random",
        "import os",
        "import os.path",
        "from pathlib import Path",
        "import threading",
        "import socket",
        "import logging",
        "import datetime",
        "import secrets",
        "import asyncio",
        "import torch",
        "def late():\n    import uuid",
        "from signal import signal",
        "from json import load",
        "open('file')",
        "key = hash('text')",
        "def f():\n    global x\n    x = 1",
    ):
        assert len(offences(sources.sample("elastic_runtime/core/a.py", text))) == 1, text
    pure = "from dataclasses import dataclass\nfrom elastic_runtime.errors import ConfigurationError\nx = max(1, 2)"
    assert offences(sources.sample("elastic_runtime/core/a.py", pure)) == []
