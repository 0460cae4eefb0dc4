import gc
import resource

import pytest
import torch
from grokscope.geometry import operators
from grokscope.geometry.objective import Objective, exact_attention, flatten, from_module
from grokscope.geometry.operators import (
    dense,
    ggn_operator,
    hessian_operator,
    preconditioned,
    restrict,
    scaled,
    shifted,
)
from problems_curvature import CASES, dense_hessian, network_objective, oracle_objective, small_mlp
from torch import nn
from torch.nn import functional


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("mode", ["double_backward", "forward_over_reverse"])
@pytest.mark.parametrize("chunk_size", [1, 3, 100])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_closed_form_spectra(case, chunk_size, mode):
    objective, theta = oracle_objective(case, chunk_size=chunk_size)
    found = dense(hessian_operator(objective, theta, mode=mode, l2=case["l2"]))
    expected = torch.tensor(case["eigenvalues"], dtype=torch.float64)
    # 1e-12 is the precision of the table; sums over up to 10 samples add a few ulp.
    torch.testing.assert_close(torch.linalg.eigvalsh(found), expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found, found.T, rtol=0, atol=1e-13)
    penalty = case["l2"] / 2 * float(theta @ theta)
    assert objective.value(theta) + penalty == pytest.approx(case["loss"], rel=1e-12)
    gradient = objective.gradient(theta) + case["l2"] * theta
    torch.testing.assert_close(gradient.tolist(), case["gradient"], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("mode", ["double_backward", "forward_over_reverse"])
@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_agrees_with_dense_autograd_for_any_partition(kind, mode):
    objective, theta = network_objective(kind)
    expected = dense_hessian(objective, theta)
    for chunk_size in (7, 4096) if mode == "double_backward" else (4096,):
        found = dense(hessian_operator(objective.with_chunk_size(chunk_size), theta, mode=mode))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)  # entries are below 1


def test_agrees_with_finite_differences_of_the_gradient():
    objective, theta = network_objective("transformer")
    v = torch.randn_like(theta)
    step = 1e-5  # error: step² from the third derivative, eps/step from cancellation, both about 1e-10
    slope = (objective.gradient(theta + step * v) - objective.gradient(theta - step * v)) / (2 * step)
    torch.testing.assert_close(hessian_operator(objective, theta) @ v, slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["mlp", "transformer"])
def test_gauss_newton_is_the_definition(kind):
    objective, theta = network_objective(kind, chunk_size=8)
    jacobian = torch.func.jacrev(objective.outputs)
    expected = torch.zeros(len(theta), len(theta), dtype=theta.dtype)
    for i in range(objective.num_samples):
        index = torch.tensor([i])
        with exact_attention():
            j = jacobian(theta, index)[0]
            p = objective.outputs(theta, index)[0].softmax(0)
        expected += j.T @ (torch.diag(p) - torch.outer(p, p)) @ j / objective.num_samples
    found = dense(ggn_operator(objective, theta))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert float(torch.linalg.eigvalsh(found)[0]) > -1e-12


def test_gauss_newton_is_the_hessian_of_a_linear_model():
    model = nn.Linear(3, 4).double()
    inputs, targets = torch.randn(9, 3, dtype=torch.float64), torch.randint(4, (9,))
    objective = from_module(model, inputs, targets, functional.cross_entropy, chunk_size=4)
    theta = flatten(model)
    full, gauss_newton = hessian_operator(objective, theta), ggn_operator(objective, theta)
    torch.testing.assert_close(dense(full), dense(gauss_newton), rtol=0, atol=1e-14)


def test_gauss_newton_agrees_with_curvlinops():
    import curvlinops

    model = small_mlp().double().eval()
    inputs, targets = torch.randn(21, 3, dtype=torch.float64), torch.randint(4, (21,))
    objective, theta = from_module(model, inputs, targets, functional.cross_entropy), flatten(model)
    data = [(inputs[:8], targets[:8]), (inputs[8:], targets[8:])]
    parameters = list(model.parameters())
    arguments = (model, nn.CrossEntropyLoss(), parameters, data)
    eye = torch.eye(len(theta), dtype=torch.float64)
    for ours, theirs in (
        (hessian_operator(objective, theta), curvlinops.HessianLinearOperator),
        (ggn_operator(objective, theta), curvlinops.GGNLinearOperator),
    ):
        torch.testing.assert_close(ours @ eye, theirs(*arguments) @ eye, rtol=0, atol=1e-13)


def test_products_are_linear_and_zero_at_zero():
    objective, theta = network_objective("transformer", dtype=torch.float32)
    for operator in (hessian_operator(objective, theta), ggn_operator(objective, theta)):
        v, w = torch.randn(2, len(theta))
        together = operator @ (2 * v - 3 * w)
        apart = 2 * (operator @ v) - 3 * (operator @ w)
        torch.testing.assert_close(together, apart, rtol=0, atol=1e-5 * float(apart.abs().max()))
        assert not (operator @ torch.zeros_like(v)).any()


def test_many_chunks_are_recomputed_with_the_same_result(monkeypatch):
    objective, theta = network_objective("mlp", chunk_size=2)
    kept = dense(hessian_operator(objective, theta)), dense(ggn_operator(objective, theta))
    monkeypatch.setattr(operators, "KEPT_CHUNKS", 3)
    again = dense(hessian_operator(objective, theta)), dense(ggn_operator(objective, theta))
    # The Gauss-Newton chunks are ragged in another way, so its sums may differ in the last place.
    torch.testing.assert_close(again[0], kept[0], rtol=0, atol=0)
    torch.testing.assert_close(again[1], kept[1], rtol=0, atol=1e-15)


def test_restriction_by_group_and_pattern():
    objective, theta = network_objective("transformer")
    whole = dense(hessian_operator(objective, theta))
    for parameters in ("head", ["embedding", "*linear1.weight"]):
        coords = torch.from_numpy(objective.table.select(parameters))
        expected = whole[coords][:, coords]
        found = dense(hessian_operator(objective, theta, parameters=parameters))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)
        gauss_newton = dense(restrict(ggn_operator(objective, theta), coords))
        torch.testing.assert_close(dense(ggn_operator(objective, theta, parameters=parameters)), gauss_newton)
    with pytest.raises(ValueError, match="matches no group"):
        hessian_operator(objective, theta, parameters="decoder")


def test_scaled_preconditioned_and_shifted():
    objective, theta = network_objective("mlp")
    hessian = hessian_operator(objective, theta)
    whole, diagonal = dense(hessian), torch.rand_like(theta) + 0.1
    scale = torch.diag(diagonal)
    torch.testing.assert_close(dense(scaled(hessian, diagonal)), scale @ whole @ scale)
    expected = torch.linalg.eigvals(torch.diag(1 / diagonal) @ whole).real.sort().values
    found = torch.linalg.eigvalsh(dense(preconditioned(hessian, diagonal)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(dense(shifted(hessian, 2.0, 3.0)), 3 * (whole + 2 * torch.eye(len(theta))))
    with pytest.raises(ValueError, match="positive everywhere"):
        preconditioned(hessian, diagonal - 0.2)
    with pytest.raises(ValueError, match=r"scale has shape \(3,\)"):
        scaled(hessian, torch.ones(3))


def test_scale_aware_sharpness_ignores_the_scale_of_an_invariant_block():
    # W enters as W/‖W‖: its Hessian block grows by 100 when W shrinks by 10; D H D and ‖W‖² H_WW must not.
    inputs, targets = torch.randn(30, 4, dtype=torch.float64), torch.randint(3, (30,))

    def loss(theta, i):
        weight = theta[:12].reshape(3, 4)
        return functional.cross_entropy(theta[12] * inputs[i] @ (weight / weight.norm()).T, targets[i])

    objective = Objective(loss, 30)
    theta = torch.randn(13, dtype=torch.float64)
    small = theta.clone()
    small[:12] /= 10
    block = torch.arange(12)
    own, aware, blocks = [], [], []
    for point in (theta, small):
        hessian = hessian_operator(objective, point)
        aware.append(float(torch.linalg.eigvalsh(dense(scaled(hessian, point.abs())))[-1]))
        own.append(float(torch.linalg.eigvalsh(dense(restrict(hessian, block)))[-1]))
        blocks.append(own[-1] * float(point[:12] @ point[:12]))
    assert own[1] == pytest.approx(100 * own[0], rel=1e-10)
    assert aware[1] == pytest.approx(aware[0], rel=1e-10)
    assert blocks[1] == pytest.approx(blocks[0], rel=1e-10)


def test_losses_without_curvature_and_unused_parameters():
    linear = Objective(lambda theta, i: theta[:2].sum() * len(i) / len(i), 5)
    constant = Objective(lambda theta, i: torch.tensor(1.0, dtype=torch.float64), 5)
    for objective in (linear, constant):
        for mode in ("double_backward", "forward_over_reverse"):
            operator = hessian_operator(objective, torch.ones(4, dtype=torch.float64), mode=mode)
            assert not (operator @ torch.ones(4, dtype=torch.float64)).any()


def test_frozen_and_tied_parameters():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).double()
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    inputs, targets = torch.randn(9, 4, dtype=torch.float64), torch.randint(4, (9,))
    objective, theta = from_module(model, inputs, targets, functional.cross_entropy), flatten(model)
    assert len(theta) == 20
    found = dense(hessian_operator(objective, theta))
    torch.testing.assert_close(found, dense_hessian(objective, theta), rtol=0, atol=1e-14)


def test_random_losses_are_refused():
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5), nn.Linear(5, 2))
    inputs, targets = torch.randn(8, 3), torch.randint(2, (8,))
    objective = from_module(model, inputs, targets, functional.cross_entropy)
    for mode in ("double_backward", "forward_over_reverse"):
        with pytest.raises(ValueError, match="draws random numbers"):
            hessian_operator(objective, flatten(model), mode=mode)
        hessian_operator(
            from_module(model.eval(), inputs, targets, functional.cross_entropy), flatten(model), mode=mode
        )
        model.train()


def test_bad_arguments():
    objective, theta = network_objective("mlp")
    hessian = hessian_operator(objective, theta)
    with pytest.raises(ValueError, match="mode='reverse' must be one of"):
        hessian_operator(objective, theta, mode="reverse")
    with pytest.raises(ValueError, match="operand has shape"):
        hessian @ torch.ones(3, dtype=theta.dtype)
    with pytest.raises(ValueError, match="outputs and criterion"):
        ggn_operator(Objective(objective.sample_loss, objective.num_samples), theta)
    for build in (hessian_operator, ggn_operator):
        with pytest.raises(ValueError, match=r"theta is torch\.float16; curvature needs"):
            build(objective, theta.half())
    with pytest.raises(ValueError, match="parameter table"):
        hessian_operator(Objective(objective.sample_loss, 3), theta, parameters="head")
    with pytest.raises(ValueError, match="dense matrix is for small P"):
        dense(operators.SymmetricOperator(lambda v: v, 20_000, theta.dtype, theta.device))


def test_dtype_follows_theta():
    objective, theta = network_objective("mlp", dtype=torch.float32)
    assert (hessian_operator(objective, theta) @ theta).dtype == torch.float32


@pytest.mark.parametrize("build", [hessian_operator, ggn_operator])
def test_memory_does_not_grow_with_products(build):
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    inputs, targets = torch.randn(512, 64), torch.randint(64, (512,))
    objective, theta = from_module(model, inputs, targets, functional.cross_entropy), flatten(model)
    operator = build(objective, theta)
    v = torch.randn_like(theta)
    for _ in range(5):
        operator @ v
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        operator @ v
    # A leaked graph would add about 1 MB (512 x 256 activations and more) per product; in kB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_operators_release_their_graphs():
    objective, theta = network_objective("mlp")

    def tensors():
        gc.collect()
        return sum(isinstance(o, torch.Tensor) for o in gc.get_objects())

    before = tensors()
    for _ in range(5):
        operator = hessian_operator(objective, theta)
        operator @ theta
    del operator
    assert tensors() <= before + 1
