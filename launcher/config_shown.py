"""`elasticrun --print-config`: the merged configuration as a file that says the same, with the source of each value."""

from __future__ import annotations

import argparse
import json
from typing import Any

from elastic_runtime.session.arguments import DEFAULTS
from launcher.config import DEFAULT, Job, flags
from launcher.schema import SESSION


def as_toml(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> str:
    job: Job = arguments.job
    lines = ["# flag > environment > file > default; a Session's argument that the script gives wins over [session]"]
    lines.append(_line("script", arguments.training_script, job.sources["script"]))
    lines.append(_line("args", list(arguments.training_script_args), job.sources["args"]))
    lines += ["", "[launch]"]
    for dest in flags(parser):
        lines.append(_line(dest, getattr(arguments, dest), job.sources[dest]))
    lines += ["", "[session]"]
    for key in SESSION:
        if key in job.session.values:
            lines.append(_line(key, job.session.values[key], job.session.sources[key]))
        elif key in DEFAULTS:
            lines.append(_line(key, DEFAULTS[key], DEFAULT))
        else:
            lines.append(_line(key, None, "the script gives it"))
    for size, own in sorted(job.session.at.items()):
        lines += ["", f"[at.{size}]"]
        lines += [_line(key, value, job.session.sources[f"at.{size}.{key}"]) for key, value in own.items()]
    return "\n".join(lines) + "\n"


def _line(key: str, value: Any, source: str) -> str:
    """TOML has no word for nothing."""
    return f"# {key} is not set  # {source}" if value is None else f"{key} = {_value(value)}  # {source}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
