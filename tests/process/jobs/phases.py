"""The ledger job, with workers that kill themselves at a chosen moment of a change.

`--deaths '{"1.0": "arriving@3"}'`: the first process (0) in slot 1 dies when it arrives at a meeting and at least 3
steps are committed in the state that it holds. `@3/2`: ... and the world it trains in has 2 workers. Several, with
commas between, befall it one after another. The moments are where hooks can be put around the Session's own calls;
"lag" is no death: the worker takes the end of a step's reduction for broken although its peers do not.
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
    """What is to befall this process, each once."""

    def __init__(self, directory: Path, name: str, wanted: str, session: Session) -> None:
        self._directory, self._name = directory, name
        self._wanted = wanted.split(",") if wanted else []
        self._worker = session.worker

    def is_now(self, moment: str) -> bool:
        """Whether what comes next in the list comes now. Then a file is left that says so."""
        if not self.is_next(moment):
            return False
        (self._directory / f"befell-{self._name}-{self._wanted.pop(0).replace('/', '-')}").touch()
        return True

    def is_next(self, moment: str) -> bool:
        if not self._wanted:
            return False
        wanted, _, when = self._wanted[0].partition("@")
        step, _, workers = when.partition("/")
        if moment != wanted or self._worker.progress.step < int(step or 0):
            return False
        return not workers or self._worker.world.world_size == int(workers)

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
    doom = Doom(options.dir, name, options.deaths.get(name, ""), session)
    install(doom, session)
    train(session, model, options, on_batch=lambda step: doom.here("computing"))


if __name__ == "__main__":
    main()
