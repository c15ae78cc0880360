"""Errors, arranged by who can act on them.

    ElasticError
    ├── ConfigurationError      the user: a wrong argument or command line; nothing was started
    ├── LoopContractError       the user: the training loop broke the contract of `Session.steps`
    ├── StoreError              the environment: the store cannot be reached or answered strangely; retryable
    ├── BrokenCollective        membership: a peer left or died; the session re-forms, users never see it
    └── JobClosed               membership: the job ended while this worker was waiting; carries the exit code

Anything else that escapes is a bug of ours and is not caught.
"""

from __future__ import annotations


class ElasticError(Exception):
    """Base of every error this project raises on purpose."""


class ConfigurationError(ElasticError, ValueError):
    """An argument or a combination of arguments that cannot work. The message says what to change."""


class LoopContractError(ElasticError, RuntimeError):
    """The training loop did something the step cannot make sense of. The message names the remedy."""


class StoreError(ElasticError):
    """The store did not answer, or not as a store. What the failed call did is unknown: read again."""


class BrokenCollective(ElasticError):
    """A collective failed because a peer is gone or left. The step in flight is void; state is intact."""


class JobClosed(ElasticError):
    """The job ended while this worker waited for a world."""

    def __init__(self, reason: str, exit_code: int) -> None:
        super().__init__(reason)
        self.exit_code = exit_code
