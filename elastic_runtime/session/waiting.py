"""Waiting for collectives without being held in one for ever.

gloo forgets a send whose write fails at the very moment when the connection breaks: the collective it belongs to then
neither ends nor fails (seen in one of 200 kills of a peer, and in one of three of the breaks that this process makes
itself by shutting its sockets). So whoever waits looks up now and then, whether it has been ordered off meanwhile.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from elastic_runtime.errors import BrokenCollective

LOOK_UP_EVERY_S = 0.1  # costs a wake-up; bounds the delay of the rare case


def wait_collective(works: list[dist.Work], is_over: Callable[[], bool]) -> None:
    """Wait for collectives. `works` is empty afterwards: a work that a traceback holds would hold the group's sockets.

    Raises BrokenCollective when one fails, and when `is_over()` becomes true while one neither ends nor fails.
    """
    try:
        while works:
            while not works[0].is_completed():
                try:
                    works[0].wait(timedelta(seconds=LOOK_UP_EVERY_S))
                except RuntimeError:
                    if not works[0].is_completed() and is_over():
                        raise BrokenCollective("ordered to leave; the collective did not return") from None
            works[0].wait()  # at once; raises if it failed
            del works[0]
    except RuntimeError as error:
        raise BrokenCollective(_first_line(error)) from error
    finally:
        works.clear()


def wait_point_to_point(works: list[dist.Work], is_over: Callable[[], bool]) -> None:
    """The same for sends and receives. gloo breaks the connection when a limited wait for one of those runs out, so a
    thread waits without a limit; should it never return, it is left behind."""
    outcome: queue.SimpleQueue[RuntimeError | None] = queue.SimpleQueue()

    def wait() -> None:
        try:
            while works:
                works.pop().wait()
            outcome.put(None)
        except RuntimeError as error:
            outcome.put(error)

    threading.Thread(target=wait, name="elastic-transfer", daemon=True).start()
    while True:
        try:
            error = outcome.get(timeout=LOOK_UP_EVERY_S)
        except queue.Empty:
            if is_over():
                raise BrokenCollective("ordered to leave; a transfer did not return") from None
        else:
            works.clear()
            if error is not None:
                raise BrokenCollective(_first_line(error)) from error
            return


def _first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0][:200]
