"""A script without a Session of which rank 1 fails as it is told to, and the others wait to be ended."""

from __future__ import annotations

import os
import signal
import sys
import time


def main() -> None:
    how = sys.argv[1]
    if os.environ["RANK"] != "1":
        time.sleep(600)
    if how == "raise":
        raise ValueError("the first line\nand a second one")
    if how == "exit":
        sys.exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


if sys.argv[1:] == ["raise"]:
    from torch.distributed.elastic.multiprocessing.errors import record

    record(main)()
else:
    main()
