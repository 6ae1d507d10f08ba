"""A game as a tree, made once a game, and what its players can know."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from flowrl.rl.games.game import CHANCE, OVER, Game, State

MOST_NODES = 100_000


class Node:
    """One situation in the tree.

    player: who moves, CHANCE or OVER. actions: which lead to `children`; of chance none, but `chances`, their
    probabilities. infoset: what the player to move knows. gain: player 0's, at the end.
    """

    __slots__ = ("actions", "chances", "children", "gain", "infoset", "player", "state")

    def __init__(self, state: State):
        self.state, self.player = state, state.player
        self.gain = state.gain() if self.player == OVER else 0.0
        self.infoset: Hashable = state.infoset() if self.player >= 0 else None
        self.actions: tuple[int, ...] = ()
        self.chances: tuple[float, ...] = ()
        self.children: tuple[Node, ...] = ()

    def walk(self) -> Iterator[Node]:
        """This node and all below, a node before those below it."""
        todo = [self]
        while todo:
            node = todo.pop()
            yield node
            todo.extend(node.children)


@lru_cache(8)
def tree_of(game: Game) -> Node:
    """The root of a game's tree.

    Raises:
        ValueError: it has more than 100,000 nodes.
    """
    root = Node(game.initial())
    todo, count = [root], 1
    while todo:
        node = todo.pop()
        if node.player == CHANCE:
            found = node.state.chances()
            node.chances = tuple(probability for probability, _ in found)
            node.children = tuple(Node(state) for _, state in found)
        elif node.player != OVER:
            node.actions = tuple(node.state.legal())
            node.children = tuple(Node(node.state.play(action)) for action in node.actions)
        count += len(node.children)
        if count > MOST_NODES:
            raise ValueError(f"{game} has more than {MOST_NODES:,} situations and cannot be solved exactly")
        todo.extend(node.children)
    return root


def infosets(game: Game) -> dict[Hashable, tuple[npt.NDArray[np.float32], tuple[int, ...]]]:
    """By what a player to move knows: its observation (obs_size,) and its legal actions."""
    found: dict[Hashable, tuple[npt.NDArray[np.float32], tuple[int, ...]]] = {}
    for node in tree_of(game).walk():
        if node.player >= 0 and node.infoset not in found:
            found[node.infoset] = node.state.observation(), node.actions
    return found
