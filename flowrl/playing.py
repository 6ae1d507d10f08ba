"""Evaluations of what was saved: whole episodes, on the environments of the training or on others."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import flowrl
from flowrl.configs import config_from_json
from flowrl.continuing import start_of
from flowrl.errors import CheckpointError
from flowrl.graph import groups_of
from flowrl.records import RUN


def evaluate_saved(
    path: str | os.PathLike[str],
    *,
    episodes: int = 20,
    policy: str | None = None,
    env: Any = None,
    seed: int = 0,
    deterministic: bool = True,
    trust_names: bool = False,
) -> Any:
    """An `Evaluation` of the policy in a checkpoint, or in the `out` of a training.

    policy: whose, where there are several; in an environment of several agents all play, and none is named. env:
    another environment than that of the training. trust_names: whether what the settings name is imported.

    Raises:
        CheckpointError: it is damaged, says nothing of the environment, or names what is not trusted.
        LookupError: there are several policies, and none is named. FileNotFoundError: nothing was saved there.
    """
    config = _config(path, trust_names, env)
    if getattr(config, "several_agents", False):
        if policy is not None:
            raise CheckpointError(
                f"policy={policy!r} cannot play alone what {path} was trained in: all agents of the environment play, "
                "each with its own policy; leave it out (--policy), or take it by flowrl.load_policy(path, name=...)"
            )
        return _together(config, path, episodes, seed, deterministic)
    from flowrl import rl

    model = None if config is None else config.policy.model
    loaded = flowrl.load_policy(path, name=policy, model=model)
    if config is None and env is None:
        raise CheckpointError(f"{path} does not say which environment its policy plays; name one (env=, --env)")
    more = {} if config is None else {"env_kwargs": config.env_kwargs, "env_options": config.env_options}
    played = config.env if env is None else env
    evaluator = rl.Evaluator(played, loaded.spec, num_envs=min(4, episodes), seed=seed, **more)
    weights = loaded.acting_weights()
    try:
        return evaluator.evaluate(episodes, deterministic=deterministic, weights=weights).payload
    except ValueError:
        _check_plays(path, loaded.spaces, played, more)
        raise


def _together(config: Any, path: str | os.PathLike[str], episodes: int, seed: int, deterministic: bool) -> Any:
    """All agents of an environment with several play, each with its own policy, as in the training."""
    groups = groups_of(config.graph().node).values()
    group = next(group for group in groups if hasattr(group.actor_class, "evaluate"))
    given = {"index": 0, "count": 1, "seed": seed, "incarnation": 0}
    worker = group.cls(*group.args, **group.kwargs, **{name: given[name] for name in group.open_parameters()})
    try:
        for name, spec in worker.policies.items():
            loaded = flowrl.load_policy(path, name=name, model=spec.model)
            worker.set_weights(loaded.acting_weights(), 1, policy=name)
        return worker.evaluate(episodes, deterministic=deterministic).payload
    finally:
        worker.close()


def _check_plays(path: str | os.PathLike[str], own: Any, env: Any, more: Mapping[str, Any]) -> None:
    """Refuses an environment whose spaces are not those of the policy."""
    from flowrl.rl.envs import env_spaces

    options = {"options": more["env_options"]} if "env_options" in more else {}
    its = env_spaces(env, more.get("env_kwargs"), **options)
    if (_form(its.observation), _form(its.action)) != (_form(own.observation), _form(own.action)):
        raise CheckpointError(
            f"the policy in {path} observes {own.observation} and acts in {own.action}, but environment {env!r} has "
            f"{its.observation} and {its.action}; name one that it can play (env=, --env)"
        )


def _form(space: Any) -> tuple[Any, ...]:
    return type(space), space.shape, getattr(space, "n", None)


def _config(path: str | os.PathLike[str], trust_names: bool, env: Any) -> Any:
    """The config of the training, with the environment that the user names; None where nothing says it."""
    said, place = _recipe(path)
    if said is None:
        return None
    if env is not None:
        said = {**said, "fields": {name: value for name, value in said["fields"].items() if name != "env"}}
    config = config_from_json(said, place, trust_names=trust_names)
    return config if env is None else replace(config, env=env)


def _recipe(path: str | os.PathLike[str]) -> tuple[Any, str]:
    """The settings as JSON, and where they stand."""
    from flowrl.training import config_of

    try:
        start = start_of(path)
        algorithm, said, place = start.algorithm, start.config, start.path
    except CheckpointError:
        if "://" in os.fspath(path):
            return None, ""
        runs = [folder / RUN for folder in (Path(path), Path(path).parent) if (folder / RUN).is_file()]
        if not runs:
            return None, ""
        place = str(runs[0])
        try:
            recipe = json.loads(runs[0].read_text(encoding="utf-8")).get("recipe") or {}
            algorithm, said = recipe.get("algorithm"), recipe.get("config")
        except (AttributeError, ValueError) as error:
            raise CheckpointError(f"{place} is damaged: {error}") from error
    if algorithm is None:
        return None, place
    config_of(algorithm)  # imports its module, and flowrl.rl with it
    return said, place
