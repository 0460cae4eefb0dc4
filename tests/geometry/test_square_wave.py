from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from grokscope.geometry.fourier import wrapped
from grokscope.geometry.square_wave import (
    Layers,
    circular_correlation,
    extract,
    ideal,
    random_waves,
    right,
    wave_distances,
)

CASES = json.loads((Path(__file__).parents[1] / "data/modular_addition_construction.json").read_text())[
    "cases"
]
SHAPES = {
    "cos_cos": ("cosine", "cosine"),
    "square_cos": ("square", "cosine"),
    "square_square": ("square", "square"),
}


def constructed(seed: int, *, modulus: int, num_units: int, variant: str) -> Layers:
    inputs, output = SHAPES[variant]
    waves = random_waves(num_units, modulus=modulus, generator=np.random.default_rng(seed))
    return ideal(waves, modulus=modulus, inputs=inputs, output=output)


@pytest.mark.parametrize(
    "case", CASES, ids=lambda c: f"{c['p']}-{c['num_neurons']}-{c['seed']}-{c['variant']}"
)
def test_construction_against_independent_counts(case: dict) -> None:
    layers = constructed(
        case["seed"], modulus=case["p"], num_units=case["num_neurons"], variant=case["variant"]
    )
    # Cosine logits may round to another winner in two pairs; square ones are whole numbers, so exact.
    slack = 0 if case["variant"] == "square_square" else 2
    assert abs(int(right(layers).sum()) - case["correct_first_argmax"]) <= slack
    assert abs(int(right(layers, ties="wrong").sum()) - case["correct_strict"]) <= slack


@pytest.mark.parametrize(
    ("variant", "published"), [("cos_cos", 0.3653), ("square_cos", 0.4449), ("square_square", 0.3314)]
)
def test_published_table_within_monte_carlo_error(variant: str, published: float) -> None:
    """64 units, first of the largest logits; ties as wrong would give .259 for square_square."""
    found = [right(constructed(s, modulus=97, num_units=64, variant=variant)).mean() for s in range(40)]
    # Both means are over 40 seeds: 4 standard errors of their difference, false alarm 1e-4.
    assert abs(np.mean(found) - published) < 4 * np.std(found, ddof=1) * np.sqrt(2 / 40)


def test_right_against_loops() -> None:
    layers = Layers(*np.random.default_rng(3).standard_normal((3, 6, 5)))
    pairs = np.array([[0, 1], [4, 3], [2, 2], [4, 4]])
    for (a, b), found in zip(pairs, right(layers, pairs), strict=True):
        logits = [
            sum(layers.output[i, j] * max(layers.first[i, a] + layers.second[i, b], 0) for i in range(6))
            for j in range(5)
        ]
        assert found == (max(range(5), key=logits.__getitem__) == (a + b) % 5)


def test_extraction_inverts_the_ideal_network() -> None:
    waves = random_waves(40, modulus=31, generator=np.random.default_rng(0))
    layers = ideal(waves, modulus=31, inputs="cosine", output="cosine")
    found, keep = extract(layers), waves.frequency % 31 != 0
    # A frequency above p/2 is its mirror image with the phase reversed.
    mirrored = waves.frequency > 15
    np.testing.assert_array_equal(
        found.frequency[keep], np.where(mirrored, 31 - waves.frequency, waves.frequency)[keep]
    )
    sign = np.where(mirrored, -1, 1)
    for name in ("first", "second", "output"):
        apart = wrapped(getattr(found, name) - sign * getattr(waves, name))[keep]
        np.testing.assert_allclose(apart, 0, atol=1e-12)
    again = ideal(found, modulus=31, inputs="cosine", output="cosine")
    np.testing.assert_allclose(again.first[keep], layers.first[keep], atol=1e-12)
    np.testing.assert_allclose(found.phase_sum_error[keep], 0, atol=1e-12)


def test_square_waves_keep_frequency_and_nearly_the_phase() -> None:
    waves = random_waves(15, modulus=97, generator=np.random.default_rng(1))
    found = extract(ideal(waves, modulus=97, inputs="square", output="square"))
    np.testing.assert_array_equal(found.frequency[1:], waves.frequency[1:])
    # Edges move between residues: the phase is known to one part in p of a turn.
    assert np.abs(wrapped(found.first - waves.first))[1:].max() < 2 * np.pi / 97


def test_circular_correlation() -> None:
    stream = np.random.default_rng(0)
    x = stream.uniform(-np.pi, np.pi, 400)
    assert circular_correlation(x, wrapped(x + 1.2)) == pytest.approx(1)
    assert circular_correlation(x, wrapped(0.7 - x)) == pytest.approx(-1)
    # Independent: standard error 1/sqrt(400).
    assert abs(circular_correlation(x, stream.uniform(-np.pi, np.pi, 400))) < 0.2
    assert np.isnan(circular_correlation(x[:1], x[:1]))
    with pytest.raises(ValueError, match="pairs of angles"):
        circular_correlation(x, x[:3])


@pytest.mark.parametrize("shape", ["square", "cosine"])
def test_distances_tell_squares_from_cosines(shape: str) -> None:
    waves = random_waves(20, modulus=97, generator=np.random.default_rng(2))
    weights = 0.45 * ideal(waves, modulus=97, inputs=shape, output="cosine").first[1:] + 0.1
    square, cosine = wave_distances(weights, frequency=waves.frequency[1:], phases=waves.first[1:]).T
    assert (square < cosine).all() if shape == "square" else (square > cosine).all()
    own = square if shape == "square" else cosine
    # Exact up to the grid of the cosine's curve, and to the noise-free levels of the square.
    assert own.max() < (1e-9 if shape == "square" else 7e-3)


def test_layers_of_unequal_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="all three must be one"):
        Layers(np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((3, 3)))
