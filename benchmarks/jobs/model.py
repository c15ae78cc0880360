"""The model that the benchmarks share: a small transformer, about 2.4 M parameters, steps of tens of milliseconds."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

VOCABULARY, CONTEXT, WIDTH = 256, 64, 192
GLOBAL_BATCH, MICRO_BATCH = 8, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 6, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.body = nn.TransformerEncoder(layer, 5, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embed(tokens) + self.place))


class Tokens(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, size: int = 4096) -> None:
        self._tokens = torch.randint(VOCABULARY, (size, CONTEXT + 1), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row = self._tokens[index]
        return row[:-1], row[1:]


def loss_of(model: nn.Module, batch: list[Tensor]) -> Tensor:
    tokens, targets = batch
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
