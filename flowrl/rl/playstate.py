"""Episodes under way of several agents as bytes, so that a resumed worker goes on in the middle of them."""

from __future__ import annotations

import cloudpickle

from flowrl.checkpoint import Pickled
from flowrl.rl.agents_rollout import AgentsRollout
from flowrl.rl.envstate import forgets


def freeze_plays(rollout: AgentsRollout) -> Pickled | None:
    """Environments, episodes and transitions under way, or None where the environments cannot be pickled."""
    if any(forgets(env) for env in rollout.envs):
        return None
    rows = {name: role.rows for name, role in rollout.roles.items()}
    try:  # together, for the transitions refer to one another
        return Pickled(cloudpickle.dumps((rollout.envs, rollout.plays, rollout.late, rows)))
    except Exception:  # whatever an environment of somebody else's raises
        return None


def thaw_plays(rollout: AgentsRollout, frozen: Pickled | None) -> bool:
    """Puts them in place of those of `rollout`, whose environments are closed; whether it could."""
    if frozen is None or frozen.payload is None:
        return False
    envs, plays, late, rows = cloudpickle.loads(frozen.payload)
    for env in rollout.envs:
        env.close()
    rollout.envs = envs
    rollout.take_up(plays, late)
    for name, role in rollout.roles.items():
        role.rows = rows[name]
    return True
