"""Certified Lanczos against PyHessian 0.1 and SciPy's eigsh on snapshots of a real run, and the memory slope.

CPU seconds on one thread, so that a busy machine weighs on all contenders alike, until all k largest values
are within 1e-3 of a converged solve in double precision. PyHessian runs in its best mode (one batch, graph
kept), its tolerance lowered from the default, snapshot by snapshot, until its values are right; finding that
out is not counted. Ours runs once, at one tolerance for all snapshots, and includes the proof that no
eigenvalue lies further out and, for k = 5, the search for further copies.
"""

import ctypes
import gc
import time
import warnings
from functools import cache
from importlib import import_module

import numpy as np
import torch
from grokscope.geometry.krylov import random_unit
from grokscope.geometry.lanczos import lanczos
from grokscope.geometry.operators import hessian_operator
from spectrum_problem import APART, SAMPLES, places, problem, set_parameters, the_run

ACCURACY = 1e-3
OURS = 1e-2  # residual and end, relative: errors of values are quadratic in it
THEIRS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 3e-7, 1e-7)
MOST_ITERATIONS = 2000


def row_spectrum_k1_cold():
    return _row(1, "cold", 4)


def row_spectrum_k1_warm():
    return _row(1, "warm", 6)


def row_spectrum_k5_cold():
    return _row(5, "cold", 8)


def row_spectrum_k5_warm():
    return _row(5, "warm", 12)


def row_spectrum_scipy_products():
    """Products of ours over eigsh's along the run, at equal residuals and from the same start vectors."""
    found = {(k, warm): _products(k, warm) for k in (1, 5) for warm in (False, True)}
    ours, theirs = (sum(found[k, False][i] for k in (1, 5)) for i in (0, 1))
    parts = [
        f"k = {k} {'warm' if warm else 'cold'}: {a} of ours, {b} of eigsh"
        for (k, warm), (a, b) in found.items()
    ]
    return {
        "row": "spectrum_scipy_products",
        "ratio": ours / theirs,
        "goal": 0.7,
        "better": "lower",
        "detail": (
            f"cold starts, as the walk along a run has them, {len(places(the_run()))} snapshots; "
            f"ours with the proof of the end; {'; '.join(parts)}"
        ),
    }


def row_spectrum_memory():
    """Growth of resident memory per call over 100 calls, in vectors of the length of theta."""
    *_, objective = problem()
    theta = _theta(places(the_run())[0])
    operator = hessian_operator(objective, theta)
    v = torch.randn_like(theta)
    for _ in range(10):
        operator @ v
        lanczos(operator, max_matvecs=3)
    before = _resident()
    for _ in range(100):
        operator @ v
    products = _resident() - before
    for _ in range(100):
        lanczos(operator, max_matvecs=3)
    size = theta.numel() * theta.element_size()
    growth = max(products, _resident() - before) / 100
    return {
        "row": "spectrum_memory",
        "ratio": growth / size,
        "goal": 0.01,  # a kept graph would be hundreds of vectors per call
        "better": "lower",
        "detail": f"{growth / 1024:.2f} kB a call, 100 products, 100 solves; theta has {size / 1024:.0f} kB",
    }


def _row(k, start, goal):
    found = [_compared(index, k) for index in places(the_run())]
    seconds = {name: [f[name][0] for f in found] for name in ("pyhessian", "cold", "warm", "unproved")}
    products = {name: [f[name][1] for f in found] for name in seconds}
    ratio = sum(seconds["pyhessian"]) / sum(seconds[start])
    single = [a / b for a, b in zip(seconds["pyhessian"], seconds[start], strict=True)]
    without = sum(seconds["pyhessian"]) / sum(seconds["unproved"])
    return {
        "row": f"spectrum_k{k}_{start}",
        "ratio": ratio,
        "goal": goal,
        "better": "higher",
        "detail": (
            f"CPU time of PyHessian over ours, {len(found)} snapshots, {SAMPLES} examples, P = 290,401; "
            f"single ones {min(single):.1f} to {max(single):.1f}; products {products['pyhessian']} against "
            f"{products[start]}; warm from {APART} steps before, without the proof: {without:.1f} "
            f"{products['unproved']}"
        ),
    }


@cache
def _theta(index):
    return torch.from_numpy(the_run().theta(index))


@cache
def _exact(index):
    """The five largest values (5,) of a converged solve in double precision."""
    *_, objective = problem(torch.float64)
    found = lanczos(hessian_operator(objective, _theta(index).double()), 5, tolerance=1e-7)
    if not (found.converged.all() and found.complete):
        raise RuntimeError(f"the reference at snapshot {index} did not converge")
    return found.values.numpy()


@cache
def _compared(index, k):
    """(CPU seconds, products) of PyHessian, of ours cold, warm, and warm without the proof."""
    exact, warm = _exact(index)[:k], {"start": _vectors(index - 1)[:k]}
    without = warm | {"certify": False, "multiplicity": False}
    return {
        "pyhessian": _loosest(lambda t: _power_iteration(index, k, t), THEIRS, exact),
        "cold": _loosest(lambda t: _ours(index, k, t), (OURS,), exact),
        "warm": _loosest(lambda t: _ours(index, k, t, **warm), (OURS,), exact),
        "unproved": _loosest(lambda t: _ours(index, k, t, **without), (OURS, 1e-3), exact),
    }


def _loosest(solve, tolerances, exact):
    """(Seconds, products) at the first tolerance with which all values are right."""
    for tolerance in tolerances:
        seconds, products, values = solve(tolerance)
        error = float(np.abs(values / exact - 1).max())
        if error <= ACCURACY:
            return seconds, products
    raise RuntimeError(f"error {error:.1e} even at tolerance {tolerance:g}")


def _ours(index, k, tolerance, **options):
    *_, objective = problem()
    with _one_thread():
        begin = time.process_time()
        pairs = lanczos(hessian_operator(objective, _theta(index)), k, tolerance=tolerance, **options)
        seconds = time.process_time() - begin
    return seconds, pairs.matvecs, pairs.values.numpy()


@cache
def _vectors(index):
    """The five top vectors (5, P), what a walk along the run hands to the next snapshot."""
    *_, objective = problem()
    return lanczos(hessian_operator(objective, _theta(index)), 5, tolerance=ACCURACY).vectors


def _power_iteration(index, k, tolerance):
    module = import_module("pyhessian.hessian")  # the package hides it behind its class

    model, inputs, targets, criterion, _ = problem()
    set_parameters(model, _theta(index))
    count, original = [0], module.hessian_vector_product

    def counted(*arguments):
        count[0] += 1
        return original(*arguments)

    module.hessian_vector_product = counted
    torch.manual_seed(0)
    try:
        with _one_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            begin = time.process_time()
            solver = module.hessian(model, criterion, data=(inputs, targets), cuda=False)
            values, _ = solver.eigenvalues(maxIter=MOST_ITERATIONS, tol=tolerance, top_n=k)
            seconds = time.process_time() - begin
    finally:
        module.hessian_vector_product = original
        model.zero_grad(set_to_none=True)  # backward(create_graph=True) made a cycle
    return seconds, count[0], np.sort(values)[::-1]


def _products(k, warm):
    """Products (ours, eigsh) summed over the snapshots, both from the same start vectors."""
    ours = theirs = 0
    for index in places(the_run()):
        *_, objective = problem()
        operator = hessian_operator(objective, _theta(index))
        drawn = random_unit(operator, torch.Generator().manual_seed(0))  # as ours draws it
        given = _vectors(index - 1)[:k].sum(0)
        mixed = 0.9**0.5 * given / given.norm() + 0.1**0.5 * drawn
        mine = lanczos(operator, k, tolerance=ACCURACY, start=given if warm else None, multiplicity=False)
        reached = float((mine.residuals / mine.values.abs()).max())
        peer = lanczos(operator, k, tolerance=reached, start=mixed if warm else drawn, engine="scipy")
        ours, theirs = (
            ours + mine.matvecs,
            theirs + peer.matvecs - k,
        )  # our check of its residuals is not its cost
    return ours, theirs


class _one_thread:  # noqa: N801  (a context)
    def __enter__(self):
        self.threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_):
        torch.set_num_threads(self.threads)


def _resident():
    """Bytes in use, what the allocator holds back not counted."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
