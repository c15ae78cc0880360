"""Elastic training for PyTorch: workers and nodes die, join and leave; training goes on in the same processes.

In a training script::

    from elastic_runtime import Session
"""

from elastic_runtime.errors import ConfigurationError, ElasticError, LoopContractError
from elastic_runtime.session import Change, Session

__all__ = ["Change", "ConfigurationError", "ElasticError", "LoopContractError", "Session"]
