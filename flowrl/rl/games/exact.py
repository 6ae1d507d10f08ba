"""Exact values in small games: what strategies win, what the best response to one wins, and averages of strategies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from flowrl.rl.games.game import CHANCE, OVER, Game
from flowrl.rl.games.tree import Node, infosets, tree_of

Probabilities = npt.NDArray[np.float64]
Strategy = Mapping[Hashable, Probabilities]
"""By what the player to move knows, the probabilities (num_actions,) of its actions; of both players."""


def uniform_strategy(game: Game) -> dict[Hashable, Probabilities]:
    """Every legal action with the same probability."""
    return {infoset: _uniform(game, legal) for infoset, (_, legal) in infosets(game).items()}


def strategy_of(
    game: Game, logits_of: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.floating]]
) -> dict[Hashable, Probabilities]:
    """The strategy of a network that maps observations (B, obs_size) to logits (B, num_actions)."""
    known = infosets(game)
    logits_BA = np.asarray(logits_of(np.stack([obs for obs, _ in known.values()])), np.float64)
    found: dict[Hashable, Probabilities] = {}
    for (infoset, (_, legal)), logits in zip(known.items(), logits_BA, strict=True):
        chosen = np.exp(logits[list(legal)] - logits[list(legal)].max())
        found[infoset] = np.zeros(game.num_actions)
        found[infoset][list(legal)] = chosen / chosen.sum()
    return found


def expected_gain(game: Game, first: Strategy, second: Strategy) -> float:
    """What player 0 wins on average, playing `first` against `second`."""

    def value(node: Node) -> float:
        if node.player == OVER:
            return node.gain
        if node.player == CHANCE:
            return sum(p * value(child) for p, child in zip(node.chances, node.children, strict=True))
        play = (first if node.player == 0 else second)[node.infoset]
        return sum(
            play[action] * value(child)
            for action, child in zip(node.actions, node.children, strict=True)
            if play[action] > 0
        )

    return float(value(tree_of(game)))


def best_response(game: Game, strategy: Strategy, player: int) -> tuple[float, dict[Hashable, int]]:
    """What a player wins at most where the other plays `strategy`, and an action that does it, by what it knows.

    The action in an information set is the one with the greatest value summed over its situations, each weighted by the
    probability that chance and the other player lead to it. Sets that these never lead to are left out.
    """
    root = tree_of(game)
    members: dict[Hashable, list[tuple[Node, float]]] = {}
    todo = [(root, 1.0)]
    while todo:
        node, reach = todo.pop()
        weights = _weights(node, strategy, player)
        if node.player == player:
            members.setdefault(node.infoset, []).append((node, reach))
        todo.extend(
            (child, reach * weight) for child, weight in zip(node.children, weights, strict=True) if reach * weight > 0
        )
    chosen: dict[Hashable, int] = {}

    def choose(infoset: Hashable) -> int:
        if infoset not in chosen:
            nodes = members[infoset]
            actions = nodes[0][0].actions
            sums = [sum(reach * value(node.children[i]) for node, reach in nodes) for i in range(len(actions))]
            chosen[infoset] = actions[int(np.argmax(sums))]
        return chosen[infoset]

    def value(node: Node) -> float:
        if node.player == OVER:
            return node.gain if player == 0 else -node.gain
        if node.player == player:
            return value(node.children[node.actions.index(choose(node.infoset))])
        weights = _weights(node, strategy, player)
        return sum(w * value(child) for w, child in zip(weights, node.children, strict=True) if w > 0)

    return float(value(root)), chosen


def nash_conv(game: Game, strategy: Strategy) -> float:
    """Σ_i (best response of i against the other's part − what i wins now): 0 in an equilibrium, else above.

    In a zero-sum game what both win now adds up to 0, so it is the sum of both best responses; half of it is called
    exploitability.
    """
    return best_response(game, strategy, 0)[0] + best_response(game, strategy, 1)[0]


def average_strategy(
    game: Game, strategies: Sequence[Strategy], weights: Sequence[float] | npt.NDArray[np.float64] | None = None
) -> dict[Hashable, Probabilities]:
    """The strategy that plays as does a player who draws one of `strategies` before each game and keeps to it.

    σ̄(a | I) = Σ_k w_k x_k(I) σ_k(a | I) / Σ_k w_k x_k(I), with x_k(I) the probability of the player's own actions on
    the way to I under strategy k (Heinrich et al., 2015, equation 2). Uniform where nobody would come.

    weights: of the strategies; None: all the same.

    Raises:
        ValueError: no strategy, or weights that are negative or of another number, or add up to nothing.
    """
    given = np.ones(len(strategies)) if weights is None else np.asarray(weights, np.float64)
    if not len(strategies) or given.shape != (len(strategies),) or (given < 0).any() or not given.sum() > 0:
        raise ValueError(
            f"an average needs strategies and a weight of at least 0 for each, one above; got {len(strategies)} "
            f"strategies and weights {weights!r}"
        )
    sums: dict[Hashable, Probabilities] = {}
    own_K = np.ones((2, len(strategies)))
    todo = [(tree_of(game), own_K)]
    while todo:
        node, reach = todo.pop()
        if node.player < 0:
            todo.extend((child, reach) for child in node.children)
            continue
        play_KA = np.stack([strategy[node.infoset] for strategy in strategies])
        if node.infoset not in sums:
            sums[node.infoset] = (given * reach[node.player]) @ play_KA
        for action, child in zip(node.actions, node.children, strict=True):
            after = reach.copy()
            after[node.player] *= play_KA[:, action]
            todo.append((child, after))
    legal_of = {infoset: legal for infoset, (_, legal) in infosets(game).items()}
    return {
        infoset: total / total.sum() if total.sum() > 0 else _uniform(game, legal_of[infoset])
        for infoset, total in sums.items()
    }


def _weights(node: Node, strategy: Strategy, player: int) -> Sequence[float]:
    """With what probability each child follows, as far as the player itself has no say."""
    if node.player == CHANCE:
        return node.chances
    if node.player == player:
        return (1.0,) * len(node.children)
    if node.player == OVER:
        return ()
    play = strategy[node.infoset]
    return [float(play[action]) for action in node.actions]


def _uniform(game: Game, legal: Sequence[int]) -> Probabilities:
    found = np.zeros(game.num_actions)
    found[list(legal)] = 1 / len(legal)
    return found
