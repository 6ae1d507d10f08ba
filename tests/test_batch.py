"""Batches: shapes, columns, joining, what travels and what is refused."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.ref import Info, Ref


def time_major(t: int = 3, n: int = 2, **columns) -> Batch:
    number = np.arange(t * n, dtype=np.float32).reshape(t, n)
    return Batch({"obs": np.stack([number, -number], -1), "rewards": number, **columns}, time_major=True)


def rows(*numbers: float, **columns) -> Batch:
    return Batch({"rewards": np.array(numbers, np.float32), **columns})


def test_leading_dimensions_rows_steps_and_bytes():
    valid = np.array([[True, True], [False, True], [True, False]])
    batch = time_major(valid=valid)
    assert (batch.leading, batch.rows, batch.env_steps, batch.time_major) == ((3, 2), 6, 4, True)
    assert batch.nbytes == 3 * 2 * (2 * 4 + 4 + 1)
    assert batch.info() == Info(env_steps=4, agent_steps=4, nbytes=batch.nbytes)
    assert Info.of(batch) == batch.info()
    flat = rows(1, 2, 3)
    assert (flat.leading, flat.rows, flat.env_steps) == ((3,), 3, 3)
    assert flat.valid.tolist() == [True] * 3


def test_it_is_an_immutable_mapping():
    given_array = np.zeros(3, np.float32)
    batch = Batch({"rewards": given_array})
    assert list(batch) == ["rewards"]
    assert len(batch) == 1
    assert "obs" not in batch
    assert batch.get("obs") is None
    with pytest.raises(ValueError, match="read-only"):
        batch["rewards"][0] = 1
    given_array[0] = 1  # the caller's own array stays writable
    with pytest.raises(TypeError):
        batch["rewards"] = np.ones(3)
    with pytest.raises(KeyError, match=r"no column 'obs' in this batch; it has \['rewards'\]"):
        batch["obs"]


@pytest.mark.parametrize(
    ("columns", "time_major", "message"),
    [
        ({}, False, "at least one column"),
        (
            {"a": np.zeros(3), "b": np.zeros((4, 2)), "c": np.zeros(3)},
            False,
            r"'b' has shape \(4, 2\).*\(B,\) = \(3,\)",
        ),
        ({"a": np.zeros((3, 2)), "b": np.zeros((3, 5, 2))}, True, r"'b' has shape \(3, 5, 2\).*\(T, N\) = \(3, 2\)"),
        ({"a": 1.0}, False, r"column 'a' has shape \(\).*\(B, ...\)"),
        ({"a": np.zeros(3)}, True, r"column 'a' has shape \(3,\).*\(T, N, ...\)"),
        ({"valid": np.ones(3)}, False, "'valid' must be a boolean array"),
        ({"valid": np.ones((3, 1), bool)}, False, "'valid' must be a boolean array"),
    ],
)
def test_wrong_shapes_name_the_column(columns, time_major, message):
    with pytest.raises(ValueError, match=message):
        Batch(columns, time_major=time_major)


def test_object_columns_and_nameless_ones_are_refused():
    with pytest.raises(TypeError, match="column 'info' has dtype object"):
        Batch({"info": np.array([{}, {}])})
    with pytest.raises(TypeError, match="column names are strings, got 3"):
        Batch({3: np.zeros(2)})


def test_nested_observations_by_path():
    batch = Batch({"obs/camera": np.zeros((2, 8, 8)), "obs/pose/x": np.ones(2), "obscure": np.zeros(2)})
    tree = batch.tree("obs")
    assert isinstance(tree, dict)
    assert sorted(tree) == ["camera", "pose/x"]
    assert rows(1, 2).tree("rewards") is not None
    with pytest.raises(KeyError, match="no column 'action' and none below it"):
        batch.tree("action")


def test_columns_added_selected_and_left_out():
    batch = time_major()
    more = batch.with_columns({"obs/a": batch["rewards"]}, rewards=batch["rewards"] * 2)
    assert sorted(more) == ["obs", "obs/a", "rewards"]
    assert more.time_major
    np.testing.assert_array_equal(more["rewards"], batch["rewards"] * 2)
    assert sorted(batch) == ["obs", "rewards"]
    assert list(more.select(["rewards", "obs"])) == ["rewards", "obs"]
    assert list(more.without(["obs/a"])) == ["obs", "rewards"]
    assert list(more.select("rewards")) == ["rewards"]
    for wrong in (lambda: batch.select(["nope"]), lambda: batch.without(["nope"])):
        with pytest.raises(KeyError, match="no column 'nope'"):
            wrong()
    with pytest.raises(ValueError, match="'advantages' has shape"):
        batch.with_columns(advantages=np.zeros(6))


def test_flat_keeps_valid_rows_by_time_then_environment():
    batch = time_major(valid=np.array([[True, True], [False, True], [True, False]]))
    flat = batch.flat()
    assert flat["rewards"].tolist() == [0, 1, 3, 4]
    assert flat["obs"].tolist() == [[0, 0], [1, -1], [3, -3], [4, -4]]
    assert "valid" not in flat
    assert not flat.time_major
    assert rows(5, 6, 7, valid=np.array([True, False, True])).flat()["rewards"].tolist() == [5, 7]
    assert time_major().flat().rows == 6


def test_rows_at():
    batch = rows(5, 6, 7)
    assert batch.rows_at([2, 0, 2])["rewards"].tolist() == [7, 5, 7]
    assert batch.rows_at(np.array([True, False, True]))["rewards"].tolist() == [5, 7]
    assert batch.rows_at(slice(1, None))["rewards"].tolist() == [6, 7]
    with pytest.raises(ValueError, match="1-d index"):
        batch.rows_at(1)
    with pytest.raises(ValueError, match="time-major; take flat"):
        time_major().rows_at([0])


def test_concat_along_rows_and_along_environments():
    joined = Batch.concat([rows(1, 2), rows(3), rows()])
    assert joined["rewards"].tolist() == [1, 2, 3]
    wide = Batch.concat([time_major(3, 2), time_major(3, 1)])
    assert wide.leading == (3, 3)
    assert wide["rewards"].tolist() == [[0, 1, 0], [2, 3, 1], [4, 5, 2]]
    one = rows(1)
    assert Batch.concat([one]) is one
    assert Ref.concat([Ref.of(rows(1)), Ref.of(rows(2))]).get() == rows(1, 2)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "at least one batch"),
        ([time_major(), rows(1)], "batch 0 is time-major .* and batch 1 is flat"),
        ([time_major(3), time_major(4)], "unequal T: batch 0 has 3, batch 1 has 4"),
        ([rows(1), rows(1, logp=[0.0])], r"batch 0 lacks \['logp'\]"),
        ([rows(1), rows(1), Batch({"obs": [1.0]})], r"batch 2 lacks \['rewards'\] and batch 0 lacks \['obs'\]"),
        ([rows(1), Batch({"rewards": np.zeros(1)})], "column 'rewards': batch 0 has float32 .* batch 1 has float64"),
        ([Batch({"o": np.zeros((1, 2))}), Batch({"o": np.zeros((1, 3))})], r"column 'o': .*\(1, 2\).*\(1, 3\)"),
    ],
)
def test_what_cannot_be_joined_says_why(batches, message):
    with pytest.raises(ValueError, match=message):
        Batch.concat(batches)


def test_equality_is_by_layout_dtype_and_value():
    assert rows(1, np.nan) == rows(1, np.nan)
    assert rows(1, 2) != rows(1, 3)
    assert rows(1) != Batch({"rewards": np.ones(1)})
    assert rows(1) != 1
    assert Batch({"a": np.zeros((2, 2))}) != Batch({"a": np.zeros((2, 2))}, time_major=True)


def test_pickling_takes_buffers_out_of_band_and_gives_read_only_arrays():
    batch = Batch({"obs": np.zeros((64, 32, 84), np.uint8), "t": np.zeros((32, 64)).T}, time_major=True)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) == 2
    assert len(data) < 600
    for back in (pickle.loads(data, buffers=buffers), pickle.loads(pickle.dumps(batch, protocol=5))):
        assert back == batch
        assert not back["obs"].flags.writeable
        assert not back["t"].flags.writeable


def test_repr_is_short():
    assert repr(time_major()) == "Batch(time-major, obs: float32[3, 2, 2], rewards: float32[3, 2])"


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.integers(0, 2**32 - 1))
def test_concat_then_split_is_the_identity(sizes, seed):
    rng = np.random.default_rng(seed)
    parts = [Batch({"a": rng.random(n), "b": rng.integers(9, size=(n, 2))}) for n in sizes]
    whole = Batch.concat(parts)
    ends = np.cumsum(sizes)
    assert [whole.rows_at(slice(end - n, end)) for n, end in zip(sizes, ends, strict=True)] == parts


def multi(env_steps: int = 4, **batches: Batch) -> MultiAgentBatch:
    return MultiAgentBatch(batches, env_steps=env_steps)


def test_multi_agent_counts_and_selects():
    both = multi(a=rows(1, 2, valid=np.array([True, False])), b=rows(3, 4, 5))
    assert (both.env_steps, both.agent_steps) == (4, 4)
    assert both.info() == Info(4, 4, None, both.nbytes, {}, {"a": 1, "b": 3})
    assert list(both.select(["b", "absent"])) == ["b"]
    assert both.select("a").agent_steps == 1
    with pytest.raises(KeyError, match=r"no policy 'c' in this batch; it has \['a', 'b'\]"):
        both["c"]
    with pytest.raises(TypeError, match="policy 'a' needs a Batch, got int"):
        multi(a=1)
    with pytest.raises(ValueError, match="at least 0, got -1"):
        multi(env_steps=-1)


def test_what_is_broadcast_travels_once():
    states = np.broadcast_to(np.arange(6000.0).reshape(2, 3000), (80, 2, 3000))
    batch = Batch({"state": states, "one": np.broadcast_to(np.float32(3), (80, 2))}, time_major=True)
    data = pickle.dumps(batch, protocol=5)
    assert len(data) < 2 * 6000 * 8
    back = pickle.loads(data)
    assert back == batch
    assert not back["state"].flags.writeable
    empty = Batch({"state": np.broadcast_to(np.zeros((1, 0)), (4, 0))})
    assert pickle.loads(pickle.dumps(empty)) == empty


def test_multi_agent_concat_pickle_and_replace():
    joined = MultiAgentBatch.concat([multi(a=rows(1)), multi(a=rows(2), b=rows(3))])
    assert joined == multi(8, a=rows(1, 2), b=rows(3))
    assert pickle.loads(pickle.dumps(joined)) == joined
    assert joined.with_batches({"b": rows(9)})["b"]["rewards"].tolist() == [9]
    assert joined["b"]["rewards"].tolist() == [3]
    with pytest.raises(ValueError, match="at least one"):
        MultiAgentBatch.concat([])
