"""Random numbers keyed by what is computed, never by who computes it."""

from __future__ import annotations

import random
import sys

import torch


def seed_all(key: int) -> None:
    """Seed python, torch (CPU and every device in use) and, if the script has imported it, numpy, from a 63-bit key.

    `torch.manual_seed` is not used: on a device that is not initialised yet it records a stack trace each time.
    """
    random.seed(key)
    torch.default_generator.manual_seed(key)
    for device in (torch.cuda, torch.xpu):
        if device.is_initialized():
            device.manual_seed_all(key)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(key)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed((key ^ (key >> 32)) & 0xFFFFFFFF)
