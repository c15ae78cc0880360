"""A small GPT over bytes, in plain PyTorch: it knows nothing of workers, steps or elasticity."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 256


class Attention(nn.Module):
    """Causal self-attention; (batch, time, width) in and out."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        query, key, value = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return F.dropout(mixed, self.dropout, self.training)


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each added to what came in."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.perceptron_norm = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        perceived: Tensor = self.perceptron(self.perceptron_norm(x))
        return x + perceived


class ByteGPT(nn.Module):
    """Predicts the next byte. The output layer shares its weights with the embedding of the input."""

    def __init__(self, *, context: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.apply(_initialise)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, time) byte values to (batch, time, 256) logits."""
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


def next_byte_loss(model: nn.Module, windows: Tensor) -> Tensor:
    """Mean cross-entropy, in nats a byte, of predicting each byte of (batch, context + 1) windows from those before."""
    logits = model(windows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
