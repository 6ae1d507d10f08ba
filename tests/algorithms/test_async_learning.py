"""The asynchronous actor-critics learn CartPole-v1 within so many steps, at fixed seeds, deterministic on Local."""

from __future__ import annotations

from typing import Any

import pytest

import flowrl
from flowrl import Local
from flowrl.algorithms import A2CConfig, A3CConfig, APPOConfig, IMPALAConfig


@pytest.mark.parametrize("cls", [A2CConfig, A3CConfig, IMPALAConfig, APPOConfig])
def test_it_learns_cartpole(cls: Any) -> None:
    result = flowrl.train(cls(), total_steps=100_000, stop_return=200.0, backend=Local(), seed=0)
    assert result.solved, result.history[-1]
    assert result.evaluation.mean >= 200.0  # 20 greedy episodes; a random policy reaches some 22
