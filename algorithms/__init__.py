"""The algorithms, a module each: a frozen config, `learn` (the tail that mixes reuse) and `graph`."""

from __future__ import annotations

from typing import TYPE_CHECKING

# The folder is a package of flowrl through a symbolic link; under its bare name every class in it would exist twice.
if __name__ != "flowrl.algorithms":
    raise ImportError(f"{__name__!r} is not a package of its own: use `import flowrl.algorithms`", name=__name__)

from flowrl.lazy import lazy_names

if TYPE_CHECKING:
    from flowrl.algorithms import (
        a2c,
        a3c,
        apex,
        appo,
        ddpg,
        ddppo,
        dqn,
        impala,
        league_play,
        maddpg,
        multi_agent_ppo,
        ppo,
        ppo_and_dqn,
        qmix,
        r2d2,
        sac,
        td3,
    )
    from flowrl.algorithms.a2c import A2CConfig
    from flowrl.algorithms.a3c import A3CConfig
    from flowrl.algorithms.apex import ApexConfig
    from flowrl.algorithms.appo import APPOConfig
    from flowrl.algorithms.ddpg import DDPGConfig
    from flowrl.algorithms.ddppo import DDPPOConfig
    from flowrl.algorithms.dqn import DQNConfig
    from flowrl.algorithms.impala import IMPALAConfig
    from flowrl.algorithms.league_play import LeaguePlayConfig
    from flowrl.algorithms.maddpg import MADDPGConfig
    from flowrl.algorithms.multi_agent_ppo import MultiAgentPPOConfig
    from flowrl.algorithms.ppo import PPOConfig
    from flowrl.algorithms.ppo_and_dqn import PPOAndDQNConfig
    from flowrl.algorithms.qmix import QMIXConfig
    from flowrl.algorithms.r2d2 import R2D2Config
    from flowrl.algorithms.sac import SACConfig
    from flowrl.algorithms.td3 import TD3Config
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "a2c": ("A2CConfig",),
            "a3c": ("A3CConfig",),
            "apex": ("ApexConfig",),
            "appo": ("APPOConfig",),
            "ddpg": ("DDPGConfig",),
            "ddppo": ("DDPPOConfig",),
            "dqn": ("DQNConfig",),
            "impala": ("IMPALAConfig",),
            "league_play": ("LeaguePlayConfig",),
            "maddpg": ("MADDPGConfig",),
            "multi_agent_ppo": ("MultiAgentPPOConfig",),
            "ppo": ("PPOConfig",),
            "ppo_and_dqn": ("PPOAndDQNConfig",),
            "qmix": ("QMIXConfig",),
            "r2d2": ("R2D2Config",),
            "sac": ("SACConfig",),
            "td3": ("TD3Config",),
        },
        modules=(
            "a2c",
            "a3c",
            "apex",
            "appo",
            "ddpg",
            "ddppo",
            "dqn",
            "impala",
            "league_play",
            "maddpg",
            "multi_agent_ppo",
            "ppo",
            "ppo_and_dqn",
            "qmix",
            "qmix",
            "r2d2",
            "sac",
            "td3",
        ),
    )

# What `flowrl train NAME` and `flowrl.train("name")` know: a config class by the algorithm's name.
CONFIGS = {
    "a2c": "A2CConfig",
    "a3c": "A3CConfig",
    "apex": "ApexConfig",
    "appo": "APPOConfig",
    "ddpg": "DDPGConfig",
    "ddppo": "DDPPOConfig",
    "dqn": "DQNConfig",
    "impala": "IMPALAConfig",
    "league_play": "LeaguePlayConfig",
    "maddpg": "MADDPGConfig",
    "multi_agent_ppo": "MultiAgentPPOConfig",
    "ppo": "PPOConfig",
    "ppo_and_dqn": "PPOAndDQNConfig",
    "qmix": "QMIXConfig",
    "r2d2": "R2D2Config",
    "sac": "SACConfig",
    "td3": "TD3Config",
}

__all__ = [
    "A2CConfig",
    "A3CConfig",
    "APPOConfig",
    "ApexConfig",
    "DDPGConfig",
    "DDPPOConfig",
    "DQNConfig",
    "IMPALAConfig",
    "LeaguePlayConfig",
    "MADDPGConfig",
    "MultiAgentPPOConfig",
    "PPOAndDQNConfig",
    "PPOConfig",
    "QMIXConfig",
    "R2D2Config",
    "SACConfig",
    "TD3Config",
    "a2c",
    "a3c",
    "apex",
    "appo",
    "ddpg",
    "ddppo",
    "dqn",
    "impala",
    "league_play",
    "maddpg",
    "multi_agent_ppo",
    "ppo",
    "ppo_and_dqn",
    "qmix",
    "r2d2",
    "sac",
    "td3",
]
