"""Policies as strategies: what flat weights, such as a league's snapshots, do in every situation of a game."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np
import numpy.typing as npt

from flowrl.rl.games.environment import AGENTS, GameEnv
from flowrl.rl.games.exact import Probabilities, strategy_of
from flowrl.rl.games.game import Game
from flowrl.rl.inference import make_inference
from flowrl.rl.spec import PolicySpec, Spaces


def policy_strategies(
    game: Game, spec: PolicySpec, weights: Iterable[npt.NDArray[np.float32]]
) -> list[dict[Hashable, Probabilities]]:
    """The strategy of each of these flat weights; illegal actions have probability 0."""
    env = GameEnv(game)
    net, _ = make_inference(spec, Spaces(env.observation_space(AGENTS[0]), env.action_space(AGENTS[0])))
    found = []
    for flat in weights:
        net.set_weights(flat)
        found.append(strategy_of(game, lambda obs: net.forward(obs)[0]))
    return found
