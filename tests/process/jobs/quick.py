"""Workers of tests start in half the time without torch's compiler, which the first optimizer of a process imports and
which nothing here uses: an empty module in its place does."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch


def leave_the_compiler_out() -> None:
    stand_in: Any = ModuleType("torch._dynamo")
    stand_in.disable = lambda function=None, *_, **__: function
    stand_in.graph_break = lambda *_, **__: None
    sys.modules["torch._dynamo"] = torch._dynamo = stand_in
