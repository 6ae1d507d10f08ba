"""Initial weights: layout, orthogonality, gains, and that the seed alone decides."""

from __future__ import annotations

import random

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given
from hypothesis import strategies as st

from flowrl.rl.initial import initial_weights, layer_shapes, num_weights, orthogonal
from flowrl.rl.spec import PolicySpec, Spaces

SPACES = Spaces(Box(-1, 1, (4,)), Discrete(2))
SPEC = PolicySpec(hidden=(8, 6))


def test_shapes_and_length() -> None:
    assert layer_shapes(SPEC, SPACES) == (((8, 4), (6, 8), (2, 6)), ((8, 4), (6, 8), (1, 6)))
    # actor 4*8+8 + 8*6+6 + 6*2+2 = 108, critic 40 + 54 + 7 = 101
    assert num_weights(SPEC, SPACES) == 209
    assert num_weights(PolicySpec(), SPACES) == 4610 + 4545
    assert layer_shapes(PolicySpec(hidden=()), SPACES) == (((2, 4),), ((1, 4),))


def test_layers_are_orthogonal_with_their_gains_and_biases_are_zero() -> None:
    flat = initial_weights(SPEC, SPACES, 3)
    assert flat.dtype == np.float32
    assert flat.shape == (209,)
    at = 0
    for net, gains in zip(layer_shapes(SPEC, SPACES), ((2.0, 2.0, 1e-4), (2.0, 2.0, 1.0)), strict=True):
        for (out, into), squared_gain in zip(net, gains, strict=True):
            weight = flat[at : at + out * into].reshape(out, into).astype(np.float64)
            at += out * into
            gram = weight @ weight.T if out <= into else weight.T @ weight
            np.testing.assert_allclose(gram, squared_gain * np.eye(len(gram)), atol=1e-6)
            assert not flat[at : at + out].any()
            at += out
    assert at == len(flat)


@given(out=st.integers(1, 20), into=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_orthogonal_in_its_shorter_direction(out: int, into: int, seed: int) -> None:
    matrix = orthogonal(out, into, np.random.default_rng(seed))
    assert matrix.shape == (out, into)
    gram = matrix @ matrix.T if out <= into else matrix.T @ matrix
    np.testing.assert_allclose(gram, np.eye(min(out, into)), atol=1e-12)


def test_signs_are_random_even_in_one_dimension() -> None:
    # Without the sign correction Householder's QR gives one sign only.
    signs = [float(orthogonal(1, 1, np.random.default_rng(seed))[0, 0]) for seed in range(200)]
    assert set(signs) == {-1.0, 1.0}
    assert 70 < signs.count(1.0) < 130


def test_the_seed_alone_decides() -> None:
    one = initial_weights(SPEC, SPACES, 5)
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    sequence = np.random.SeedSequence(5)
    np.testing.assert_array_equal(one, initial_weights(SPEC, SPACES, sequence))
    np.testing.assert_array_equal(one, initial_weights(SPEC, SPACES, sequence))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert not np.array_equal(one, initial_weights(SPEC, SPACES, 6))


def test_refuses_a_model_of_the_users_own() -> None:
    with pytest.raises(ValueError, match="initial_weights is for the default model"):
        initial_weights(PolicySpec(model=lambda obs, act: None), SPACES, 0)
