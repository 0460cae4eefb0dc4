"""The transformer encoder of the grokking papers, evaluated without repeated work.

Parameters live in the same modules that the papers use, so that names, initialization and state dict are
theirs; the forward pass is ours. Two savings, both exact: only the position that is read out passes through
the last layer's query, output projection and feed-forward part; and what the first layer's attention
takes in depends on (token, position) alone, so it is computed once per distinct one and looked up.

The stream of n sequences of l tokens is one matrix (l n, d), positions first: row i n + s is position i of
sequence s. So a position is a contiguous piece of memory, and every layer a plain matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..named import one_of
from .attention import mix
from .head import make_head
from .norm import NORMS, make_norm

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": functional.gelu, "relu": functional.relu}


class _Inputs(NamedTuple):
    """What a layer's attention takes in; query and key are absent where attention is uniform."""

    residual: Tensor  # (r n, d) at the r positions that go on
    value: Tensor  # (l n, d)
    query: Tensor | None = None  # (r n, d)
    key: Tensor | None = None  # (l n, d)


class Transformer(nn.Module):
    """Token and position embedding, encoder layers, final norm, head: tokens (n, l) -> logits (n, classes).

    Several names in `heads` give logits (n, heads, classes) from one trunk. As in nn.TransformerEncoder,
    all layers begin with the same weights.

    Options:
        activation: gelu (exact) or relu.
        norm_first: normalize before each part of a layer (pre-norm) instead of after its sum.
        norm: layer, rms, sphere (x/‖x‖) or none, wherever a norm stands.
        embedding_norm: a norm before the first layer too.
        final_norm: a norm before the head.
        readout: position that is read out: first, last, or the mean over all.
        attention: softmax, or uniform (weights 1/l; query and key weights then get no gradient).
        causal: a position sees itself and earlier ones only.
        attention_bias, head_bias: whether attention and head have biases.
        logit_scale: 0 for a linear head; else logits are this times the cosine of features and weights.
        position_std: standard deviation of the initial position embedding; that of tokens is 1.
    """

    def __init__(
        self,
        num_tokens: int,
        positions: int,
        num_classes: int,
        head_names: Sequence[str],
        layers: int,
        width: int,
        heads: int,
        feedforward: int,
        *,
        activation: str = "gelu",
        norm_first: bool = False,
        norm: str = "layer",
        embedding_norm: bool = False,
        final_norm: bool = True,
        readout: str = "last",
        attention: str = "softmax",
        causal: bool = False,
        attention_bias: bool = True,
        head_bias: bool = True,
        logit_scale: float = 0.0,
        position_std: float = 1.0,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[one_of(activation, tuple(ACTIVATIONS), field="activation")]
        one_of(norm, NORMS, field="norm")
        self.readout = one_of(readout, ("first", "last", "mean"), field="readout")
        self.uniform = one_of(attention, ("softmax", "uniform"), field="attention") == "uniform"
        if self.uniform and causal:
            raise ValueError("causal=True can't go with attention='uniform'; choose one of them")
        self.num_heads, self.norm_first, self.causal = heads, norm_first, causal
        self.token = nn.Embedding(num_tokens, width)
        self.position = nn.Embedding(positions, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, feedforward, 0.0, activation, batch_first=True, norm_first=norm_first
        )
        if not attention_bias:
            layer.self_attn = nn.MultiheadAttention(width, heads, bias=False, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        if norm != "layer":
            for layer in self.layers:
                layer.norm1, layer.norm2 = make_norm(norm, width), make_norm(norm, width)  # type: ignore[assignment]
        self.embedding_norm = make_norm(norm if embedding_norm else "none", width)
        self.norm = make_norm(norm if final_norm else "none", width)
        self.head = make_head(width, num_classes, head_names, bias=head_bias, scale=logit_scale)
        with torch.no_grad():
            self.position.weight *= position_std

    @property
    def layers(self) -> list[nn.TransformerEncoderLayer]:
        """The encoder's layers, first to last."""
        return cast("list[nn.TransformerEncoderLayer]", list(self.encoder.layers))

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (n, classes), or (n, heads, classes), of tokens (n, l)."""
        number, positions = tokens.shape
        read = {"first": slice(0, 1), "last": slice(-1, None), "mean": slice(None)}[self.readout]
        first, *others = self.layers
        going_on = [range(positions)] * len(others) + [range(positions)[read]]
        x = self._complete(first, self._first_inputs(first, tokens.T, going_on[0]), going_on[0], number)
        for layer, chosen in zip(others, going_on[1:], strict=True):
            x = self._complete(layer, self._inputs(layer, x, chosen, number), chosen, number)
        features = self.norm(x)
        if self.readout == "mean":
            features = features.view(positions, number, -1).mean(0)
        return cast(Tensor, self.head(features))

    def _first_inputs(self, layer: nn.TransformerEncoderLayer, tokens: Tensor, chosen: range) -> _Inputs:
        """The first layer's inputs for tokens (l, n), by lookup where there are more samples than tokens."""
        token, position = self.token.weight, self.position.weight.unsqueeze(1)
        vocabulary, number = len(token), tokens.shape[1]
        if number <= vocabulary:
            x = self.embedding_norm((self.token(tokens) + position).flatten(0, 1))
            return self._inputs(layer, x, chosen, number)
        every_token = self.embedding_norm((token + position).flatten(0, 1))
        table = self._inputs(layer, every_token, chosen, vocabulary)
        everywhere = _places(tokens, vocabulary)
        here = _places(tokens[chosen.start : chosen.stop], vocabulary)
        query = None if table.query is None else table.query.index_select(0, here)
        key = None if table.key is None else table.key.index_select(0, everywhere)
        value = table.value.index_select(0, everywhere)
        return _Inputs(table.residual.index_select(0, here), value, query, key)

    def _inputs(self, layer: nn.TransformerEncoderLayer, x: Tensor, chosen: range, number: int) -> _Inputs:
        """Residual and query at the chosen positions, key and value everywhere, of the stream x (l n, d)."""
        residual = _rows(x, chosen, number)
        y, mine = x, residual
        if self.norm_first:
            y = layer.norm1(x)
            mine = _rows(y, chosen, number)
        to_query, to_key, to_value = cast(Tensor, layer.self_attn.in_proj_weight).chunk(3)
        bias = layer.self_attn.in_proj_bias
        by_query, by_key, by_value = (None,) * 3 if bias is None else bias.chunk(3)
        value = functional.linear(y, to_value, by_value)
        if self.uniform:
            return _Inputs(residual, value)
        query = functional.linear(mine, to_query, by_query)
        return _Inputs(residual, value, query, functional.linear(y, to_key, by_key))

    def _complete(
        self, layer: nn.TransformerEncoderLayer, inputs: _Inputs, chosen: range, number: int
    ) -> Tensor:
        """The layer's output (r n, d) at the chosen positions."""
        attended = layer.self_attn.out_proj(self._attended(inputs, chosen, number))
        if self.norm_first:
            x: Tensor = inputs.residual + attended
            return x + self._feedforward(layer, layer.norm2(x))
        x = layer.norm1(inputs.residual + attended)
        return cast(Tensor, layer.norm2(x + self._feedforward(layer, x)))

    def _attended(self, inputs: _Inputs, chosen: range, number: int) -> Tensor:
        if inputs.query is None or inputs.key is None:
            mean = inputs.value.view(-1, number, inputs.value.shape[-1]).mean(0)
            return mean.repeat(len(chosen), 1)
        allowed = None
        if self.causal:
            order = torch.arange(len(inputs.value) // number, device=inputs.value.device)
            allowed = order[chosen.start : chosen.stop, None] >= order
        return mix(
            inputs.query, inputs.key, inputs.value, number=number, heads=self.num_heads, allowed=allowed
        )

    def _feedforward(self, layer: nn.TransformerEncoderLayer, x: Tensor) -> Tensor:
        return cast(Tensor, layer.linear2(self.activation(layer.linear1(x))))


def _rows(x: Tensor, chosen: range, number: int) -> Tensor:
    """The rows of the stream x (l n, d) that belong to the chosen positions."""
    whole = len(chosen) * number == len(x)
    return x if whole else x[chosen.start * number : chosen.stop * number]


def _places(tokens: Tensor, vocabulary: int) -> Tensor:
    """Rows (r n,) where tokens (r, n) lie in a table of r positions times `vocabulary` tokens."""
    if len(tokens) == 1:
        return tokens[0]
    return (tokens + vocabulary * torch.arange(len(tokens), device=tokens.device).unsqueeze(1)).flatten()
