"""A script without torch that says what it was given, on both streams."""

from __future__ import annotations

import os
import sys

rank = os.environ["RANK"]
device = os.environ.get("CUDA_VISIBLE_DEVICES")
errors = "a file" if os.environ["TORCHELASTIC_ERROR_FILE"] else "nowhere"
print(f"said out by {rank}: local {os.environ['LOCAL_RANK']}, device {device}, errors to {errors}")
print(f"said keep {rank}")
print(f"said on its way {rank}\rsaid at its end {rank}")
print(f"said err by {rank}: {sys.argv[1:]}", file=sys.stderr)
if "loud" in sys.argv:
    for letter in "abc":
        print(letter * 1_000_000)
