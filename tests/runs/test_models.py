from __future__ import annotations

import sys
from dataclasses import replace
from math import sqrt

import pytest
import torch
from grokscope.geometry.objective import flatten, from_module, gradient, load_flat, parameter_table
from grokscope.geometry.parameters import group_of
from grokscope.runs.config import RunConfig
from grokscope.runs.losses import make_criterion
from grokscope.runs.models.attention import mix
from grokscope.runs.models.model import make_model
from grokscope.runs.models.transformer import Transformer
from grokscope.runs.optimizers import make_optimizer
from grokscope.runs.tasks.task import make_task
from torch import Tensor, nn
from torch.func import grad, jvp, vmap

# Sums of a few hundred float64 products in another order: a few hundred ulps.
CLOSE = {"rtol": 1e-10, "atol": 1e-12}

P1 = {"norm_first": True, "readout": "first", "position_std": 1 / sqrt(128)}
SMALL = RunConfig(modulus=7, width=16, heads=2, feedforward=24, dtype="float64", batch_size=20)

ENCODERS = {
    "default": {},
    "pre-norm, first": P1,
    "relu, no final norm": {"activation": "relu", "final_norm": False},
    "mean": {"readout": "mean"},
    "causal": {"causal": True},
    "causal pre-norm, first": {"causal": True, "norm_first": True, "readout": "first"},
    "no attention bias": {"attention_bias": False, "head_bias": False},
    "embedding norm": {"embedding_norm": True},
    "rms": {"norm": "rms"},
    "sphere": {"norm": "sphere", "embedding_norm": True, "logit_scale": 10.0},
    "no norm": {"norm": "none", "activation": "relu"},
}


class Plain(nn.Module):
    """The papers' model: PyTorch's own encoder on every position, with the parameters of ours."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model.train()

    def forward(self, tokens: Tensor) -> Tensor:
        model = self.model
        x = model.embedding_norm(model.token(tokens) + model.position.weight)
        mask = (
            nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype)
            if model.causal
            else None
        )
        x = model.norm(model.encoder(x, mask=mask))
        return model.head({"first": x[:, 0], "last": x[:, -1], "mean": x.mean(1)}[model.readout])


def gradients(model: nn.Module, outputs: Tensor, targets: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(outputs, targets)
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([g.flatten() for g in found])


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        (223_713, {}),
        (290_401, {"layers": 2, "feedforward": 256, "model_options": P1}),
        (302_914, {"layers": 2, "feedforward": 256, "model_options": P1, "task": "multiple"}),
        (
            315_427,
            {
                "layers": 2,
                "feedforward": 256,
                "model_options": P1,
                "task": "multiple",
                "task_options": {"ops": "add,mul,x2_y2"},
            },
        ),
    ],
)
def test_parameter_counts_are_those_of_the_papers(expected: int, changes: dict) -> None:
    config = RunConfig(**changes)
    assert parameter_table(make_model(config, make_task(config))).size == expected


def test_default_model_is_the_papers_module_for_module() -> None:
    """Names, order and initial values are those of the plain construction under the same seed."""

    class Paper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Embedding(97, 128)
            self.position = nn.Embedding(2, 128)
            layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, "gelu", batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)
            self.norm = nn.LayerNorm(128)
            self.head = nn.Linear(128, 97)

    from grokscope.runs.streams import stream_seed

    config = RunConfig(layers=2, seed=5)
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(5, "init"))
        paper = Paper()
    ours = make_model(config, make_task(config))
    assert list(ours.state_dict()) == list(paper.state_dict())
    for name, tensor in paper.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("layout", ["ab", "aob="])
@pytest.mark.parametrize("options", ENCODERS.values(), ids=ENCODERS)
def test_logits_and_gradients_equal_the_plain_encoder(options: dict, layout: str, layers: int) -> None:
    """With and without the lookup (many samples, few samples), elementwise (2 tokens) and by products (4)."""
    config = replace(SMALL, layers=layers, model_options=options, task_options={"layout": layout})
    task = make_task(config)
    model = make_model(config, task)
    for count in (40, 3):
        inputs, targets = task.inputs[:count], task.targets[:count]
        ours, plain = model(inputs), Plain(model)(inputs)
        torch.testing.assert_close(ours, plain, **CLOSE)
        torch.testing.assert_close(gradients(model, ours, targets), gradients(model, plain, targets), **CLOSE)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "positions"), [(1, 1), (1, 2), (3, 3), (1, 20), (6, 6)])
def test_attention_equals_pytorchs(rows: int, positions: int, causal: bool) -> None:
    stream = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(size, 5, 8, generator=stream).double() for size in (rows, positions, positions)
    )
    allowed = torch.ones(positions, positions).tril().bool()[-rows:] if causal else None
    by_head = [x.view(len(x), 5, 2, 4).permute(1, 2, 0, 3) for x in (query, key, value)]
    expected = nn.functional.scaled_dot_product_attention(*by_head, attn_mask=allowed)
    rows_first = [x.flatten(0, 1) for x in (query, key, value)]
    found = mix(*rows_first, number=5, heads=2, allowed=allowed)
    torch.testing.assert_close(found, expected.permute(2, 0, 1, 3).reshape(5 * rows, 8), **CLOSE)


def test_uniform_attention_equals_zero_query_weights() -> None:
    config = replace(SMALL, layers=2, model_options={"attention": "uniform"}, task_options={"layout": "ab="})
    task = make_task(config)
    model, other = make_model(config, task), make_model(config, task)
    with torch.no_grad():
        for layer in other.encoder.layers:
            layer.self_attn.in_proj_weight[:16] = 0
            layer.self_attn.in_proj_bias[:16] = 0
    torch.testing.assert_close(model(task.inputs), Plain(other)(task.inputs), **CLOSE)


def test_trajectories_agree_with_the_plain_encoder() -> None:
    """50 steps of AdamW from the same start on the same batches."""
    config = replace(SMALL, layers=2, model_options=P1)
    task = make_task(config)
    models = [make_model(config, task) for _ in range(2)]
    forwards = [models[0], Plain(models[1])]
    for model, forward in zip(models, forwards, strict=True):
        optimizer, stream = make_optimizer(config, model), torch.Generator().manual_seed(0)
        for _ in range(50):
            batch = task.train[torch.randint(len(task.train), (20,), generator=stream)]
            optimizer.zero_grad()
            nn.functional.cross_entropy(forward(task.inputs[batch]), task.targets[batch]).backward()
            optimizer.step()
    # Adam divides by root second moments, so rounding differences grow; 50 steps move theta by about 1.
    torch.testing.assert_close(flatten(models[0]), flatten(models[1]), rtol=0, atol=1e-7)


MODELS = {
    "transformer": ("transformer", {}),
    "pre-norm": ("transformer", P1),
    "sphere": ("transformer", {"norm": "sphere", "logit_scale": 10.0}),
    "rms": ("transformer", {"norm": "rms"}),
    "uniform": ("transformer", {"attention": "uniform"}),
    "embedding_mlp": ("embedding_mlp", {}),
    "embedding_mlp sum": ("embedding_mlp", {"combine": "sum", "activation": "gelu"}),
    "onehot_mlp": ("onehot_mlp", {"activation": "gelu"}),
    "two_layer": ("two_layer", {}),
    "two_layer shared": ("two_layer", {"shared": True}),
}


@pytest.mark.parametrize(("name", "options"), MODELS.values(), ids=MODELS)
def test_every_model_works_under_torch_func(name: str, options: dict) -> None:
    """vmap over parameters, per-sample gradients, jvp and double backward agree with plain autograd."""
    config = RunConfig(
        model=name,
        model_options=options,
        modulus=3,
        width=4,
        heads=2,
        feedforward=5,
        layers=2,
        dtype="float64",
    )
    task = make_task(config)
    model, criterion = make_model(config, task), make_criterion(config, task)
    objective = from_module(model, task.inputs, task.targets, criterion)
    theta = flatten(model)
    loss, everything = objective.full, torch.arange(9)

    g = gradient(loss, theta)
    torch.testing.assert_close(grad(objective.on(everything))(theta), g, **CLOSE)
    stacked = torch.stack([theta, theta + 0.1])
    both = vmap(objective.on(everything))(stacked)
    torch.testing.assert_close(both, torch.stack([loss(theta), loss(theta + 0.1)]), **CLOSE)
    per_sample = vmap(grad(lambda t, i: objective.at(t, i)), in_dims=(None, 0))(
        theta, everything.unsqueeze(1)
    )
    torch.testing.assert_close(per_sample.mean(0), g, **CLOSE)
    v = torch.linspace(-1, 1, len(theta), dtype=torch.float64)
    _, forward_over_reverse = jvp(grad(objective.on(everything)), (theta,), (v,))
    point = theta.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(point), point, create_graph=True)
    (double_backward,) = torch.autograd.grad(first @ v, point)
    torch.testing.assert_close(forward_over_reverse, double_backward, **CLOSE)


def test_hessian_agrees_with_finite_differences() -> None:
    config = replace(SMALL, modulus=3, width=4, feedforward=3, heads=1)
    task = make_task(config)
    model = make_model(config, task)
    objective = from_module(model, task.inputs, task.targets, make_criterion(config, task))
    theta = flatten(model)
    v = torch.sin(torch.arange(len(theta), dtype=torch.float64))
    step = 1e-5  # central differences: error step^2 ~ 1e-10 times third derivatives, rounding 1e-16 / step
    finite = (gradient(objective.full, theta + step * v) - gradient(objective.full, theta - step * v)) / (
        2 * step
    )
    # Not torch.func.hessian: differentiating a vmapped gradient drops the dependence of LayerNorm's mean and
    # deviation on its input (torch 2.13). A vmap outside of both derivatives, as in geometry, is right.
    _, exact = vmap(lambda w: jvp(grad(objective.on(torch.arange(9))), (theta,), (w,)))(v[None])
    torch.testing.assert_close(exact[0], finite, rtol=1e-6, atol=1e-7)


def plain_mlp(model: nn.Module, x: Tensor, activation) -> Tensor:
    for layer in model.feedforward:
        x = activation(layer(x))
    return model.head(x)


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("combine", ["concat", "sum"])
def test_embedding_mlp_equals_the_plain_network(combine: str, count: int) -> None:
    config = replace(SMALL, model="embedding_mlp", model_options={"combine": combine}, layers=2)
    config = replace(config, task_options={"layout": "aob="})
    task = make_task(config)
    model, inputs, targets = make_model(config, task), task.inputs[:count], task.targets[:count]
    embedded = model.token(inputs)
    plain = plain_mlp(model, embedded.flatten(1) if combine == "concat" else embedded.sum(1), torch.relu)
    torch.testing.assert_close(model(inputs), plain, **CLOSE)
    g = gradients(model, model(inputs), targets)
    torch.testing.assert_close(g, gradients(model, plain, targets), **CLOSE)


def test_one_hot_networks_equal_dense_products() -> None:
    task = make_task(SMALL)
    one_hot = nn.functional.one_hot(task.inputs, 7).double()
    mlp = make_model(replace(SMALL, model="onehot_mlp"), task)
    torch.testing.assert_close(mlp(task.inputs), plain_mlp(mlp, one_hot.flatten(1), torch.relu), **CLOSE)
    for shared in (False, True):
        model = make_model(replace(SMALL, model="two_layer", model_options={"shared": shared}), task)
        x = one_hot.sum(1) if shared else one_hot.flatten(1)
        torch.testing.assert_close(model(task.inputs), model.head(model.feedforward(x).square()), **CLOSE)


def test_two_layer_begins_as_in_the_paper() -> None:
    """N(0, 0.01/p) for both layers of p = 31, M = 931 with init_scale 0.1."""
    config = RunConfig(
        model="two_layer", model_options={"shared": True}, modulus=31, feedforward=931, init_scale=0.1
    )
    model = make_model(config, make_task(config))
    assert sorted(tuple(p.shape) for p in model.parameters()) == [(31, 931), (931, 31)]
    for parameter in model.parameters():
        # 28,861 normal draws: the standard deviation is off by 0.4 % (one sigma); 2 % is 5 sigma.
        assert parameter.std().item() == pytest.approx(0.1 / sqrt(31), rel=0.02)


def test_multiple_heads_read_one_trunk() -> None:
    config = replace(SMALL, task="multiple", task_options={"ops": "add,mul,x2_y2"})
    task = make_task(config)
    model = make_model(config, task)
    outputs = model(task.inputs)
    assert outputs.shape == (36, 3, 7)
    alone = model.head["mul"]
    model.head = alone
    torch.testing.assert_close(model(task.inputs), outputs[:, 1], **CLOSE)


def test_initialization_leaves_the_global_stream_alone_and_scales_by_group() -> None:
    config = replace(SMALL, dtype="float32")
    task = make_task(config)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    model = make_model(config, task)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(4)
    assert torch.equal(flatten(make_model(config, task)), flatten(model))
    assert not torch.equal(flatten(make_model(replace(config, init_seed=1), task)), flatten(model))
    double = make_model(replace(config, dtype="float64"), task)
    assert torch.equal(flatten(double).float(), flatten(model))

    scaled = make_model(replace(config, init_scale=2.0, embedding_init_scale=4.0), task).state_dict()
    factors = {"embedding": 4, "norm": 1}
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(scaled[name], factors.get(group_of(name), 2) * tensor, rtol=0, atol=0)


def test_features_go_into_one_hot_models_only() -> None:
    task = replace(make_task(SMALL), inputs=torch.randn(49, 3, dtype=torch.float64), num_tokens=0)
    for name in ("onehot_mlp", "two_layer"):
        assert make_model(replace(SMALL, model=name), task)(task.inputs).shape == (49, 7)
    for name in ("transformer", "embedding_mlp"):
        with pytest.raises(ValueError, match="needs token inputs"):
            make_model(replace(SMALL, model=name), task)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activations": "relu"}, "unknown option 'activations'; there are: activation"),
        ({"activation": "tanh"}, "activation='tanh' must be one of gelu, relu"),
        ({"norm_first": 1}, "norm_first=1 has the wrong type; it must be bool"),
        ({"readout": "second"}, "must be one of first, last, mean"),
        ({"attention": "uniform", "causal": True}, "choose one"),
    ],
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_model(replace(SMALL, model_options=options), make_task(SMALL))


USER = """
import torch
from torch import nn

def good(config, task, *, width=3):
    head = nn.Linear(2 * width, task.num_classes)
    return nn.Sequential(nn.Embedding(task.num_tokens, width), nn.Flatten(), head)

def wrong_shape(config, task):
    return nn.Embedding(task.num_tokens, task.num_classes)

def not_a_module(config, task):
    return 3

def nan(config, task):
    model = good(config, task)
    model[2].bias.data[0] = float("nan")
    return model

constant = 1
"""


def test_model_of_the_user(tmp_path, monkeypatch) -> None:
    (tmp_path / "user_models.py").write_text(USER)
    monkeypatch.chdir(tmp_path)
    task = make_task(SMALL)
    config = replace(SMALL, model="user_models:good", model_options={"width": 5})
    with pytest.raises(ValueError, match="names code"):
        make_model(config, task)
    assert "user_models" not in sys.modules
    model = make_model(config, task, trust=True)
    assert model(task.inputs).shape == (49, 7)
    assert torch.equal(flatten(model), flatten(make_model(config, task, trust=True)))
    for function, message in {
        "wrong_shape": r"maps 2 samples to \(2, 2, 7\); this task needs logits \(2, 7\)",
        "not_a_module": "returned int; return an nn.Module",
        "nan": "NaN or infinite",
        "constant": "no function 'constant'",
        "missing": "no function 'missing'",
    }.items():
        with pytest.raises(ValueError, match=message):
            make_model(replace(SMALL, model=f"user_models:{function}"), task, trust=True)
    with pytest.raises(ValueError, match="can't be imported"):
        make_model(replace(SMALL, model="no_such_module:f"), task, trust=True)


def test_flat_vector_round_trip() -> None:
    task = make_task(SMALL)
    model = make_model(SMALL, task)
    theta = torch.randn(
        parameter_table(model).size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    load_flat(model, theta)
    assert torch.equal(flatten(model), theta)
    groups = parameter_table(model).groups()
    assert set(groups) == {"embedding", "attention", "feedforward", "norm", "head"}
