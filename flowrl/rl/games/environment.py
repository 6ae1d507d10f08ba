"""A game as an environment of two agents that take turns, with masks of what is legal."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from flowrl.rl.games.connect_four import ConnectFour
from flowrl.rl.games.game import CHANCE, OVER, Game, State
from flowrl.rl.games.kuhn import Kuhn
from flowrl.rl.games.leduc import Leduc
from flowrl.rl.games.matrix import RockPaperScissors
from flowrl.rl.observations import MASK

AGENTS = ("player_0", "player_1")


class GameEnv:
    """A game as an environment: who is to move has an observation (obs_size,), and a mask in its info.

    Rewards come with the last move: what player 0 has won, and its negative. `kuhn_poker` and its like are the
    factories that workers take.
    """

    def __init__(self, game: Game):
        self.game, self.possible_agents = game, list(AGENTS)
        self._obs = Box(0.0, 1.0, (game.obs_size,), np.float32)
        self._actions = Discrete(game.num_actions)
        self._rng = np.random.default_rng()
        self._state: State = game.initial()

    def observation_space(self, agent: str) -> Box:
        """Numbers from 0 to 1."""
        return self._obs

    def action_space(self, agent: str) -> Discrete:
        """All actions, legal or not."""
        return self._actions

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """A new game; with a seed, chance begins anew."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._state = self._drawn(self.game.initial())
        return self._seen()

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        """The move of the player whose turn it is.

        Raises:
            ValueError: it is not legal.
        """
        self._state = self._drawn(self._state.play(int(actions[AGENTS[self._state.player]])))
        if self._state.player != OVER:
            obs, infos = self._seen()
            return obs, {}, {}, {}, infos
        gain = self._state.gain()
        return {}, {AGENTS[0]: gain, AGENTS[1]: -gain}, {"__all__": True}, {}, {}

    def _drawn(self, state: State) -> State:
        while state.player == CHANCE:
            left = self._rng.random()
            for probability, after in state.chances():  # numpy's choice takes ten times as long
                state, left = after, left - probability
                if left < 0:
                    break
        return state

    def _seen(self) -> tuple[dict[str, Any], dict[str, Any]]:
        agent = AGENTS[self._state.player]
        mask = np.zeros(self.game.num_actions, np.bool_)
        mask[list(self._state.legal())] = True
        return {agent: self._state.observation()}, {agent: {MASK: mask}}


def rock_paper_scissors() -> GameEnv:
    """Rock, paper, scissors; the second to choose does not see the first's choice."""
    return GameEnv(RockPaperScissors())


def kuhn_poker() -> GameEnv:
    """Kuhn poker."""
    return GameEnv(Kuhn())


def leduc_poker() -> GameEnv:
    """Leduc poker."""
    return GameEnv(Leduc())


def connect_four(tactics: bool = False) -> GameEnv:
    """Connect four; with tactics, observations say what the next two moves can bring (`ConnectFour`)."""
    return GameEnv(ConnectFour(tactics))
