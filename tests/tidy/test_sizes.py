"""Limits on the tail: what is over one has to answer for it."""

from __future__ import annotations

import ast
from typing import Any

MODULE_LINES = 300
FUNCTION_LINES = 70
CLASS_LINES = 250

# What may be longer, and why it is clearer so: "path" or "path:Qualified.name" -> the reason.
EXCEPTIONS: dict[str, str] = {
    "elastic_runtime/core/supervision.py:Supervisor": "one state machine, whose transitions are read side by side",
}


def long_ones(module: Any) -> dict[str, str]:
    """What is over a limit: its name as in EXCEPTIONS, and by how much."""
    found = {}
    lines = len(module.text.splitlines())
    if lines > MODULE_LINES:
        found[module.path] = f"{lines} lines, {MODULE_LINES} are the limit of a module"

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}.{child.name}" if prefix else child.name
                is_class = isinstance(child, ast.ClassDef)
                kind, limit = ("class", CLASS_LINES) if is_class else ("function", FUNCTION_LINES)
                length = (child.end_lineno or child.lineno) - child.lineno + 1
                if length > limit:
                    found[f"{module.path}:{name}"] = f"{length} lines, {limit} are the limit of a {kind}"
            visit(child, name)

    visit(module.tree, "")
    return found


def test_nothing_is_longer_than_it_may_be(sources: Any) -> None:
    found = {name: why for module in sources.shipped + sources.beside for name, why in long_ones(module).items()}
    assert {name: why for name, why in found.items() if name not in EXCEPTIONS} == {}


def test_every_exception_is_still_needed_and_has_a_reason(sources: Any) -> None:
    found = {name for module in sources.shipped + sources.beside for name in long_ones(module)}
    assert set(EXCEPTIONS) <= found
    assert all(len(reason.split()) >= 4 for reason in EXCEPTIONS.values())


def test_the_check_finds_what_it_looks_for(sources: Any) -> None:
    def function(lines: int) -> str:
        return "def f():\n" + "    x = 1\n" * (lines - 1)

    def nested(lines: int) -> str:
        body = function(lines).replace("\n", "\n        ").rstrip()
        return f"class A:\n    def g():\n        {body}\n"

    path = "elastic_runtime/a.py"
    assert long_ones(sources.sample(path, function(FUNCTION_LINES))) == {}
    assert list(long_ones(sources.sample(path, function(FUNCTION_LINES + 1)))) == [f"{path}:f"]
    assert f"{path}:A.g.f" in long_ones(sources.sample(path, nested(FUNCTION_LINES + 1)))
    assert list(long_ones(sources.sample(path, "class A:\n" + "    x = 1\n" * CLASS_LINES))) == [f"{path}:A"]
    assert long_ones(sources.sample(path, "x = 1\n" * MODULE_LINES)) == {}
    assert list(long_ones(sources.sample(path, "x = 1\n" * (MODULE_LINES + 1)))) == [path]
