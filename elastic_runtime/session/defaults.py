"""What a Session is asked for: what the script gives, else what the job's configuration says, else the default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

import torch
from torch import nn

from elastic_runtime.environment import SESSION, SessionDefaults
from elastic_runtime.errors import ConfigurationError
from elastic_runtime.session.arguments import AT_KEYS, DEFAULTS, Arguments, At

SETTABLE = tuple(each.name for each in fields(Arguments) if each.name != "at")


class Unset(Enum):
    UNSET = "not given in the script"

    def __repr__(self) -> str:
        return "<the job's configuration, or the default>"


UNSET = Unset.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    arguments: Arguments
    sources: dict[str, str]  # argument, or at.N.argument -> where its value is from
    unused: tuple[str, ...]  # at.N.argument: set for a world size, but the script has the last word

    def check(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Raise ConfigurationError for whatever could not work later, with the places outside of the script."""
        try:
            self.arguments.check(model, optimizer)
        except ConfigurationError as error:
            named = {name for name in self.sources if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", str(error))}
            places = [f"{n}: {self.sources[n]}" for n in sorted(named) if self.sources[n] not in ("script", "default")]
            if not places:
                raise
            raise ConfigurationError(f"{error} ({', '.join(places)})") from None


def settle(given: Mapping[str, Any], defaults: SessionDefaults) -> Settled:
    """`given` by the script, UNSET where it says nothing. Raises ConfigurationError for what nobody gives."""
    values, sources = {}, {}
    for name in SETTABLE:
        if given[name] is not UNSET:
            values[name], sources[name] = given[name], "script"
        elif name in defaults.values:
            values[name], sources[name] = defaults.values[name], defaults.sources.get(name, SESSION)
        elif name in DEFAULTS:
            values[name], sources[name] = DEFAULTS[name], "default"
        else:
            raise ConfigurationError(
                f"Session needs {name}=: in the script, or under [session] in the file of elasticrun --config"
            )
    if values["threads"] is None and values["reduction"] == "exact":
        values["threads"], sources["threads"] = 1, "reduction='exact'"
    at, unused = {}, []
    for size, own in sorted(defaults.at.items()):
        used = {}
        for name, value in own.items():
            full = f"at.{size}.{name}"
            if sources.get(name) == "script":
                unused.append(full)
                sources[full] = f"not used: the script gives {name}"
            elif name in AT_KEYS:
                used[name], sources[full] = value, defaults.sources.get(full, SESSION)
            else:
                raise ConfigurationError(f"{SESSION}: {full} is not known to this version")
        if used:
            at[size] = At(**used)
    return Settled(arguments=Arguments(**values, at=at), sources=sources, unused=tuple(unused))
