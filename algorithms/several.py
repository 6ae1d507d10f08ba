"""What algorithms of several agents have in common: which settings are theirs, and who the agents are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from flowrl.algorithms.collecting import CollectingConfig
from flowrl.rl.envs import make_agents_env

# What an algorithm of several agents says itself, of environments and workers; its inner configs must leave it alone.
OF_THE_MIX = frozenset(entry.name for entry in fields(CollectingConfig)) - {
    "policy",
    "on_learner_failure",
    "snapshot_every",
    "learner_timeout_s",
}


def check_fixed(cfg: Any, whole: str = "a mix") -> None:
    """Nothing, if the inner configs leave alone what is the outer's (`fixed_inside`).

    Raises:
        ValueError: one does not; names the field.
    """
    for name, fixed in cfg.fixed_inside.items():
        config = getattr(cfg, name)
        plain = type(config)()
        for entry in sorted(fixed):
            if getattr(config, entry) != getattr(plain, entry):
                raise ValueError(
                    f"{name}.{entry}={getattr(config, entry)!r} has no part in {whole}: environments and workers are "
                    f"the {whole.split()[-1]}'s own"
                )


def names_of(env: Any, env_kwargs: Mapping[str, Any] | None) -> dict[Any, str]:
    """The possible agents of an environment, of which one is made to be asked, and their names as policies' ids.

    Raises:
        ValueError: two agents have one name.
    """
    made = make_agents_env(env, env_kwargs)
    try:
        names = {agent: str(agent) for agent in made.possible}
    finally:
        made.close()
    if len(set(names.values())) != len(names):
        raise ValueError(f"the agents {tuple(names)} of {env!r} do not have different names, as policies need them")
    return names


@dataclass(frozen=True)
class OfItsName:
    """A policy_of by which each agent plays the policy of its own name."""

    def __call__(self, agent: Any, episode: Any) -> str:
        """The agent's name."""
        return str(agent)
