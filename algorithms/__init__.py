"""The algorithms, a module each: a frozen config, `learn` (the tail that mixes reuse) and `graph`."""

from __future__ import annotations

from typing import TYPE_CHECKING

# The folder is a package of flowrl through a symbolic link; under its bare name every class in it would exist twice.
if __name__ != "flowrl.algorithms":
    raise ImportError(f"{__name__!r} is not a package of its own: use `import flowrl.algorithms`", name=__name__)

from flowrl.lazy import lazy_names

if TYPE_CHECKING:
    from flowrl.algorithms import apex, ddpg, dqn, ppo, ppo_and_dqn, r2d2, sac, td3
    from flowrl.algorithms.apex import ApexConfig
    from flowrl.algorithms.ddpg import DDPGConfig
    from flowrl.algorithms.dqn import DQNConfig
    from flowrl.algorithms.ppo import PPOConfig
    from flowrl.algorithms.ppo_and_dqn import PPOAndDQNConfig
    from flowrl.algorithms.r2d2 import R2D2Config
    from flowrl.algorithms.sac import SACConfig
    from flowrl.algorithms.td3 import TD3Config
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "apex": ("ApexConfig",),
            "ddpg": ("DDPGConfig",),
            "dqn": ("DQNConfig",),
            "ppo": ("PPOConfig",),
            "ppo_and_dqn": ("PPOAndDQNConfig",),
            "r2d2": ("R2D2Config",),
            "sac": ("SACConfig",),
            "td3": ("TD3Config",),
        },
        modules=("apex", "ddpg", "dqn", "ppo", "ppo_and_dqn", "r2d2", "sac", "td3"),
    )

# What `flowrl train NAME` and `flowrl.train("name")` know: a config class by the algorithm's name.
CONFIGS = {
    "apex": "ApexConfig",
    "ddpg": "DDPGConfig",
    "dqn": "DQNConfig",
    "ppo": "PPOConfig",
    "ppo_and_dqn": "PPOAndDQNConfig",
    "r2d2": "R2D2Config",
    "sac": "SACConfig",
    "td3": "TD3Config",
}

__all__ = [
    "ApexConfig",
    "DDPGConfig",
    "DQNConfig",
    "PPOAndDQNConfig",
    "PPOConfig",
    "R2D2Config",
    "SACConfig",
    "TD3Config",
    "apex",
    "ddpg",
    "dqn",
    "ppo",
    "ppo_and_dqn",
    "r2d2",
    "sac",
    "td3",
]
