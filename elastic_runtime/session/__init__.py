"""The worker's side: one Session per process."""

from elastic_runtime.session.session import Session
from elastic_runtime.session.worker import Change

__all__ = ["Change", "Session"]
