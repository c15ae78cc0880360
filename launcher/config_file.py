"""A configuration file as it is written: its values, and the line of each. Knows no key."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_runtime.errors import ConfigurationError

Keys = tuple[str, ...]
_KEY = re.compile(r"""\s*("(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+)\s*""")
# What may contain a bracket or a line's end that is none.
_OPAQUE = re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    name: str  # as it was given
    values: Mapping[str, Any]
    lines: Mapping[Keys, int]

    def line(self, keys: Keys) -> int:
        """Of a value, or of the nearest thing around it; 0: the file as a whole."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return self.lines.get(keys, 0)

    def place(self, keys: Keys) -> str:
        line = self.line(keys)
        return f"{self.name}:{line}" if line else self.name


def read(name: str) -> ConfigFile:
    """Raises ConfigurationError if it cannot be read, or is neither TOML nor YAML."""
    readers: dict[str, Callable[[str, str], ConfigFile]] = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml}
    reader = readers.get(Path(name).suffix)
    if reader is None:
        raise ConfigurationError(f"--config={name}: the name must end in {', '.join(readers)}")
    try:
        text = Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--config={name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"--config={name} is not text in UTF-8: {error.reason}") from None
    return _spelled(reader(name, text))


def _spelled(file: ConfigFile) -> ConfigFile:
    """Keys of tables with underscores, whichever way a flag's name was written; world sizes as text."""
    values = {str(key): _underscores(value) for key, value in file.values.items()}
    lines: dict[Keys, int] = {}
    for keys, line in file.lines.items():
        spelled = (keys[0], *(key.replace("-", "_") for key in keys[1:3]), *keys[3:])
        if spelled in lines:
            raise ConfigurationError(f"{file.name}:{line}: {keys[-1]} stands here a second time, as {spelled[-1]}")
        lines[spelled] = line
    if isinstance(at := values.get("at"), dict):
        values["at"] = {size: _underscores(own) for size, own in at.items()}
    return ConfigFile(name=file.name, values=values, lines=lines)


def _underscores(table: Any) -> Any:
    return {str(key).replace("-", "_"): value for key, value in table.items()} if isinstance(table, dict) else table


# -- TOML -------------------------------------------------------------------------------------------------------------


def _toml(name: str, text: str) -> ConfigFile:
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r" \(at line (\d+), column \d+\)$", str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        what = str(error)[: place.start()] if place else str(error).removesuffix(" (at end of document)")
        raise ConfigurationError(f"{name}:{line}: not valid TOML: {what}") from None
    return ConfigFile(name=name, values=values, lines=toml_lines(text.replace("\r\n", "\n")))


def toml_lines(text: str) -> dict[Keys, int]:
    """The line on which each table and each key begins. `text` is valid TOML; keys of inline tables have no entry."""
    lines: dict[Keys, int] = {}
    table: Keys = ()
    line, position = 1, 0
    for start, end in _statements(text):
        line += text.count("\n", position, start)
        position = start
        if text[start] == "[":
            table = _keys(text, start + len(re.match(r"\[+", text[start:end])[0]))  # type: ignore[index]
            keys = table
        else:
            keys = table + _keys(text, start)
        for length in range(1, len(keys) + 1):
            lines.setdefault(keys[:length], line)
    return lines


def _statements(text: str) -> Iterator[tuple[int, int]]:
    """Where each header or pair begins and ends."""
    position, start, depth = 0, -1, 0
    while position < len(text):
        opaque = _OPAQUE.match(text, position)
        character = text[position]
        if start < 0 and not character.isspace() and character != "#":
            start = position
        if opaque:
            position = opaque.end()
            continue
        depth += (character in "[{") - (character in "]}")
        if character == "\n" and depth == 0 and start >= 0:
            yield start, position
            start = -1
        position += 1
    if start >= 0:
        yield start, position


def _keys(text: str, position: int) -> Keys:
    """The dotted key that begins here."""
    found: list[str] = []
    while part := _KEY.match(text, position):
        key = part[1]
        found.append(json.loads(key) if key[0] == '"' else key.strip("'"))
        position = part.end()
        if text[position] != ".":
            break
        position += 1
    return tuple(found)


# -- YAML -------------------------------------------------------------------------------------------------------------

# YAML 1.2's core schema: in PyYAML's own, `1:4` is sixty-four, `no` is false and `1e-3` a string.
_SCALARS = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)


def _yaml(name: str, text: str) -> ConfigFile:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError:
        raise ConfigurationError(
            f"--config={name}: reading YAML needs PyYAML (pip install pyyaml); TOML does not"
        ) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: dict[str, Any] = {}

    for tag, pattern, first in _SCALARS:
        Loader.add_implicit_resolver(tag, re.compile(f"^(?:{pattern})$"), first)
    loader = Loader(text)
    lines: dict[Keys, int] = {}

    def note(node: Any, keys: Keys) -> None:
        if not isinstance(node, yaml.MappingNode):
            return
        for key, value in node.value:
            there = (*keys, str(key.value))
            if there in lines:
                raise ConfigurationError(f"{name}:{key.start_mark.line + 1}: {key.value} stands here a second time")
            lines[there] = key.start_mark.line + 1
            note(value, there)

    try:
        node = loader.get_single_node()
        note(node, ())
        values = loader.construct_document(node) if node else {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{name}:{mark.line + 1}" if mark else name
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigurationError(f"{place}: not valid YAML: {what}") from None
    finally:
        loader.dispose()
    if not isinstance(values, dict):
        raise ConfigurationError(f"{name}:1: must be keys with values, not {type(values).__name__}")
    return ConfigFile(name=name, values=values, lines=lines)
