from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from grokscope.runs.config import RunConfig
from grokscope.runs.tasks.samples import distinct
from grokscope.runs.tasks.task import Task, make_task

FORMULAS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "x2_y2": lambda a, b: a**2 + b**2,
    "x2_xy_y2": lambda a, b: a**2 + a * b + b**2,
    "x3_xy": lambda a, b: a**3 + a * b,
}
SIZES = {"mul": 96 * 96, "div": 97 * 96}


def split(task: Task) -> tuple[set[int], set[int]]:
    return set(task.train.tolist()), set(task.test.tolist())


@pytest.mark.parametrize("name", [*FORMULAS, "div"])
def test_operation_against_its_formula(name: str) -> None:
    task = make_task(RunConfig(task=name))
    assert len(task.inputs) == SIZES.get(name, 97 * 97)
    assert (task.num_classes, task.num_tokens) == (97, 97)
    for (a, b), c in zip(task.inputs.tolist(), task.targets.tolist(), strict=True):
        assert (c * b - a) % 97 == 0 if name == "div" else c == FORMULAS[name](a, b) % 97


def test_large_moduli_do_not_overflow() -> None:
    config = RunConfig(
        task="sampled_pairs", modulus=2**20 - 3, task_options={"op": "x3_xy", "train_pairs": 50}
    )
    config = replace(config, task_options=config.task_options | {"test_pairs": 50})
    task = make_task(config)
    for (a, b), c in zip(task.inputs.tolist(), task.targets.tolist(), strict=True):
        assert c == (a**3 + a * b) % (2**20 - 3)


def test_split_follows_its_seed_and_covers_everything() -> None:
    config = RunConfig(train_fraction=0.3)
    task, again = make_task(config), make_task(replace(config, init_seed=5, batch_seed=6))
    assert torch.equal(task.train, again.train)
    train, test = split(task)
    assert len(train) == int(0.3 * 9409)
    assert not train & test
    assert train | test == set(range(9409))
    assert split(make_task(replace(config, split_seed=1)))[0] != train


def test_published_sizes() -> None:
    """4,704 of 9,409 pairs, and 4,608 of 9,216 for multiplication (arXiv 2602.16746)."""
    assert len(make_task(RunConfig()).train) == 4704
    assert len(make_task(RunConfig(task="mul")).train) == 4608
    assert len(make_task(RunConfig(task="mul", task_options={"zero": True})).inputs) == 9409


def test_shared_split_options() -> None:
    options = {"test_fraction": 0.2, "stratify": True}
    task = make_task(RunConfig(train_fraction=0.3, task_options=options))
    counts = torch.bincount(task.targets[task.train], minlength=97)
    assert counts.eq(29).all()  # floor(.3 * 97) of each class
    assert len(task.test) == int(0.2 * 9409)
    assert not set.intersection(*split(task))


@pytest.mark.parametrize(
    ("layout", "first", "tokens"), [("ab", [2, 3], 5), ("ab=", [2, 3, 5], 6), ("aob=", [2, 5, 3, 6], 7)]
)
def test_layouts(layout: str, first: list[int], tokens: int) -> None:
    task = make_task(RunConfig(modulus=5, task_options={"layout": layout}))
    assert task.num_tokens == tokens
    assert task.inputs.tolist()[2 * 5 + 3] == first


def test_label_noise_is_exact_uniform_and_spares_the_test() -> None:
    clean = make_task(RunConfig(modulus=31))
    noisy = make_task(RunConfig(modulus=31, label_noise=0.25))
    changed = clean.targets != noisy.targets
    assert not changed[clean.test].any()
    assert int(changed.sum()) == round(0.25 * len(clean.train))
    shift = (noisy.targets - clean.targets)[changed] % 31
    # 120 draws from 30 classes: chi-square with 29 degrees exceeds 58.3 with probability .001.
    counts = torch.bincount(shift, minlength=31)[1:].double()
    expected = float(changed.sum()) / 30
    assert float(((counts - expected) ** 2 / expected).sum()) < 58.3


def test_multiple_operations() -> None:
    task = make_task(RunConfig(task="multiple", task_options={"ops": "add, mul, x2_y2"}))
    assert task.heads == ("add", "mul", "x2_y2")
    assert task.inputs.shape == (9216, 2)
    a, b = task.inputs.unbind(1)
    expected = torch.stack([(a + b) % 97, a * b % 97, (a * a + b * b) % 97], dim=1)
    assert torch.equal(task.targets, expected)
    noisy = make_task(RunConfig(task="multiple", label_noise=0.1))
    assert noisy.targets.shape == (9216, 2)


def test_sampled_pairs_are_distinct() -> None:
    options = {"train_pairs": 3000, "test_pairs": 5000}
    task = make_task(RunConfig(task="sampled_pairs", modulus=997, task_options=options))
    assert (len(task.train), len(task.test)) == (3000, 5000)
    assert len(torch.unique(task.inputs, dim=0)) == 8000
    assert torch.equal(task.targets, task.inputs.sum(1) % 997)
    # The mean of 16,000 residues below 997 deviates by 288/sqrt(16000) = 2.3; 5 sigma.
    assert task.inputs.double().mean().item() == pytest.approx(498, abs=11.4)


@pytest.mark.parametrize(("population", "count"), [(10, 10), (10, 3), (1000, 10), (2**40, 1000)])
def test_distinct(population: int, count: int) -> None:
    found = distinct(population, count, torch.Generator().manual_seed(0))
    assert len(found) == len(set(found.tolist())) == count
    assert 0 <= int(found.min()) <= int(found.max()) < population


def test_distinct_is_uniform_over_ordered_pairs() -> None:
    stream = torch.Generator().manual_seed(0)
    draws = [tuple(distinct(5, 2, stream).tolist()) for _ in range(2000)]
    counts = [draws.count(pair) for pair in permutations(range(5), 2)]
    # chi-square with 19 degrees exceeds 43.8 with probability .001.
    assert sum((count - 100) ** 2 / 100 for count in counts) < 43.8


def test_parity() -> None:
    task = make_task(RunConfig(task="parity", task_options={"bits": 12, "k": 3, "samples": 500}))
    assert task.inputs.shape == (500, 12)
    assert len(torch.unique(task.inputs, dim=0)) == 500
    # The one set of three positions whose parity is the label on all samples.
    fits = [
        subset
        for subset in permutations(range(12), 3)
        if list(subset) == sorted(subset) and torch.equal(task.inputs[:, subset].sum(1) % 2, task.targets)
    ]
    assert len(fits) == 1


def test_composition_of_permutations() -> None:
    task = make_task(RunConfig(task="s5"))
    table = list(permutations(range(5)))
    assert len(task.inputs) == 120 * 120
    for index in range(0, 14_400, 97):
        a, b = (table[i] for i in task.inputs[index].tolist())
        assert table[int(task.targets[index])] == tuple(a[b[i]] for i in range(5))
    square = task.targets.view(120, 120)
    assert torch.equal(square[0], torch.arange(120))  # the identity
    assert not torch.equal(square, square.T)
    assert math.prod(len(set(row)) == 120 for row in square.tolist()) == 1  # a group: rows are permutations


def test_random_labels_depend_on_nothing() -> None:
    task = make_task(RunConfig(task="random_labels"))
    assert task.inputs.shape == (9409, 2)
    by_sum = torch.bincount(task.inputs.sum(1) % 97 * 97 + task.targets, minlength=97**2)
    # 9,409 cells of expectation 1: chi-square has mean 9,312 and deviation 136; 4 sigma.
    assert abs(float((by_sum - 1.0).square().sum()) - 9312) < 4 * 136


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "div", "modulus": 91}, "modulus=91 is not prime"),
        ({"task_options": {"noise": 1}}, "unknown option 'noise'; there are: layout, zero"),
        ({"task_options": {"layout": "a="}}, "layout='a=' must hold a and b"),
        ({"task_options": {"layout": 3}}, "layout=3 has the wrong type; it must be str"),
        ({"task_options": {"test_fraction": 0.0}}, "test_fraction=0.0 must be in"),
        (
            {"task": "multiple", "task_options": {"ops": "add,pow"}},
            "ops='add,pow' must list different operations",
        ),
        ({"task": "multiple", "task_options": {"ops": "add,add"}}, "must list different operations"),
        ({"task": "sampled_pairs", "modulus": 11}, "only 121"),
        ({"task": "sampled_pairs", "task_options": {"op": "pow"}}, "op='pow' must be one of"),
        ({"task": "parity", "task_options": {"bits": 70}}, r"bits=70 must be in \[1, 62\]"),
        ({"task": "parity", "task_options": {"bits": 5, "k": 6}}, "k=6 must be in"),
        (
            {"task": "parity", "task_options": {"bits": 5}},
            "2000 different samples are wanted but there are only 32",
        ),
        ({"modulus": 2, "train_fraction": 0.1}, "train has no sample out of 4"),
    ],
)
def test_bad_tasks_are_named(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(RunConfig(**changes))


USER = """
import torch
from grokscope.runs.tasks.samples import Samples

x, y = torch.arange(20).view(10, 2) % 7, torch.arange(10) % 3

def tokens(config, *, shift=0):
    return x, (y + shift) % 3

def features(config):
    return torch.rand(10, 4), y

def own_split(config):
    return x, y, torch.arange(6), torch.arange(6, 10)

def declared(config):
    return Samples(x, torch.stack([y, y], dim=1), num_classes=5, num_tokens=9, heads=("one", "two"))

def not_tensors(config):
    return [1, 2], [0, 1]

def one_thing(config):
    return x

def flat_inputs(config):
    return x[:, 0], y

def int32_inputs(config):
    return x.int(), y

def negative_token(config):
    return x - 1, y

def nan(config):
    return torch.full((10, 4), float("nan")), y

def float_labels(config):
    return x, y.float()

def negative_label(config):
    return x, y - 1

def short(config):
    return x, y[:9]

def label_out_of_range(config):
    return Samples(x, y, num_classes=2, num_tokens=7)

def token_out_of_range(config):
    return Samples(x, y, num_classes=3, num_tokens=6)

def wrong_heads(config):
    return Samples(x, y, num_classes=3, num_tokens=7, heads=("one",))

def overlap(config):
    return x, y, torch.arange(6), torch.arange(5, 10)

def outside(config):
    return x, y, torch.arange(6), torch.arange(6, 11)

def empty_test(config):
    return x, y, torch.arange(6), torch.arange(0)

def mask(config):
    return x, y, torch.ones(10, dtype=torch.bool), torch.arange(1)
"""


@pytest.fixture
def user_tasks(tmp_path, monkeypatch) -> str:
    (tmp_path / "user_tasks.py").write_text(USER)
    monkeypatch.chdir(tmp_path)
    return "user_tasks"


def test_task_of_the_user(user_tasks: str) -> None:
    config = RunConfig(task=f"{user_tasks}:tokens", task_options={"shift": 1})
    with pytest.raises(ValueError, match=r"names code, and a stored run must not run code"):
        make_task(config)
    assert user_tasks not in sys.modules
    task = make_task(config, trust=True)
    assert (task.num_classes, task.num_tokens, len(task.train), len(task.test)) == (3, 7, 5, 5)

    features = make_task(RunConfig(task=f"{user_tasks}:features", dtype="float64"), trust=True)
    assert features.inputs.dtype == torch.float64
    assert features.num_tokens == 0
    torch.manual_seed(9)
    again = make_task(RunConfig(task=f"{user_tasks}:features", dtype="float64"), trust=True)
    assert torch.equal(features.inputs, again.inputs)  # torch.rand is on the task's stream

    own = make_task(RunConfig(task=f"{user_tasks}:own_split"), trust=True)
    assert own.train.tolist() == list(range(6))
    declared = make_task(RunConfig(task=f"{user_tasks}:declared"), trust=True)
    assert (declared.num_classes, declared.num_tokens, declared.heads) == (5, 9, ("one", "two"))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("not_tensors", r"returned a tuple of 2; return tensors \(inputs, targets\)"),
        ("one_thing", r"returned int64 \(10, 2\); return tensors"),
        ("flat_inputs", r"inputs is int64 \(10,\); it must be \(samples, positions\)"),
        ("int32_inputs", "inputs is int32"),
        ("negative_token", "holds token -1; tokens start at 0"),
        ("nan", "holds NaN"),
        ("float_labels", r"targets is float32 \(10,\); it must be int64"),
        ("negative_label", "holds label -1; labels start at 0"),
        ("short", "10 inputs but 9 targets"),
        ("label_out_of_range", r"label 2 is outside \[0, num_classes=2\)"),
        ("token_out_of_range", r"token 6 is outside \[0, num_tokens=6\)"),
        ("wrong_heads", "1 heads are named for 0 columns"),
        ("overlap", "overlap"),
        ("outside", r"test names a sample outside \[0, 10\)"),
        ("empty_test", "test has no sample"),
        ("mask", r"train is bool \(10,\)"),
        ("missing", "has no function 'missing'"),
    ],
)
def test_contract_of_user_tasks(user_tasks: str, function: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_task(RunConfig(task=f"{user_tasks}:{function}"), trust=True)
