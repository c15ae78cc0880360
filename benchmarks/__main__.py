"""`make bench`: every comparison, one after the other."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

for name in ("steady", "recovery", "rendezvous"):
    print(f"== {name}")
    sys.argv = [name]
    runpy.run_path(str(Path(__file__).parent / f"{name}.py"), run_name="__main__")
