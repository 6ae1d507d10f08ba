"""Faults of environments with several agents: told, written down, outlived as a worker's options say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrl.errors import add_note
from flowrl.rl.crashes import Place, Way
from flowrl.rl.episodes import Play
from flowrl.rl.faults import Restarts
from flowrl.rl.located import Call, Fault
from flowrl.rl.wrappers import EnvOptions

if TYPE_CHECKING:
    from flowrl.rl.agents_env import AgentsEnv
    from flowrl.rl.agents_rollout import AgentsRollout
    from flowrl.rl.envs import EnvSource

OF_FAULTS = ("on_fault", "env_timeout_s", "crash_dir")


def check_agents_options(options: EnvOptions) -> None:
    """Nothing, if these options can be followed for environments of several agents.

    Raises:
        ValueError: one that is for environments of one agent.
    """
    plain = EnvOptions()
    for entry in fields(options):
        value = getattr(options, entry.name)
        if entry.name not in OF_FAULTS and value != getattr(plain, entry.name):
            raise ValueError(
                f"EnvOptions({entry.name}={value!r}) is for environments of one agent; those of several take only "
                f"{', '.join(OF_FAULTS)}, and wrappers in their factory"
            )


class AgentsFaults(Restarts):
    """The faults of a worker's environments of several agents; episodes know what was played in them."""

    def __init__(
        self,
        env: EnvSource,
        env_kwargs: Mapping[str, Any] | None,
        options: EnvOptions,
        index: int,
        count: int,
        num_envs: int,
        seeds: np.random.SeedSequence,
    ):
        place = Place(env, env_kwargs, options, index, count, num_envs, seeds.entropy, tuple(seeds.spawn_key))
        super().__init__(place)

    def tell(self, fault: Fault, play: Play | None) -> None:
        """Adds the seed to the error, and leaves a bundle."""
        if play is not None:
            add_note(fault.error, f"environment {fault.env} had the seed {play.seed}")
        self.write(fault, _way(play), self._place_of(fault))

    def _place_of(self, fault: Fault) -> Place:
        return replace(self.place, spawn_key=(*self.place.spawn_key, fault.env or 0))

    def hangs(self, rollout: AgentsRollout, call: Call) -> str:
        """Which environment hangs, and where; called from the watchdog's thread."""
        i, play = rollout.at, rollout.faulty
        told = TimeoutError(f"environment {i} did not come back from {call}")
        fault = Fault(told, "timeout", call, i, None if play is None else play.seed)
        self.write(fault, _way(play), self._place_of(fault))
        where = "" if play is None else f", seed {play.seed}, at step {play.steps} of its episode"
        return f"environment {i}{where}"


def _way(play: Play | None) -> Way:
    played = [] if play is None else play.played
    agents = [[[_plain(agent), np.asarray(action).tolist()] for agent, action in step.items()] for step in played]
    last = agents[-1] if agents else None
    return Way(np.zeros((0, 1)), step=0 if play is None else play.steps, action=last, agents=agents)


def _plain(agent: Any) -> Any:
    return agent if isinstance(agent, str | int) else repr(agent)


def close_all(envs: Sequence[AgentsEnv]) -> None:
    """Closes all environments, whatever the close of one raises; then raises the first such error."""
    failed: list[Exception] = []
    for i, env in enumerate(envs):
        try:
            env.close()
        except Exception as error:
            add_note(error, f"in close of environment {i}")
            failed.append(error)
    if failed:
        raise failed[0]
