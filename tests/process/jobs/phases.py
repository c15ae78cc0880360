"""The ledger job, with workers that kill themselves at a chosen moment of a change.

`--deaths '{"1.0": "arriving@3"}'`: the first process (0) in slot 1 dies when it arrives at a meeting and at least 3
steps are committed in the state that it holds. `@3/2`: ... and the world it trains in has 2 workers. The moments are
where hooks can be put around the Session's own calls; "lag" is no death: the worker takes the end of a step's reduction
for broken although its peers do not.
"""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from ledger import arguments, build, train

from elastic_runtime import Session
from elastic_runtime.core.messages import Broken
from elastic_runtime.errors import BrokenCollective
from elastic_runtime.session.meeting_store import MeetingStore


class Doom:
    """What is to befall this process, once."""

    def __init__(self, mark: Path, wanted: str, session: Session) -> None:
        self._mark = mark  # a file that says that it happened
        self._moment, _, when = wanted.partition("@")
        step, _, world = when.partition("/")
        self._step, self._workers = int(step or 0), int(world or 0)
        self._worker = session.worker

    def is_now(self, moment: str) -> bool:
        if moment != self._moment or self._worker.progress.step < self._step:
            return False
        if self._workers and self._worker.world.world_size != self._workers:
            return False
        if self._mark.exists():
            return False
        self._mark.touch()
        return True

    def here(self, moment: str) -> None:
        """Die, if this is the moment."""
        if self.is_now(moment):
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str, before: str | None, after: str | None) -> None:
        call: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(call)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before:
                self.here(before)
            result = call(*args, **kwargs)
            if after:
                self.here(after)
            return result

        setattr(owner, name, wrapped)


def claim_name(directory: Path) -> str:
    """SLOT.N: this is the N-th process in its slot."""
    slot, number = os.environ["LOCAL_RANK"], 0
    while True:
        try:
            (directory / f"process-{slot}.{number}").touch(exist_ok=False)
            return f"{slot}.{number}"
        except FileExistsError:
            number += 1


def install(doom: Doom, session: Session) -> None:
    worker = session.worker
    send, finish = worker.membership.send, session.reduction.finish

    def send_and(message: Any) -> None:
        send(message)
        if isinstance(message, Broken):
            doom.here("settling")

    def finish_and(**kwargs: Any) -> Any:
        doom.here("reducing")
        sums = finish(**kwargs)
        if doom.is_now("lag"):
            raise BrokenCollective("so it seemed to this worker")
        return sums

    worker.membership.send = send_and  # type: ignore[method-assign]
    session.reduction.finish = finish_and  # type: ignore[method-assign]
    doom.around(MeetingStore, "arrive", "arriving", "arrived")
    doom.around(MeetingStore, "set", "connecting", None)  # gloo's addresses, in the middle of forming the group
    doom.around(worker._group, "form", None, "formed")
    doom.around(worker._carried, "export", None, "source")
    doom.around(dist, "isend", None, "sending")
    doom.around(worker._carried, "load", "pulled", "loaded")
    doom.around(session.update, "apply", "commit", "updated")
    session.update._optimizer.register_step_post_hook(lambda *_: doom.here("inside the commit"))
    doom.around(worker, "committed", None, "committed")


def main() -> None:
    parser = arguments()
    parser.add_argument("--deaths", type=json.loads, required=True)
    options = parser.parse_args()
    name = claim_name(options.dir)
    session, model = build(options)
    doom = Doom(options.dir / f"befell-{name}", options.deaths.get(name, "nothing"), session)
    install(doom, session)
    train(session, model, options, on_batch=lambda step: doom.here("computing"))


if __name__ == "__main__":
    main()
