"""Multilayer perceptrons on embedded or one-hot tokens, and the two-layer networks of the theory papers.

Input layers never build one-hot vectors: the first layer's contribution of a (token, position) is a row
of a table, looked up and summed over positions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..named import one_of
from .head import make_head

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "quadratic": torch.square,
}


class EmbeddingMLP(nn.Module):
    """Token embeddings, concatenated or summed over positions, hidden layers, head: (n, l) -> (n, classes).

    `layers` hidden layers of `feedforward` units; PyTorch's initialization (embeddings N(0, 1)).

    Options:
        combine: concat or sum.
        activation: relu, gelu or quadratic.
    """

    def __init__(
        self,
        num_tokens: int,
        positions: int,
        num_classes: int,
        head_names: Sequence[str],
        layers: int,
        width: int,
        feedforward: int,
        *,
        combine: str = "concat",
        activation: str = "relu",
    ) -> None:
        super().__init__()
        self.concatenated = one_of(combine, ("concat", "sum"), field="combine") == "concat"
        self.activation = ACTIVATIONS[one_of(activation, tuple(ACTIVATIONS), field="activation")]
        self.token = nn.Embedding(num_tokens, width)
        self.feedforward = _hidden(width * (positions if self.concatenated else 1), feedforward, layers)
        self.head = make_head(feedforward, num_classes, head_names, bias=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of tokens (n, l)."""
        first, *others = _linears(self.feedforward)
        return _logits(self, self._first(first, tokens), others)

    def _first(self, layer: nn.Linear, tokens: Tensor) -> Tensor:
        """The first hidden layer (n, feedforward) before its activation."""
        embedding = self.token.weight
        if len(tokens) <= len(embedding):
            embedded = embedding[tokens]
            embedded = embedded.flatten(1) if self.concatenated else embedded.sum(1)
            return functional.linear(embedded, layer.weight, layer.bias)
        if not self.concatenated:
            return _sum_of_rows(embedding @ layer.weight.T, tokens, shared=True) + layer.bias
        weights = layer.weight.view(len(layer.weight), tokens.shape[1], -1).permute(1, 2, 0)
        return _sum_of_rows((embedding @ weights).flatten(0, 1), tokens, shared=False) + layer.bias


class OneHotMLP(nn.Module):
    """Hidden layers on concatenated one-hot tokens (n, l), or on features (n, features) if num_tokens is 0.

    `layers` hidden layers of `feedforward` units; PyTorch's initialization.

    Options:
        activation: relu, gelu or quadratic.
    """

    def __init__(
        self,
        num_tokens: int,
        positions: int,
        num_classes: int,
        head_names: Sequence[str],
        layers: int,
        feedforward: int,
        *,
        activation: str = "relu",
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[one_of(activation, tuple(ACTIVATIONS), field="activation")]
        self.feedforward = _hidden(positions * (num_tokens or 1), feedforward, layers)
        self.head = make_head(feedforward, num_classes, head_names, bias=True)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of tokens (n, l) or features (n, features)."""
        first, *others = _linears(self.feedforward)
        if inputs.is_floating_point():
            return _logits(self, first(inputs), others)
        return _logits(self, _sum_of_rows(first.weight.T, inputs, shared=False) + first.bias, others)


class TwoLayer(nn.Module):
    """head(activation(W x)) without biases, x the one-hot tokens, or features if num_tokens is 0.

    With `shared`, the input weights are the same at all positions (x is the sum of one-hots): the network
    of He et al. 2026 (arXiv 2602.16849); else that of arXiv 2603.01192. Both layers begin as N(0, 1/p),
    p the number of tokens (of features without tokens); the former paper's 0.1 is the configuration's
    init_scale.

    Options:
        activation: quadratic, relu or gelu.
        shared: one table of input weights for all positions.
    """

    def __init__(
        self,
        num_tokens: int,
        positions: int,
        num_classes: int,
        head_names: Sequence[str],
        feedforward: int,
        *,
        activation: str = "quadratic",
        shared: bool = False,
    ) -> None:
        super().__init__()
        if shared and not num_tokens:
            raise ValueError("shared=True needs token inputs; this task has features")
        self.activation = ACTIVATIONS[one_of(activation, tuple(ACTIVATIONS), field="activation")]
        self.shared = shared
        size = (num_tokens or 1) * (1 if shared else positions)
        self.feedforward = nn.Linear(size, feedforward, bias=False)
        self.head = make_head(feedforward, num_classes, head_names, bias=False)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=1 / sqrt(num_tokens or positions))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of tokens (n, l) or features (n, features)."""
        if inputs.is_floating_point():
            return _logits(self, self.feedforward(inputs), ())
        return _logits(self, _sum_of_rows(self.feedforward.weight.T, inputs, shared=self.shared), ())


def _hidden(inputs: int, units: int, layers: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(inputs if depth == 0 else units, units) for depth in range(layers))


def _linears(layers: nn.ModuleList) -> list[nn.Linear]:
    return cast("list[nn.Linear]", list(layers))


def _logits(model: EmbeddingMLP | OneHotMLP | TwoLayer, first: Tensor, others: Sequence[nn.Module]) -> Tensor:
    """Logits from the first hidden layer before its activation and the further hidden layers."""
    hidden = model.activation(first)
    for layer in others:
        hidden = model.activation(layer(hidden))
    logits: Tensor = model.head(hidden)
    return logits


def _sum_of_rows(table: Tensor, tokens: Tensor, *, shared: bool) -> Tensor:
    """Sum over positions (n, units) of the rows of table (l · num_tokens, units) that tokens (n, l) name.

    With `shared` the table has num_tokens rows, the same for every position.
    """
    positions = tokens.shape[1]
    step = 0 if shared else len(table) // positions
    places = tokens.T + step * torch.arange(positions, device=tokens.device).unsqueeze(1)
    rows = table.contiguous().index_select(0, places.flatten())
    return rows.view(positions, len(tokens), -1).sum(0)
