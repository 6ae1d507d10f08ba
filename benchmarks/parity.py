"""PPO's loss, gradient and training steps against Stable-Baselines3's own code, on one batch with the same weights.

    pip install stable-baselines3
    python benchmarks/parity.py [--rows 512]

For Discrete, Box, MultiDiscrete and MultiBinary actions, with and without value clipping and an entropy bonus. SB3's
gradient is what `PPO.train` of one full-batch epoch subtracts from its weights under plain gradient descent of step
size 1; its loss and diagnostics are what it logs. Then both train ten full-batch epochs with Adam and clipped gradients
from the same weights. Fails where loss or gradient differ by more than 1e-6 (a float32 weight of 1 is known to 6e-8).
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger

from flowrl import Batch
from flowrl.rl import Learner, PolicySpec
from flowrl.rl.losses import PPOLoss
from flowrl.rl.spec import Spaces

TOLERANCE = 1e-6
OBSERVATION = Box(-np.inf, np.inf, (5,), np.float32)
ACTIONS = {
    "Discrete": Discrete(4),
    "Box": Box(-1.0, 1.0, (3,), np.float32),
    "MultiDiscrete": MultiDiscrete([3, 2, 4]),
    "MultiBinary": MultiBinary(4),
}
LOSSES = {
    "plain": PPOLoss(0.2, 0.5, 0.0),
    "entropy": PPOLoss(0.1, 0.7, 0.02),
    "value clipping": PPOLoss(0.2, 0.5, 0.01, clip_value=0.3),
}
LOGGED = {
    "policy_gradient_loss": ("policy_loss", 1),
    "value_loss": ("value_loss", 1),
    "entropy_loss": ("entropy", -1),
    "approx_kl": ("kl", 1),
    "clip_fraction": ("clip_fraction", 1),
}


class Spaced(gymnasium.Env[Any, Any]):
    """An environment that is only asked for its spaces."""

    observation_space = OBSERVATION

    def __init__(self, action_space: Any):
        self.action_space = action_space


def sb3_learner(action: Any, loss: PPOLoss, rows: int, **settings: Any) -> PPO:
    """SB3's PPO for full-batch updates, with weights that let probabilities and values differ from the batch's."""
    made = PPO(
        "MlpPolicy",
        Spaced(action),
        n_steps=rows,
        batch_size=rows,
        clip_range=loss.clip,
        clip_range_vf=loss.clip_value,
        ent_coef=loss.entropy_cost,
        vf_coef=loss.value_cost,
        seed=0,
        device="cpu",
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}},
        **settings,
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.policy.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    made.set_logger(Logger(folder=None, output_formats=[]))
    return made


def flat(model: PPO) -> np.ndarray[Any, np.dtype[np.float32]]:
    """SB3's weights in flowrl's order: actor, its log standard deviations, critic."""
    policy = model.policy
    extractor = policy.mlp_extractor
    parts = [*extractor.policy_net.parameters(), *policy.action_net.parameters()]
    parts += [policy.log_std] if hasattr(policy, "log_std") else []
    parts += [*extractor.value_net.parameters(), *policy.value_net.parameters()]
    return torch.cat([part.detach().reshape(-1) for part in parts]).numpy().copy()


def batch_for(action: Any, rows: int) -> Batch:
    """One fixed batch of drawn numbers, still without log-probabilities."""
    rng = np.random.default_rng(2)
    action.seed(3)
    drawn = np.stack([np.asarray(action.sample()) for _ in range(rows)])
    actions = rng.normal(size=drawn.shape) if isinstance(action, Box) else drawn
    return Batch(
        {
            "obs": rng.normal(size=(rows, 5)).astype(np.float32),
            "actions": actions.astype(np.float32 if isinstance(action, Box) else drawn.dtype),
            "advantages": rng.normal(1.0, 2.0, size=rows).astype(np.float32),
            "returns": rng.normal(size=rows).astype(np.float32),
            "values": rng.normal(size=rows).astype(np.float32),
        }
    )


def with_logp(batch: Batch, model: PPO) -> Batch:
    """The batch with log-probabilities somewhat off the policy's, so that some ratios are clipped."""
    with torch.no_grad():
        _, logp, _ = model.policy.evaluate_actions(torch.tensor(batch["obs"]), torch.tensor(batch["actions"]).float())
    noise = np.random.default_rng(4).normal(0.0, 0.15, size=batch.rows)
    return batch.with_columns(logp=(logp.numpy() + noise).astype(np.float32))


def fill(model: PPO, batch: Batch) -> None:
    """Puts the batch into SB3's rollout buffer, as if it had been collected."""
    buffer = model.rollout_buffer
    buffer.reset()
    columns = {"observations": "obs", "log_probs": "logp"}
    columns |= {name: name for name in ("actions", "advantages", "returns", "values")}
    for theirs, ours in columns.items():
        target = getattr(buffer, theirs)
        target[...] = batch[ours].reshape(target.shape)
    buffer.full, buffer.pos = True, batch.rows


def learner_for(action: Any, loss: PPOLoss, weights: Any, **settings: Any) -> Learner:
    """flowrl's learner with the same weights."""
    made = Learner(PolicySpec(), loss, seed=0, **settings)
    made.build({"default": Spaces(OBSERVATION, action)})
    made.policy.set_weights(weights)
    return made


def compare(action: Any, loss: PPOLoss, rows: int) -> dict[str, float]:
    """The largest differences in loss and diagnostics, gradient, and the weights after ten epochs."""
    model = sb3_learner(action, loss, rows, learning_rate=1.0, n_epochs=1, max_grad_norm=1e9)
    model.policy.optimizer = torch.optim.SGD(model.policy.parameters(), lr=1.0)
    batch, before = with_logp(batch_for(action, rows), model), flat(model)
    fill(model, batch)
    model.train()
    theirs = before - flat(model)
    logged = {name.removeprefix("train/"): value for name, value in model.logger.name_to_value.items()}
    answer = learner_for(action, loss, before).compute_gradients(batch)
    ours = {name: value for (_, name), value in answer.metrics.items()}
    total = ours["policy_loss"] + loss.value_cost * ours["value_loss"] - loss.entropy_cost * ours["entropy"]
    losses = [abs(total - logged["loss"])]
    losses += [abs(ours[mine] * sign - logged[name]) for name, (mine, sign) in LOGGED.items()]
    return {
        "clip fraction": ours["clip_fraction"],
        "gradient norm": float(np.linalg.norm(theirs)),
        "loss": max(losses),
        "gradient": float(np.abs(answer.payload - theirs).max()),
        "weights after 10 epochs": after_training(action, loss, batch),
    }


def after_training(action: Any, loss: PPOLoss, batch: Batch) -> float:
    """The largest difference between the weights after ten epochs with Adam."""
    settings = {"learning_rate": 1e-3, "max_grad_norm": 0.5}
    model = sb3_learner(action, loss, batch.rows, n_epochs=10, **settings)
    made = learner_for(action, loss, flat(model), **settings)
    fill(model, batch)
    model.train()
    made.train(batch, epochs=10)
    return float(np.abs(made.policy.get_weights() - flat(model)).max())


def main() -> None:
    """Prints a line a combination and fails where one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=512)
    rows = parser.parse_args().rows
    print(f"stable-baselines3 {stable_baselines3.__version__}, torch {torch.__version__}, {rows} rows; differences")
    failed = []
    for space, action in ACTIONS.items():
        for name, loss in LOSSES.items():
            found = compare(action, loss, rows)
            print(
                f"{space:14} {name:15}", *(f"{key} {value:.2g}" for key, value in found.items()), sep="  ", flush=True
            )
            if not max(found["loss"], found["gradient"]) <= TOLERANCE:
                failed.append(f"{space} with {name}")
    if failed:
        raise SystemExit(f"differs by more than {TOLERANCE}: {', '.join(failed)}")


if __name__ == "__main__":
    main()
