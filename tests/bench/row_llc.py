"""Local learning coefficients against devinterp 1.3.2, the last release that takes arbitrary losses.

Times are CPU seconds of one thread, which other work on the machine does not stretch.
"""

import statistics
import time
import warnings

import numpy as np
import torch
from grokscope.geometry import finite_beta, llc_chains, sgld
from grokscope.geometry.llc import default_num_beta, estimate_llc
from grokscope.geometry.objective import flatten, from_module
from grokscope.runs.config import RunConfig
from grokscope.runs.models.model import make_model
from grokscope.runs.tasks.task import make_task
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

ROUNDS, SEEDS = 3, 16
_ROUNDS_TEXT = f"one thread, median of {ROUNDS} rounds"


def row_llc_time():
    """Sampling time over that of the bare gradient evaluations: transformer, 4 chains x 100 draws of 512.

    The published architecture in PyTorch's own modules; that on our faster transformer stands beside it.
    """
    config = RunConfig()
    task = make_task(config)
    inputs, targets = task.inputs[task.train], task.targets[task.train]
    options = {"chains": 4, "draws": 100, "batch_size": 512, "step_size": 1e-6, "localization": 1e4}
    ours, theirs = _time_ratios(_Published().eval(), inputs, targets, **options)
    (fast,) = _time_ratios(make_model(config, task).eval(), inputs, targets, peer=False, **options)
    return {
        "row": "llc_time",
        "ratio": ours,
        "goal": 1.08,
        "better": "lower",
        "detail": f"{_ROUNDS_TEXT}; devinterp {theirs:.2f}; ours on our own transformer {fast:.2f}",
    }


def row_llc_time_small():
    """The same for a network of 2,307 parameters, batches of 64 and 32 chains, where one vmap takes all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 3)).eval()
    inputs, targets = torch.randn(1000, 32), torch.randint(3, (1000,))
    options = {"chains": 32, "draws": 100, "batch_size": 64, "step_size": 1e-4, "localization": 100}
    ours, theirs = _time_ratios(model, inputs, targets, **options)
    return {
        "row": "llc_time_small",
        "ratio": ours,
        "goal": 1.0,
        "better": "lower",
        "detail": f"32 chains x 100 draws; {_ROUNDS_TEXT}; devinterp {theirs:.2f}",
    }


class _Published(nn.Module):
    """One post-norm encoder layer, final norm and head at the last of two tokens: 223,713 parameters."""

    def __init__(self, modulus=97, width=128):
        super().__init__()
        self.token, self.position = nn.Embedding(modulus, width), nn.Embedding(2, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 512, 0.0, "gelu", batch_first=True)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, modulus)

    def forward(self, tokens):
        hidden = self.layer(self.token(tokens) + self.position.weight)
        return self.head(self.norm(hidden[:, -1]))


def _time_ratios(model, inputs, targets, *, chains, draws, batch_size, step_size, localization, peer=True):
    """Time of our sampler and, with `peer`, of devinterp's over that of as many gradients on drawn batches.

    Half of the bare gradients come before and half after, so that both see the same machine.
    """
    objective = from_module(model, inputs, targets, cross_entropy)
    nb = default_num_beta(len(inputs))
    settings = llc_chains.Settings(nb, localization, step_size, batch_size)
    center = llc_chains.center(objective, flatten(model))

    def bare(draws):
        for indices in torch.randint(len(inputs), (chains * draws, batch_size)):
            model.zero_grad()
            cross_entropy(model(inputs[indices]), targets[indices]).backward()

    def ours(draws):
        generators = sgld.spawn(torch.Generator().manual_seed(0), chains)
        state = sgld.init(center.theta.expand(1, chains, -1))
        llc_chains.run(objective, state, settings, center=center, generators=generators, num_steps=draws)

    def theirs(draws):
        options = {"num_beta": nb, "localization": localization, "step_size": step_size}
        subject = (model, inputs, targets, cross_entropy)
        _devinterp(
            *subject, batch_size=batch_size, chains=chains, draws=draws, burn_in=0, loss=1.0, **options
        )

    acts = (ours, theirs) if peer else (ours,)
    for act in (bare, *acts):
        act(2)
    return [statistics.median(_ratio(bare, act, draws) for _ in range(ROUNDS)) for act in acts]


def _ratio(bare, act, draws):
    before, middle, after = _seconds(bare, draws // 2), _seconds(act, draws), _seconds(bare, draws // 2)
    return middle / (before + after)


def _seconds(act, *arguments):
    begin = time.process_time()
    act(*arguments)
    return time.process_time() - begin


def row_llc_error():
    """Root-mean-square error to the exact finite-temperature value at equal time, ours over devinterp's.

    Reduced rank (5, 3, 5) at the origin, float32, batches of 32 of 128. devinterp takes 4 chains of 1,300
    steps, at the best of three step sizes; ours 32 chains of as many steps as cost less time, at the largest.
    """
    widths, options = (5, 3, 5), {"num_beta": 556.0, "localization": 10.0}
    exact = finite_beta.reduced_rank(*widths, **options)
    x = torch.linalg.qr(torch.randn(128, 5, generator=torch.Generator().manual_seed(0)))[0] * 128**0.5
    model = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(3, 5, bias=False))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    subject = (model, x, torch.zeros(128, 5), _half_square)
    objective = from_module(*subject)
    _ours(objective, seed=0, step_size=1e-3, draws=20, **options)  # what is imported on first use
    ours = _errors(lambda seed: _ours(objective, seed=seed, step_size=1e-3, **options) - exact)
    theirs = {
        step: _errors(
            lambda seed, step=step: (
                _devinterp(
                    *subject,
                    seed=seed,
                    step_size=step,
                    batch_size=32,
                    chains=4,
                    draws=1000,
                    burn_in=300,
                    **options,
                )
                - exact
            )
        )
        for step in (1e-3, 5e-4, 2.5e-4)
    }
    best = min(theirs.values())[0]
    listed = ", ".join(
        f"{step:g}: {error:.3f} in {seconds:.1f} s" for step, (error, seconds) in theirs.items()
    )
    return {
        "row": "llc_error",
        "ratio": ours[0] / best,
        "goal": 0.5,
        "better": "lower",
        "detail": f"{SEEDS} seeds; ours {ours[0]:.3f} in {ours[1]:.1f} s; devinterp at step {listed}",
    }


def _errors(error_of):
    """Root mean square over seeds, and seconds of one estimate."""
    begin = time.process_time()
    errors = np.array([error_of(seed) for seed in range(SEEDS)])
    return float(np.sqrt(np.mean(errors**2))), (time.process_time() - begin) / SEEDS


def _half_square(outputs, targets):
    return (outputs - targets).square().sum(-1).mean() / 2


def _ours(objective, *, seed, draws=800, **options):
    generator = torch.Generator().manual_seed(seed)
    chains = {"num_chains": 32, "num_draws": draws, "burn_in": 300, "batch_size": 32}
    return estimate_llc(objective, torch.zeros(30), generator=generator, **chains, **options).llc


def _devinterp(
    model,
    inputs,
    targets,
    criterion,
    *,
    num_beta,
    localization,
    step_size,
    batch_size,
    chains,
    draws,
    burn_in,
    seed=0,
    loss=None,
):
    from devinterp.optim.sgld import SGLD
    from devinterp.slt.sampler import estimate_learning_coeff_with_summary

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = estimate_learning_coeff_with_summary(
            model,
            DataLoader(TensorDataset(inputs, targets), batch_size=batch_size, shuffle=True),
            evaluate=lambda model, data: criterion(model(data[0]), data[1]),
            sampling_method=SGLD,
            optimizer_kwargs={"lr": step_size, "localization": localization, "nbeta": num_beta},
            num_chains=chains,
            num_draws=draws,
            num_burnin_steps=burn_in,
            init_loss=loss,
            seed=seed,
            verbose=False,
        )
    return float(found["llc/mean"])
