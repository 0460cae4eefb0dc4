"""A small language model on text that ships with Python: recorded, and the loss to analyze.

python python_text.py out/text
grokscope analyze spectrum out/text --objective python_text:objective
"""

import sys
from pydoc_data.topics import topics

import torch
from grokscope import Recorder
from grokscope.geometry.objective import from_module
from torch import nn

CONTEXT, WIDTH, HEADS = 32, 32, 4
TEXT = "".join(topics[name] for name in sorted(topics))[:200_000]
LETTERS = sorted(set(TEXT))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.mlp_norm(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.block, self.norm = Block(), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(LETTERS), bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[-1]))
        return self.head(self.norm(self.block(x)))


def cross_entropy(logits, targets):
    """Mean over all tokens; every sample has equally many, so it is the mean over samples too."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def samples(count=256):
    """`count` stretches of text as tokens (count, CONTEXT), and the next letter of each (count, CONTEXT)."""
    index = {letter: number for number, letter in enumerate(LETTERS)}
    tokens = torch.tensor([index[letter] for letter in TEXT])
    pieces = tokens[: len(tokens) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1)
    return pieces[:count, :-1], pieces[:count, 1:]


def objective():
    """What analyses ask about: the mean loss per letter."""
    return from_module(Model(), *samples(), cross_entropy)


def train(path, steps=300):
    torch.manual_seed(0)
    inputs, targets = samples()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with Recorder(path, model, optimizer, snapshot_every=10) as recorder:
        recorder.step(0)
        for step in range(1, steps + 1):
            batch = torch.randint(len(inputs), (32,))
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs[batch]), targets[batch])
            loss.backward()
            optimizer.step()
            recorder.step(step, batch_loss=loss)  # before the step, on its batch


if __name__ == "__main__":
    train(sys.argv[1])
