"""Imports point down only; ARCHITECTURE.md draws the layers."""

from __future__ import annotations

import sys
from typing import Any

# From the top. What stands on one line are siblings, and siblings do not import each other.
LAYERS = (
    ("launcher",),
    ("elastic_runtime",),  # the package's own few lines, which name what is public
    ("elastic_runtime.agent", "elastic_runtime.session"),
    ("elastic_runtime.rendezvous",),
    (
        "elastic_runtime.stores",
        "elastic_runtime.channel",
        "elastic_runtime.journal",
        "elastic_runtime.environment",
    ),
    ("elastic_runtime.core",),
    ("elastic_runtime.errors",),
)
DEPTH = {unit: depth for depth, units in enumerate(LAYERS) for unit in units}
STANDARD_LIBRARY_ONLY = ("elastic_runtime.core", "elastic_runtime.errors")


def unit_of(name: str) -> str | None:
    """The unit that a dotted name belongs to, None if not ours. `elastic_runtime.Session` is of the package itself."""
    top, _, rest = name.partition(".")
    if top not in ("launcher", "elastic_runtime"):
        return None
    second = f"{top}.{rest.partition('.')[0]}"
    return second if second in DEPTH else top


def offences(module: Any) -> list[str]:
    mine = unit_of(module.name)
    assert mine is not None
    found = []
    for line, target, name in module.imports():
        theirs = unit_of(f"{target}.{name}" if name else target)
        if theirs is None or theirs == mine:
            continue
        if DEPTH[theirs] <= DEPTH[mine]:
            way = "sideways" if DEPTH[theirs] == DEPTH[mine] else "up"
            found.append(f"{module.path}:{line} imports {way}: {mine} -> {theirs}")
    return found


def foreign(module: Any) -> list[str]:
    return [
        f"{module.path}:{line} imports {target}, which is not of the standard library"
        for line, target, _ in module.imports()
        if target.partition(".")[0] not in sys.stdlib_module_names and not target.startswith(STANDARD_LIBRARY_ONLY)
    ]


def test_imports_point_down(sources: Any) -> None:
    assert [each for module in sources.shipped for each in offences(module)] == []


def test_every_module_has_a_layer(sources: Any) -> None:
    stray = [
        module.path
        for module in sources.shipped
        if unit_of(module.name) == "elastic_runtime" and module.name != "elastic_runtime"
    ]
    assert stray == [], "give it a layer here and in ARCHITECTURE.md"


def test_every_layer_has_a_module(sources: Any) -> None:
    assert set(DEPTH) == {unit_of(module.name) for module in sources.shipped}


def test_core_and_errors_need_nothing_but_the_standard_library(sources: Any) -> None:
    low = [module for module in sources.shipped if unit_of(module.name) in STANDARD_LIBRARY_ONLY]
    assert len(low) > 5
    assert [each for module in low for each in foreign(module)] == []


def test_the_checks_find_what_they_look_for(sources: Any) -> None:
    for path, text, expected in (
        ("elastic_runtime/core/a.py", "from elastic_runtime.stores.base import Entry", "up"),
        ("elastic_runtime/core/a.py", "def f():\n    import elastic_runtime.agent.agent", "up"),
        ("elastic_runtime/core/a.py", "from elastic_runtime import Session", "up"),
        ("elastic_runtime/core/a.py", "from elastic_runtime import environment", "up"),
        ("elastic_runtime/core/a.py", "from .. import journal", "up"),
        ("elastic_runtime/errors.py", "from elastic_runtime.core import world", "up"),
        ("elastic_runtime/agent/a.py", "from ..session import worker", "sideways"),
        ("elastic_runtime/session/a.py", "import elastic_runtime.agent", "sideways"),
        ("elastic_runtime/session/a.py", "from launcher import cli", "up"),
    ):
        assert [way for each in offences(sources.sample(path, text)) for way in ("up", "sideways") if way in each] == [
            expected
        ], text
    fine = "import torch\nfrom elastic_runtime import errors\nfrom . import b"
    assert offences(sources.sample("elastic_runtime/agent/a.py", fine)) == []
    assert len(foreign(sources.sample("elastic_runtime/core/a.py", "import torch, json\nfrom numpy import array"))) == 2
