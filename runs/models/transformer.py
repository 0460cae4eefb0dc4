"""The transformer encoder of the grokking papers, evaluated without repeated work.

Parameters live in the same modules that the papers use, so that names, initialization and state dict are
theirs; the forward pass is ours. Two savings, both exact: only the position that is read out passes through
the last layer's query, output projection and feed-forward part; and what the first layer's attention
takes in depends on (token, position) alone, so it is computed once per distinct one and looked up.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Inputs(NamedTuple):
    """What a layer's attention takes in, for n samples, r rows that go on and l positions."""

    residual: Tensor  # (n, r, d)
    query: Tensor  # (n, r, d)
    key_value: Tensor  # (n, l, 2 d)


class Transformer(nn.Module):
    """Token and position embedding, encoder layers, final LayerNorm, linear head at one position.

    tokens (n, positions) -> logits (n, num_classes).
    """

    def __init__(
        self,
        *,
        num_tokens: int,
        positions: int,
        num_classes: int,
        layers: int,
        width: int,
        heads: int,
        feedforward: int,
        activation: str = "gelu",
        norm_first: bool = False,
        readout: str = "last",
        final_norm: bool = True,
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(num_tokens, width)
        self.position = nn.Embedding(positions, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, feedforward, 0.0, activation, batch_first=True, norm_first=norm_first
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width) if final_norm else nn.Identity()
        self.head = nn.Linear(width, num_classes)
        self.num_heads = heads
        self.norm_first = norm_first
        self.activation = F.gelu if activation == "gelu" else F.relu
        self.read = {"first": slice(0, 1), "last": slice(positions - 1, positions)}[readout]

    def forward(self, tokens: Tensor) -> Tensor:
        first, *others = self.encoder.layers
        rows = [slice(None)] * len(others) + [self.read]
        x = self._complete(first, self._first_inputs(first, tokens, rows[0]))
        for layer, chosen in zip(others, rows[1:], strict=True):
            x = self._complete(layer, self._inputs(layer, x, chosen))
        logits: Tensor = self.head(self.norm(x.squeeze(1)))
        return logits

    def _first_inputs(self, layer: nn.Module, tokens: Tensor, rows: slice) -> _Inputs:
        """The first layer's inputs, by lookup where there are more samples than tokens."""
        vocabulary, positions = len(self.token.weight), tokens.shape[-1]
        if len(tokens) <= vocabulary:
            return self._inputs(layer, self.token(tokens) + self.position.weight, rows)
        offsets = vocabulary * torch.arange(positions, device=tokens.device)
        where = tokens + offsets
        table = self.token.weight + self.position.weight.unsqueeze(1)  # (positions, vocabulary, width)
        inputs = self._inputs(layer, table.transpose(0, 1), rows)  # samples: one of each token everywhere
        chosen = where[:, rows] - offsets[rows][:1]
        return _Inputs(*(_look_up(t, w) for t, w in zip(inputs, (chosen, chosen, where), strict=True)))

    def _inputs(self, layer: nn.Module, x: Tensor, rows: slice) -> _Inputs:
        """Residual and query at `rows`, key and value everywhere, from the stream x (n, l, d)."""
        attention, width = layer.self_attn, x.shape[-1]
        y = layer.norm1(x) if self.norm_first else x
        weight, bias = attention.in_proj_weight, attention.in_proj_bias
        query = F.linear(y[:, rows], weight[:width], bias[:width])
        return _Inputs(x[:, rows], query, F.linear(y, weight[width:], bias[width:]))

    def _complete(self, layer: nn.Module, inputs: _Inputs) -> Tensor:
        """The layer's output (n, r, d) at the rows that go on."""
        attended = layer.self_attn.out_proj(self._attend(inputs.query, inputs.key_value))
        if self.norm_first:
            x = inputs.residual + attended
            return x + self._feedforward(layer, layer.norm2(x))
        x = layer.norm1(inputs.residual + attended)
        return layer.norm2(x + self._feedforward(layer, x))

    def _attend(self, query: Tensor, key_value: Tensor) -> Tensor:
        """Attention by elementwise products: sequences are too short for matrix products to pay."""
        split = (self.num_heads, query.shape[-1] // self.num_heads)
        key, value = key_value.unflatten(-1, (2, *split)).unsqueeze(1).unbind(-3)  # (n, 1, l, h, d/h)
        scores = (query.unflatten(-1, split).unsqueeze(2) * key).sum(-1) / sqrt(split[1])  # (n, r, l, h)
        weights = scores.softmax(2).unsqueeze(-1)
        return (weights * value).sum(2).flatten(-2)

    def _feedforward(self, layer: nn.Module, x: Tensor) -> Tensor:
        return layer.linear2(self.activation(layer.linear1(x)))


def _look_up(table: Tensor, where: Tensor) -> Tensor:
    """Rows of table (vocabulary, positions, width) at where = token + vocabulary * position."""
    return F.embedding(where, table.transpose(0, 1).flatten(0, 1))
