"""An image classifier on scikit-learn's digits: a loop of your own, recorded, and the loss to analyze.

python digits.py out/digits
grokscope analyze spectrum out/digits --objective digits:objective
"""

import sys

import torch
from grokscope import Recorder
from grokscope.geometry.objective import from_module
from sklearn.datasets import load_digits
from torch import nn

cross_entropy = nn.functional.cross_entropy


def samples():
    """1,000 images for training and the rest for testing, as (inputs, targets) each."""
    digits = load_digits()
    images = torch.tensor(digits.data / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    return (images[:1000], labels[:1000]), (images[1000:], labels[1000:])


def make_model(width=32):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def objective():
    """What analyses ask about: the mean training loss."""
    inputs, targets = samples()[0]
    return from_module(make_model(), inputs, targets, cross_entropy)


def train(path, steps=300):
    torch.manual_seed(0)
    splits = dict(zip(("train", "test"), samples(), strict=True))
    inputs, targets = splits["train"]
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    totals = {f"{split}_total": len(labels) for split, (_, labels) in splits.items()}
    with Recorder(path, model, optimizer, snapshot_every=10, provenance=totals) as recorder:
        recorder.step(0, evaluated(model, splits))
        for step in range(1, steps + 1):
            batch = torch.randint(len(inputs), (64,))
            optimizer.zero_grad()
            cross_entropy(model(inputs[batch]), targets[batch]).backward()
            optimizer.step()
            recorder.step(step, evaluated(model, splits) if step % 10 == 0 else None)


def evaluated(model, splits):
    found = {}
    with torch.no_grad():
        for split, (inputs, targets) in splits.items():
            logits = model(inputs)
            found[f"{split}_loss"] = cross_entropy(logits, targets)
            found[f"{split}_correct"] = (logits.argmax(-1) == targets).sum()
    return found


if __name__ == "__main__":
    train(sys.argv[1])
