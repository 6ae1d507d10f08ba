"""The algorithms, a module each: a frozen config, `learn` (the tail that mixes reuse) and `graph`."""

from __future__ import annotations

from typing import TYPE_CHECKING

# The folder is a package of flowrl through a symbolic link; under its bare name every class in it would exist twice.
if __name__ != "flowrl.algorithms":
    raise ImportError(f"{__name__!r} is not a package of its own: use `import flowrl.algorithms`", name=__name__)

from flowrl.lazy import lazy_names

if TYPE_CHECKING:
    from flowrl.algorithms import ppo
    from flowrl.algorithms.ppo import PPOConfig
else:
    __getattr__, __dir__ = lazy_names(__name__, {"ppo": ("PPOConfig",)}, modules=("ppo",))

# What `flowrl train NAME` and `flowrl.train("name")` know: a config class by the algorithm's name.
CONFIGS = {"ppo": "PPOConfig"}

__all__ = ["PPOConfig", "ppo"]
