# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Your own operator, your own loss
#
# An operator is a dataclass with a `process`; a loss is a callable. This notebook writes one of each, holds them to
# the rules before anything trains, puts them into a graph, and compares the result with what it came from.

# %% tags=["parameters"]
ROUNDS = 24  # of each training, 1,024 environment steps each

# %% [markdown]
# ## An operator
#
# Fields are configuration and never change. State is made in `open`, under underscore names. `process` yields none,
# one or several results for an item. This one looks at the fragments that workers send and adds a bonus for
# observations that were rarely met (a count-based bonus, as in arXiv:1611.04717): it cuts the observation into coarse
# cells and counts them.

# %%
from dataclasses import dataclass

import numpy as np

from flowrl import Batch, Operator


@dataclass
class RarityBonus(Operator[Batch, Batch]):
    """Adds scale / √(times this cell of the observation space was met) to each reward."""

    scale: float = 0.1
    cells: float = 4.0
    needs = frozenset({"obs", "rewards"})

    def open(self):
        self._met = {}

    def process(self, value, ctx):
        cells_TN = np.floor(value["obs"] * self.cells).astype(int)
        bonus_TN = np.zeros_like(value["rewards"])
        for at in np.ndindex(bonus_TN.shape):
            cell = tuple(cells_TN[at].tolist())
            self._met[cell] = self._met.get(cell, 0) + 1
            bonus_TN[at] = self.scale / np.sqrt(self._met[cell])
        ctx.metrics.mean("bonus", float(bonus_TN.mean()))
        ctx.metrics.last("cells", len(self._met))
        yield value.with_columns(rewards=value["rewards"] + bonus_TN)


# %% [markdown]
# `check_operator` holds it to the contract that every engine and backend relies on. One part of it is that a run can
# be saved and resumed at any item, so the state that `open` makes must be found in `get_state`; by default that is
# every underscore attribute.

# %%
from flowrl.testing import check_operator

rng = np.random.default_rng(0)
fragments = [
    Batch(
        {"obs": rng.normal(size=(3, 2, 4)).astype(np.float32), "rewards": np.ones((3, 2), np.float32)}, time_major=True
    )
    for _ in range(4)
]
check_operator(RarityBonus(), fragments)
print("keeps the contract")

# %% [markdown]
# A slip is told by name, with what to do. The commonest: `return` instead of `yield`.


# %%
@dataclass
class Returns(Operator[Batch, Batch]):
    def process(self, value, ctx):
        return value


try:
    check_operator(Returns(), fragments)
except (AssertionError, TypeError) as error:
    print(type(error).__name__, "·", error)

# %% [markdown]
# ## Where it runs
#
# Before the gather, each shard has a copy of its own: the counts are a worker's, and the work is done in the workers.
# Behind the gather there is one, on the driver, which then has to fetch every fragment. The drawing shows which it
# is.

# %%
import flowrl
from flowrl import Local, actor, actors
from flowrl.operators import AddAdvantages, ParallelRollouts, ReportMetrics, SendWeights, TrainOneStep
from flowrl.rl import Learner, PolicySpec, RolloutWorker
from flowrl.rl.losses import PPOLoss

spec = PolicySpec(hidden=(32, 32))


def training(loss, *between):
    """A small synchronous training on CartPole: operators of yours between rollouts and advantages."""
    workers = actors(RolloutWorker, "CartPole-v1", spec, steps=128, num_envs=8, count=1, name="workers")
    learner = actor(Learner, spec, loss, learning_rate=3e-3, name="learner")
    rollouts = ParallelRollouts(workers)
    for operator in between:
        rollouts = rollouts.for_each(operator)
    return (
        rollouts.for_each(AddAdvantages(discount=0.99, gae_lambda=0.9))
        .gather_sync()
        .for_each(TrainOneStep(learner, epochs=4, minibatch=256))
        .for_each(SendWeights(learner, to=workers))
        .for_each(ReportMetrics())
    )


training(PPOLoss(), RarityBonus())

# %% [markdown]
# `needs` is checked along the graph before anything starts. Here the column that is asked for is one that nobody
# adds:

# %%
from flowrl.errors import GraphError


@dataclass
class WantsDepth(RarityBonus):
    needs = frozenset({"depth"})


try:
    flowrl.run(training(PPOLoss(), WantsDepth()), Local())
except GraphError as error:
    print(error)

# %% [markdown]
# ## A loss
#
# A loss gets the policy, a batch of rows as tensors, and how far training is. `needs` are the columns that it reads.
# This is a plain policy gradient whose step is bounded by a penalty on how far the policy has moved (the
# adaptive-penalty variant of arXiv:1707.06347, equation 8, with a weight that rises over training): no clipping.

# %%
import torch

from flowrl.rl import LossOut


@dataclass(frozen=True)
class PenaltyLoss:
    """−mean(r·A) + β·mean(KL) + value_cost·mean((V − return)²), with β rising to `penalty` over `ramp_steps`."""

    penalty: float = 3.0
    ramp_steps: int = 20_000
    value_cost: float = 0.5
    needs = frozenset({"obs", "actions", "logp", "advantages", "returns"})

    def __call__(self, net, batch, now):
        out = net.forward(batch)
        advantages_B = batch["advantages"]
        advantages_B = (advantages_B - advantages_B.mean()) / (advantages_B.std() + 1e-8)
        log_ratio_B = out.dist.logp(batch["actions"]) - batch["logp"]
        gain = (log_ratio_B.exp() * advantages_B).mean()
        kl = (log_ratio_B.exp() - 1 - log_ratio_B).mean()  # an estimate that is never negative
        value_loss = (out.values - batch["returns"]).square().mean()
        beta = self.penalty * min(1.0, 0.1 + now.env_steps / self.ramp_steps)
        loss = -gain + beta * kl + self.value_cost * value_loss
        return LossOut(loss, metrics={"kl": kl.detach(), "value_loss": value_loss.detach(), "beta": beta})


# %% [markdown]
# Before it trains, ask what it cannot hide: its gradient where the policy has not moved yet. There the ratio is 1,
# the penalty is flat, and the gradient with respect to log π must be that of the policy gradient, −A/B.

# %%
from types import SimpleNamespace

logp_B = torch.tensor([-0.5, -1.0, -0.2], requires_grad=True)
advantages_B = torch.tensor([1.0, -2.0, 1.0])
rows = {"actions": None, "logp": logp_B.detach(), "advantages": advantages_B, "returns": torch.zeros(3)}
still = SimpleNamespace(dist=SimpleNamespace(logp=lambda actions: logp_B), values=torch.zeros(3))
out = PenaltyLoss()(SimpleNamespace(forward=lambda batch: still), rows, SimpleNamespace(env_steps=0, updates=0))
out.loss.backward()
standardized_B = (advantages_B - advantages_B.mean()) / (advantages_B.std() + 1e-8)
print("gradient:", logp_B.grad.numpy().round(4), " expected:", (-standardized_B / 3).numpy().round(4))
assert torch.allclose(logp_B.grad, -standardized_B / 3)

# %% [markdown]
# ## Side by side
#
# The same graph, seed and number of steps: PPO's loss, the penalty's, and PPO with the bonus.

# %%
import matplotlib.pyplot as plt

tried = {
    "PPO": training(PPOLoss()),
    "penalty": training(PenaltyLoss()),
    "PPO + rarity": training(PPOLoss(), RarityBonus()),
}
fig, axes = plt.subplots(figsize=(6, 2.6), layout="constrained")
newest = {}
for name, flow in tried.items():
    with flowrl.run(flow, Local(), seed=1) as run:
        summaries = run.step(ROUNDS)
    newest[name] = summaries[-1]
    axes.plot([s.env_steps for s in summaries], [s.episode_return_mean for s in summaries], label=name)
axes.set(xlabel="environment steps", ylabel="mean return", title="CartPole-v1, one seed each: no more than a look")
axes.legend()
plt.show()

# %% [markdown]
# Metrics of a loss and of an operator arrive in each Summary, under the policy and under the node. Returns are
# reported as the environment gave them: the bonus is not in them.

# %%
print(
    "penalty:",
    {name: round(value, 4) for name, value in newest["penalty"].learner["default"].items() if name in ("kl", "beta")},
)
print("rarity:", newest["PPO + rarity"].nodes["RarityBonus"])

# %% [markdown]
# An operator can also message the actors that an item came from (`ctx.origins`), hold items back (`ctx.emit`), or ask
# an actor once an item (`AskOperator`): [operators/README.md](../operators/README.md) has them on a page.
#
# Next: [what to do when it does not work](05_debugging_a_graph.ipynb).
