"""Starting jobs: `elasticrun` and `elasticctl`, and the same from Python.

    from launcher import LaunchConfig, elastic_launch
"""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from launcher.launch import LaunchConfig, elastic_launch

__all__ = ["LaunchConfig", "elastic_launch"]


def __getattr__(name: str) -> typing.Any:
    """Only for those who ask: tools that need no torch start at once."""
    if name in __all__:
        from launcher import launch

        return getattr(launch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
