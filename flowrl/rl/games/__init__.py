"""Small two-player zero-sum games: as environments of two agents, and exactly solvable where they are small enough."""

from __future__ import annotations

from flowrl.rl.games.connect_four import ConnectFour
from flowrl.rl.games.environment import GameEnv, connect_four, kuhn_poker, leduc_poker, rock_paper_scissors
from flowrl.rl.games.exact import (
    average_strategy,
    best_response,
    expected_gain,
    nash_conv,
    strategy_of,
    uniform_strategy,
)
from flowrl.rl.games.game import CHANCE, OVER, Game, State
from flowrl.rl.games.kuhn import Kuhn
from flowrl.rl.games.leduc import Leduc
from flowrl.rl.games.matrix import RockPaperScissors
from flowrl.rl.games.policies import policy_strategies
from flowrl.rl.games.tree import Node, infosets, tree_of

__all__ = [
    "CHANCE",
    "OVER",
    "ConnectFour",
    "Game",
    "GameEnv",
    "Kuhn",
    "Leduc",
    "Node",
    "RockPaperScissors",
    "State",
    "average_strategy",
    "best_response",
    "connect_four",
    "expected_gain",
    "infosets",
    "kuhn_poker",
    "leduc_poker",
    "nash_conv",
    "policy_strategies",
    "rock_paper_scissors",
    "strategy_of",
    "tree_of",
    "uniform_strategy",
]
