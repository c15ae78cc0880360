"""A job whose Session is told by the configuration file, except for two things. Its ledger is that of `ledger`."""

from __future__ import annotations

import torch
from ledger import SEED, Ledger, arguments, train
from torch import nn

from elastic_runtime import Session


def main() -> None:
    options = arguments().parse_args()
    torch.manual_seed(SEED)
    model = nn.Linear(32, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = Session(model=model, optimizer=optimizer, seed=SEED, max_grad_norm=1.0)
    ledger = Ledger(options.dir / "ledger.jsonl")
    session.on_resize(lambda change: ledger.write("resized", session, -1, lr_scale=change.lr_scale))
    train(session, model, options)


if __name__ == "__main__":
    main()
