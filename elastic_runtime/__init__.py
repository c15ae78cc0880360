"""Elastic training for PyTorch: workers and nodes die, join and leave; training goes on in the same processes.

In a training script::

    from elastic_runtime import Session
"""

from __future__ import annotations

import typing

from elastic_runtime.errors import ConfigurationError, ElasticError, LoopContractError

if typing.TYPE_CHECKING:
    from elastic_runtime.session import Change, Session

__all__ = ["Change", "ConfigurationError", "ElasticError", "LoopContractError", "Session"]


def __getattr__(name: str) -> typing.Any:
    """Session and Change, and torch with them, only for those who ask: tools that need no torch start at once."""
    if name in ("Change", "Session"):
        from elastic_runtime import session

        return getattr(session, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
