"""Observations as they are stored and encoded: by path, one-hot, flat, through convolutions; NumPy's equal torch's."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces

from flowrl.batch import Batch
from flowrl.rl.encoders import Encoder, convolved, default_convolutions
from flowrl.rl.encoding import NumpyEncoder
from flowrl.rl.inference import NumpyInference, make_inference
from flowrl.rl.observations import ObsLayout, channels_first, map_arrays
from flowrl.rl.policy import Policy
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.worker import RolloutWorker
from tests.rl.sampled_env import Sampled

NESTED = gym_spaces.Dict(
    arm=gym_spaces.Dict(joints=gym_spaces.Box(-1, 1, (2, 2)), grip=gym_spaces.Discrete(3, start=1)),
    rest=gym_spaces.Tuple([gym_spaces.MultiBinary(2), gym_spaces.MultiDiscrete([2, 3], start=[0, 5])]),
)
TWO = gym_spaces.Discrete(2)


def batch_of(space: gym_spaces.Space[Any], rows: int, seed: int = 0) -> Any:
    """Stored observations (rows, ...), sampled."""
    space.seed(seed)
    layout = ObsLayout.of(space)
    singles = [layout.split(space.sample()) for _ in range(rows)]
    if not layout.nested:
        return np.stack(singles).astype(layout.leaves[0].dtype)
    return {leaf.path: np.stack([one[leaf.path] for one in singles]).astype(leaf.dtype) for leaf in layout.leaves}


def test_the_columns_of_a_nested_space_are_its_paths_sorted_by_key() -> None:
    layout = ObsLayout.of(NESTED)
    assert [leaf.column for leaf in layout.leaves] == ["obs/arm/grip", "obs/arm/joints", "obs/rest/0", "obs/rest/1"]
    assert [leaf.size for leaf in layout.leaves] == [3, 4, 2, 5]
    assert [str(leaf.dtype) for leaf in layout.leaves] == ["int64", "float32", "int8", "int64"]
    worker = RolloutWorker(functools.partial(Sampled, NESTED, TWO), steps=7, num_envs=2, next_obs=True, seed=0)
    batch = worker.sample().payload
    assert {name for name in batch if "obs" in name} == {
        f"{root}/{path}" for root in ("obs", "next_obs") for path in ("arm/grip", "arm/joints", "rest/0", "rest/1")
    }
    assert batch["obs/arm/joints"].shape == (7, 2, 2, 2)
    for path, column in batch.tree("obs").items():
        np.testing.assert_array_equal(batch[f"next_obs/{path}"][:-1], column[1:])


@pytest.mark.parametrize("mode", ["same_step", "disabled"])
def test_nested_final_observations_are_kept_where_rows_do_not_show_them(mode: Any) -> None:
    from flowrl.rl.wrappers import EnvOptions

    workers = [
        RolloutWorker(
            functools.partial(Sampled, NESTED, TWO, length=3), steps=9, num_envs=2, next_obs=True, seed=0,
            env_options=EnvOptions(autoreset=how),
        )
        for how in (mode, "next_step")
    ]  # fmt: skip
    there, other = (worker.sample().payload for worker in workers)
    # The same environments in the other mode show every observation as a row of its own.
    shown = other["obs/arm/joints"][:, 0]
    kept = there["next_obs/arm/joints"][:, 0]
    assert there["terminated"][:, 0].tolist() == [False, False, True] * 3
    np.testing.assert_array_equal(kept[:3], shown[1:4])
    np.testing.assert_array_equal(kept[3:6], shown[5:8])
    assert np.isfinite(there["next_values"]).all()


def test_golden_encoding() -> None:
    layout = ObsLayout.of(NESTED)
    obs = {
        "arm/grip": np.array([3, 1]),
        "arm/joints": np.array([[[0.5, -0.5], [0.25, 1]], np.zeros((2, 2))], np.float32),
        "rest/0": np.array([[1, 0], [0, 1]], np.int8),
        "rest/1": np.array([[1, 5], [0, 7]]),
    }
    expected = [[0, 0, 1, 0.5, -0.5, 0.25, 1, 1, 0, 0, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1]]
    np.testing.assert_array_equal(NumpyEncoder(layout)(obs), expected)
    encoder = Encoder(PolicySpec(), layout)
    assert encoder.features == 14
    assert not list(encoder.parameters())
    np.testing.assert_array_equal(encoder(map_arrays(torch.tensor, obs)), expected)


@pytest.mark.parametrize("space", [gym_spaces.Discrete(3, start=1), gym_spaces.MultiDiscrete([2, 3])])
def test_an_index_outside_its_space_is_named(space: gym_spaces.Space[Any]) -> None:
    layout = ObsLayout.of(space)
    obs = np.full((2, *space.shape), 9)
    with pytest.raises(ValueError, match=r"observation 'obs' of row 0 is 9, outside its space, which begins at"):
        NumpyEncoder(layout)(obs)
    with pytest.raises(ValueError, match=r"observation 'obs' holds an index outside its space"):
        Encoder(PolicySpec(), layout)(torch.tensor(obs))


@pytest.mark.parametrize(
    "space",
    [NESTED, gym_spaces.Discrete(4, start=-2), gym_spaces.MultiBinary((2, 2)), gym_spaces.Box(-3, 3, (2, 2))],
    ids=["nested", "discrete", "bits", "box"],
)
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("action", [TWO, gym_spaces.Box(-1, 1, (2,))], ids=["two", "box"])
def test_inference_in_numpy_equals_torch(space: Any, normalize: bool, action: Any) -> None:
    spec, spaces = PolicySpec(normalize_obs=normalize, hidden=(16,), initial_log_std=-0.5), Spaces(space, action)
    policy = Policy(spec, spaces, seed=np.random.SeedSequence(0))
    net, flat = make_inference(spec, spaces, np.random.SeedSequence(0))
    assert isinstance(net, NumpyInference)
    np.testing.assert_array_equal(flat, policy.get_weights())
    obs = batch_of(space, 20)
    columns = ObsLayout.of(space).columns("obs", obs)
    if policy.statistics is not None:
        policy.statistics.update(Batch(columns))
        before = policy.get_weights()
        assert not np.array_equal(before, flat)
        net.set_weights(before)
    out = policy.forward(columns)
    np.testing.assert_allclose(net.forward(obs)[0], out.logits.detach(), atol=1e-6)
    np.testing.assert_allclose(net.values(obs), out.values.detach(), atol=1e-6)


def test_normalized_observations_have_mean_0_and_variance_1_exactly_merged_and_travel_with_the_weights() -> None:
    space = gym_spaces.Dict(a=gym_spaces.Box(-9, 9, (2,)), b=gym_spaces.Discrete(3))
    spaces, spec = Spaces(space, TWO), PolicySpec(normalize_obs=True)
    policy, other = Policy(spec, spaces, seed=0), Policy(spec, spaces, seed=1)
    rng = np.random.default_rng(0)
    a = rng.normal([100.0, -3.0], [5.0, 0.1], (60, 2)).astype(np.float32)
    valid = rng.random(60) < 0.8
    batch = Batch({"obs/a": a, "obs/b": np.zeros(60, np.int64), "valid": valid})
    for part in (slice(0, 7), slice(7, 60)):
        policy.statistics.update(Batch({name: column[part] for name, column in batch.items()}))
    wide = a[valid].astype(np.float64)
    assert policy.statistics.moments.count == valid.sum()
    np.testing.assert_allclose(policy.statistics.moments.mean, wide.mean(0), rtol=1e-12)
    np.testing.assert_allclose(policy.statistics.moments.var, wide.var(0), rtol=1e-10)
    seen = policy.statistics({"a": torch.tensor(a[valid]), "b": torch.zeros(len(wide))})
    np.testing.assert_allclose(seen["a"].mean(0), 0, atol=1e-4)
    np.testing.assert_allclose(seen["a"].std(0, correction=0), 1, atol=1e-4)
    assert not seen["b"].any()
    np.testing.assert_allclose(policy.get_weights()[-4:], [*wide.mean(0), *wide.var(0)], rtol=1e-6)
    # The flat vector is enough to act alike; the exact moments are state of their own.
    other.set_weights(policy.get_weights())
    columns = {"obs/a": a, "obs/b": batch["obs/b"]}
    torch.testing.assert_close(other.forward(columns).logits, policy.forward(columns).logits)
    assert other.statistics.moments.count == 0
    other.set_other_buffers(policy.other_buffers())
    assert other.statistics.moments.count == valid.sum()
    np.testing.assert_array_equal(other.statistics.moments.m2, policy.statistics.moments.m2)
    before = policy.get_weights()
    policy.act({"a": a[0], "b": 1})
    np.testing.assert_array_equal(policy.get_weights(), before)
    assert policy.target.statistics is not policy.statistics


def test_equal_spaces_with_keys_in_another_order_are_encoded_alike() -> None:
    a, b = gym_spaces.Box(-1, 1, (2,)), gym_spaces.Discrete(2)
    one, other = gym_spaces.Dict(a=a, b=b), gym_spaces.Dict(b=b, a=a)
    assert one == other
    assert [leaf.path for leaf in ObsLayout.of(one).leaves] == [leaf.path for leaf in ObsLayout.of(other).leaves]


# images
@pytest.mark.parametrize(
    ("shape", "first"), [((84, 84, 3), False), ((4, 84, 84), True), ((10, 10, 4), False), ((5, 5, 5), False)]
)
def test_the_shorter_side_is_channels(shape: tuple[int, int, int], first: bool) -> None:
    assert channels_first(shape) == first


@pytest.mark.parametrize(
    ("size", "layers"),
    [
        ((84, 84), [(32, 8, 4), (64, 4, 2), (64, 3, 1)]),
        ((36, 40), [(32, 8, 4), (64, 4, 2), (64, 3, 1)]),
        ((10, 10), [(16, 3, 1)]),
        ((3, 3), [(16, 3, 1)]),
        ((35, 35), [(16, 3, 1), (32, 3, 2), (32, 3, 2)]),
        ((40, 5), [(16, 3, 1), (32, 3, 2)]),
    ],
)
def test_default_convolutions(size: tuple[int, int], layers: list[tuple[int, int, int]]) -> None:
    assert list(default_convolutions(size)) == layers
    assert min(convolved(size, layers)) >= 1


def test_both_places_of_the_channels_give_the_same_features_and_images_are_scaled() -> None:
    last, first = (gym_spaces.Box(0, 255, shape, np.uint8) for shape in ((9, 7, 3), (3, 9, 7)))
    policies = [Policy(PolicySpec(), Spaces(space, TWO), seed=0) for space in (last, first)]
    np.testing.assert_array_equal(policies[0].get_weights(), policies[1].get_weights())
    obs = batch_of(last, 4)
    outs = [policy.forward({"obs": o}) for policy, o in zip(policies, (obs, np.moveaxis(obs, 3, 1)), strict=True)]
    torch.testing.assert_close(outs[0].logits, outs[1].logits)
    bits = Policy(PolicySpec(), Spaces(gym_spaces.Box(0, 1, (9, 7, 3), np.bool_), TWO), seed=0)
    full = bits.forward({"obs": np.ones((1, 9, 7, 3), np.bool_)}).values
    torch.testing.assert_close(full, policies[0].forward({"obs": np.full((1, 9, 7, 3), 255, np.uint8)}).values)


def test_images_and_numbers_stand_side_by_side_and_everything_is_trained() -> None:
    space = gym_spaces.Dict(camera=gym_spaces.Box(0, 255, (36, 36, 3), np.uint8), speed=gym_spaces.Box(-1, 1, (2,)))
    policy = Policy(PolicySpec(hidden=(), image_features=7), Spaces(space, TWO), seed=0)
    assert policy.module.encoder.features == 9
    obs = ObsLayout.of(space).columns("obs", batch_of(space, 5))
    out = policy.forward(obs)
    gradient = policy.gradient(out.logits.square().sum() + out.values.square().sum())
    for name, parameter in policy.module.named_parameters():
        assert gradient[policy.span(name)].any(), name
        assert parameter.dim() == 1 or parameter.std() > 0


def test_convolutions_of_the_users_own_must_fit() -> None:
    spaces = Spaces(gym_spaces.Box(0, 255, (10, 10, 3), np.uint8), TWO)
    policy = Policy(PolicySpec(convolutions=((4, 5, 5),), image_features=3), spaces)
    assert policy.module.encoder.images[0].linear.in_features == 4 * 2 * 2
    with pytest.raises(ValueError, match=r"convolution 1 of .* has a kernel of 5 pixels and gets an image of 2 × 2"):
        Policy(PolicySpec(convolutions=((4, 5, 5), (4, 5, 1))), spaces)
    with pytest.raises(ValueError, match=r"convolutions must be one or more \(channels, kernel, stride\)"):
        PolicySpec(convolutions=((4, 5),))  # type: ignore[arg-type]


def test_act_refuses_observations_of_another_shape_by_their_column() -> None:
    policy = Policy(PolicySpec(), Spaces(NESTED, TWO), seed=0)
    obs = NESTED.sample()
    obs["arm"]["joints"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"obs/arm/joints has shape \(3,\), but one observation .* has \(2, 2\)"):
        policy.act(obs)
