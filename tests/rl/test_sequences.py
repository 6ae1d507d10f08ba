"""Batches of sequences: rows as a loss sees them, minibatches and parts of whole sequences, what is refused."""

import numpy as np
import pytest
import torch

from flowrl.batch import Batch
from flowrl.rl.sequences import sequences_of

T, N = 4, 3


def batch_of(**replaced) -> Batch:
    valid = np.ones((T, N), bool)
    valid[2, 1] = valid[0, 2] = False
    columns = {
        "obs": np.arange(T * N * 2, dtype=np.float64).reshape(T, N, 2),
        "id": np.arange(T * N).reshape(T, N),
        "starts": np.zeros((T, N), bool),
        "state/h": np.arange(T * N * 5, dtype=np.float32).reshape(T, N, 5),
        "valid": valid,
    }
    return Batch({**columns, **replaced}, time_major=True)


def test_columns_are_valid_rows_and_steps_are_whole():
    batch = sequences_of(batch_of(), {"obs", "id"}, ["h"], "here")
    assert (batch.rows, batch.size, batch.whole) == (10, 3, batch)
    assert batch["id"].tolist() == [0, 1, 3, 4, 5, 6, 8, 9, 10, 11]  # by time, then sequence
    assert batch["id"] is batch["id"]
    assert batch.steps["obs"].shape == (T, N, 2)
    assert batch.steps["obs"].dtype == torch.float32
    torch.testing.assert_close(batch.initial["h"], torch.arange(15.0).reshape(3, 5))
    assert set(batch) == {"obs", "id", "starts"}
    assert batch.tree("obs").shape == (10, 2)
    with pytest.raises(KeyError, match="no column 'logp' in this training batch"):
        batch["logp"]


def test_minibatches_take_whole_sequences_in_the_given_order():
    batch = sequences_of(batch_of(), {"obs", "id"}, ["h"], "here")
    first, second = batch.minibatches(2, torch.tensor([2, 0, 1]))
    assert first["id"].tolist() == [0, 5, 3, 8, 6, 11, 9]
    assert second["id"].tolist() == [1, 4, 10]
    assert (first.size, second.size, first.whole) == (2, 1, first)
    torch.testing.assert_close(first.initial["h"], batch.initial["h"][[2, 0]])
    parts = list(batch.parts(2))
    assert [part["id"].tolist() for part in parts] == [[0, 1, 3, 4, 6, 9, 10], [5, 8, 11]]
    assert all(part.whole is batch for part in parts)


def test_rows_may_be_chosen_and_sequences_without_any_are_left_out():
    batch = sequences_of(batch_of(), {"obs", "id"}, ["h"], "here")
    chosen = batch.where(batch["id"] % 3 == 1)
    assert chosen["id"].tolist() == [1, 4, 10]
    assert chosen.steps is batch.steps
    assert [part["id"].tolist() for part in chosen.parts(1)] == [[1, 4, 10]]


def test_rows_that_are_no_transitions_may_hold_anything():
    obs = batch_of()["obs"].copy()
    obs[2, 1], obs[0, 2] = np.nan, np.inf
    batch = sequences_of(batch_of(obs=obs), {"obs"}, ["h"], "here")
    assert batch.steps["obs"][2, 1].tolist() == batch.steps["obs"][0, 2].tolist() == [0, 0]
    obs[1, 1, 0] = np.nan
    with pytest.raises(FloatingPointError, match=r"here: column 'obs' holds nan at t=1, n=1 \(1 of 10 valid rows"):
        sequences_of(batch_of(obs=obs), {"obs"}, ["h"], "here")


def test_what_is_missing_is_named():
    with pytest.raises(
        ValueError, match=r"here: a policy with memory trains on sequences and needs a time-major batch"
    ):
        sequences_of(batch_of().flat(), {"obs"}, ["h"], "here")
    with pytest.raises(KeyError, match="needs column 'state/c'"):
        sequences_of(batch_of(), {"obs"}, ["h", "c"], "here")
    with pytest.raises(KeyError, match="needs column 'starts'"):
        sequences_of(batch_of().without(["starts"]), {"obs"}, ["h"], "here")
