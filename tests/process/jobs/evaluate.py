"""The ledger job with evaluations, in which chosen workers die.

`--deaths '{"1.0": "evaluate@2"}'` as in `phases.py`, by the number of steps committed. "evaluate": in the function
that is evaluated. "evaluate with a newcomer": the same, once a world with a newcomer is settled, so that the newcomer
enters while the others evaluate. "on_finish": in that function, before it has written anything.
"""

from __future__ import annotations

import json

import torch
from ledger import Ledger, Samples, arguments, build, train
from phases import Doom, claim_name

EVERY = 4

parser = arguments()
parser.add_argument("--deaths", type=json.loads, default={})
options = parser.parse_args()
session, model = build(options)
doom = Doom(options.dir, name := claim_name(options.dir), options.deaths.get(name, ""), session)
ledger = Ledger(options.dir / "ledger.jsonl")
held_out = torch.utils.data.Subset(Samples(), range(100))


def error(batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, wanted, _ = batch
    doom.here("evaluate")
    if doom.is_next("evaluate with a newcomer"):
        with session.worker.membership._news:  # type: ignore[attr-defined]
            session.worker.membership._news.wait_for(session.worker.change_waits)  # type: ignore[attr-defined]
        doom.here("evaluate with a newcomer")
    return ((model(inputs) - wanted) ** 2).sum()


def on_step(step: int) -> None:
    if step % EVERY == EVERY - 1:
        ledger.write("evaluated", session, step, sum=session.evaluate(held_out, error))


session.on_finish(lambda: doom.here("on_finish"))
train(session, model, options, on_step=on_step)
