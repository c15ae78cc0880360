"""The project's own sources, read once and never imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Module:
    """One Python file. `name` as one imports it; `path` from the project's root, with slashes."""

    path: str
    text: str

    @property
    def name(self) -> str:
        parts = self.path.removesuffix(".py").split("/")
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def package(self) -> str:
        return self.name if self.path.endswith("__init__.py") else self.name.rpartition(".")[0]

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    def is_in(self, package: str) -> bool:
        return self.name == package or self.name.startswith(package + ".")

    def imports(self) -> Iterator[tuple[int, str, str | None]]:
        """(line, module, name): every import, wherever it stands, with its dots resolved; name None for `import x`."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node.lineno, alias.name, None
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                if node.level:
                    above = self.package.split(".")
                    base = ".".join(above[: len(above) - node.level + 1])
                    module = f"{base}.{module}" if module else base
                for alias in node.names:
                    yield node.lineno, module, alias.name

    def definitions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node


class Sources:
    def __init__(self) -> None:
        self.shipped = self._read("elastic_runtime") + self._read("launcher")
        self.beside = self._read("examples") + self._read("benchmarks")  # run by people, shipped to nobody
        self.tests = self._read("tests")
        assert len(self.shipped) > 20, "the sources were not found: these tests would pass for nothing"

    @staticmethod
    def _read(folder: str) -> list[Module]:
        files = sorted((ROOT / folder).rglob("*.py"))
        return [Module(path=file.relative_to(ROOT).as_posix(), text=file.read_text()) for file in files]

    @staticmethod
    def sample(path: str, text: str) -> Module:
        """A module that does not exist, to show that a check finds what it is there to find."""
        return Module(path=path, text=text)


@pytest.fixture(scope="session")
def sources() -> Sources:
    return Sources()
