"""`elasticrun --config`: flag > environment (PET_*) > file > default, and where each value is from.

A script on the command line takes the place of the file's, arguments and all. Relative paths in the file mean what they
mean on the command line.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from torch.distributed.argparse_util import check_env, env

from elastic_runtime.environment import SESSION as SESSION_VARIABLE
from elastic_runtime.environment import SessionDefaults
from elastic_runtime.errors import ConfigurationError
from launcher.config_file import ConfigFile, read

FLAG, DEFAULT = "flag", "default"
NOT_IN_A_FILE = ("help", "config", "print_config", "print_schema")
NO_SCRIPT = "\0"  # stands where a command line has no script


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What there is to know of a configuration beside the values of the flags."""

    sources: Mapping[str, str] = field(default_factory=dict)  # destination of a flag, script, args -> where it is from
    session: SessionDefaults = field(default_factory=SessionDefaults)
    file: str = ""

    def variables(self) -> dict[str, str]:
        """For workers. What the launcher itself inherited belongs to another job."""
        if self.file:
            return {SESSION_VARIABLE: self.session.to_text()}
        return {SESSION_VARIABLE: ""} if SESSION_VARIABLE in os.environ else {}

    def located(self, message: str) -> str:
        """A refusal with the place in the file, if it is about a value from there."""
        named = re.match(r"--([a-z][a-z-]*)", message)
        key = named[1].replace("-", "_") if named else "script" if message.startswith("there is no script") else ""
        source = self.sources.get(key, "")
        return f"{source}: {message}" if self.file and source.startswith(f"{self.file}:") else message


def parse(make_parser: Callable[[], argparse.ArgumentParser], argv: Sequence[str] | None) -> argparse.Namespace:
    """The values of all flags, and a `Job` as `.job`. Ends the process with 2 if the file or the line is wrong."""
    argv = list(sys.argv[1:] if argv is None else argv)
    given = _given(make_parser(), argv)
    name = given.get("config", os.environ.get("PET_CONFIG"))
    file, found, session = _read(name, make_parser()) if name else (None, {}, SessionDefaults())
    parser = make_parser()
    sources = _apply(parser, found.get("launch", {}), given, file)
    arguments = _parse_with_script(parser, argv, given, found, sources, file)
    arguments.job = Job(sources=sources, session=session, file=name or "")
    return arguments


def flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """By destination, all that a file may set."""
    return {a.dest: a for a in parser._actions if a.option_strings and a.dest not in NOT_IN_A_FILE}


def _read(name: str, parser: argparse.ArgumentParser) -> tuple[ConfigFile, dict[str, Any], SessionDefaults]:
    from launcher.schema import validate  # what it needs takes its time, and most command lines name no file

    try:
        file = read(name)
        found, mistakes = validate(file, parser)
        if mistakes:
            refuse("\n".join(mistakes))
        return file, found, _session(file, found)
    except ConfigurationError as error:
        refuse(str(error))


def refuse(message: str) -> NoReturn:
    for line in message.splitlines():
        print(f"elasticrun: {line}", file=sys.stderr)
    sys.exit(2)


def _given(parser: argparse.ArgumentParser, argv: list[str]) -> dict[str, Any]:
    """What the command line itself says. `training_script` is NO_SCRIPT if it names none."""
    for action in parser._actions:
        action.default = argparse.SUPPRESS

    def stop(message: str) -> NoReturn:
        raise argparse.ArgumentError(None, message)

    parser.error = stop  # type: ignore[method-assign]
    try:
        return vars(parser.parse_args([*argv, NO_SCRIPT]))
    except argparse.ArgumentError:
        return {"training_script": None}  # the real parser tells what is wrong


def _apply(
    parser: argparse.ArgumentParser, launch: Mapping[str, Any], given: Mapping[str, Any], file: ConfigFile | None
) -> dict[str, str]:
    """Make the file's values the parser's defaults. Returns where each flag's value is from."""
    sources = {}
    for dest, action in flags(parser).items():
        variable = f"PET_{dest.upper()}"
        if dest in given:
            sources[dest] = FLAG
        elif isinstance(action, env | check_env) and variable in os.environ:
            sources[dest] = variable
        elif file and dest in launch:
            action.default = launch[dest]
            sources[dest] = file.place(("launch", dest))
        else:
            sources[dest] = DEFAULT
    return sources


def _parse_with_script(
    parser: argparse.ArgumentParser,
    argv: list[str],
    given: Mapping[str, Any],
    found: Mapping[str, Any],
    sources: dict[str, str],
    file: ConfigFile | None,
) -> argparse.Namespace:
    sources["script"] = sources["args"] = FLAG
    if given["training_script"] != NO_SCRIPT:
        return parser.parse_args(argv)
    if file and "script" in found:
        sources["script"], sources["args"] = file.place(("script",)), file.place(("args",))
        return parser.parse_args([*argv, found["script"], *found.get("args", [])])
    if "print_config" not in given:
        return parser.parse_args(argv)  # which says that a script is missing
    sources["script"] = sources["args"] = DEFAULT
    arguments = parser.parse_args([*argv, NO_SCRIPT])
    arguments.training_script = None
    return arguments


def _session(file: ConfigFile, found: Mapping[str, Any]) -> SessionDefaults:
    from elastic_runtime.session.arguments import DEFAULTS, Arguments, At

    values, at = found.get("session", {}), {int(size): own for size, own in found.get("at", {}).items() if own}
    sources = {key: file.place(("session", key)) for key in values}
    sources |= {f"at.{size}.{key}": file.place(("at", str(size), key)) for size, own in at.items() for key in own}
    if {"global_batch_size", "micro_batch_size"} <= values.keys():  # else the script has to be heard first
        try:
            overrides = {size: At(**own) for size, own in at.items()}
            Arguments(**{**DEFAULTS, **values}, at=overrides).check_values()
        except ConfigurationError as error:
            raise ConfigurationError(f"{_place_of(str(error), file)}: {error}") from None
    return SessionDefaults(values=values, at=at, sources=sources)


def _place_of(message: str, file: ConfigFile) -> str:
    """Of the first key of the file that a message names."""
    size = re.match(r"\[at\.(\d+)\]", message)
    table = ("at", size[1]) if size else ("session",)
    named = [table + (word,) for word in re.findall(r"[a-z_]+", message)]
    return next((file.place(keys) for keys in named if keys in file.lines), file.place(table))
