"""Words mean one thing each."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from typing import Any

# They say nothing about what a thing does.
EMPTY = {"manager", "managers", "handler", "handlers", "util", "utils", "helper", "helpers", "misc", "common"}

# torch's own words for things of torch's that are ours to provide: RendezvousHandler and the functions that make one.
TORCHS = {("rendezvous", "handler"), ("rendezvous", "handlers"), ("torch", "handler")}

# An epoch is a pass over the data, so only those who deal with data may say it. Cluster time is a generation.
MAY_SAY_EPOCH = (
    "elastic_runtime.core.batch",
    "elastic_runtime.core.samples",
    "elastic_runtime.core.learning_rate",
    "elastic_runtime.session",
    "examples",
    "benchmarks",
)

# A comment has to say it all; where the work was tracked or done is nothing to its reader.
ELSEWHERE = re.compile(
    r"(?i)\b(?:issue|ticket|pull request|PR)s?\s*\#?\d+|(?<![\w&#])\#\d+\b(?!\))|\bpt\#\d+"
    r"|/work/|shared/design|\b(?:DESIGN|FACTS|STYLE|INTERFACE)\.md"
)


def words(identifier: str) -> list[str]:
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", identifier)
    return [part.lower() for part in parts]


def empty_words(identifier: str) -> list[str]:
    parts = words(identifier)
    pairs = zip(["", *parts], parts, strict=False)
    return [part for before, part in pairs if part in EMPTY and (before, part) not in TORCHS]


def empty_names(module: Any) -> list[str]:
    names = [(0, module.name.rpartition(".")[2]), *((node.lineno, node.name) for node in module.definitions())]
    return [f"{module.path}:{line} {name}: {word!r} says nothing" for line, name in names for word in empty_words(name)]


def prose(module: Any) -> Iterator[tuple[int, str]]:
    """Comments (without their sign) and docstrings."""
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#")
    for node in [module.tree, *module.definitions()]:
        if text := ast.get_docstring(node):
            yield getattr(node, "lineno", 1), text


def pointers_elsewhere(module: Any) -> list[str]:
    return [
        f"{module.path}:{line} points elsewhere: {match.group()!r}"
        for line, text in prose(module)
        for match in ELSEWHERE.finditer(text)
    ]


def epochs(module: Any) -> list[str]:
    if any(module.is_in(name) for name in MAY_SAY_EPOCH):
        return []
    return [
        f"{module.path}:{line} says epoch; cluster time is a generation"
        for line, text in enumerate(module.text.splitlines(), 1)
        if "epoch" in text.lower()
    ]


def test_names_say_what_a_thing_does(sources: Any) -> None:
    assert [each for module in sources.shipped + sources.beside for each in empty_names(module)] == []


def test_epoch_is_a_pass_over_the_data(sources: Any) -> None:
    assert any("epoch" in module.text for module in sources.shipped if module.is_in("elastic_runtime.session"))
    assert [each for module in sources.shipped for each in epochs(module)] == []


def test_comments_point_nowhere_else(sources: Any) -> None:
    everything = sources.shipped + sources.beside + sources.tests
    assert [each for module in everything for each in pointers_elsewhere(module)] == []


def test_the_checks_find_what_they_look_for(sources: Any) -> None:
    for name in ("StoreManager", "on_signal_handler", "HTTPHandler", "utils", "test_helper", "CommonBase", "_misc"):
        assert empty_words(name), name
    for name in ("RendezvousHandler", "create_rendezvous_handler", "TheManagement", "utility", "commons"):
        assert not empty_words(name), name
    named = sources.sample("elastic_runtime/agent/helpers.py", "class A:\n    def file_util(self): ...\n")
    assert len(empty_names(named)) == 2
    for text in (
        "# see issue 12",
        "# fixes #123",
        "x = 1  # PR 7",
        '"""As pt#42 says."""',
        "# from /work/x",
        "# FACTS.md",
    ):
        assert len(pointers_elsewhere(sources.sample("elastic_runtime/a.py", text + "\n"))) == 1, text
    for text in ("# 12 bits", "color = '#123456'", "# issued 3 times", "#: a field", "# rank 0 has 2"):
        assert pointers_elsewhere(sources.sample("elastic_runtime/a.py", text + "\n")) == [], text
    late = "epoch_number = 1\n"
    assert len(epochs(sources.sample("elastic_runtime/core/membership.py", late))) == 1
    assert epochs(sources.sample("elastic_runtime/core/samples.py", late)) == []
