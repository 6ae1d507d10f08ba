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
# # A first graph
#
# In flowrl an algorithm is a **graph**: a chain of operators that items flow through. You compose it, look at it, and
# only then run it, here in this process or on Ray. This notebook goes from four operators on numbers to PPO, which it
# writes down, draws, steps, trains in the background, and runs on Ray with the same numbers.

# %% tags=["parameters"]
ROUNDS = 24  # of PPO in the background, 2,048 environment steps each; the pole stands after some 30

# %% [markdown]
# ## Items through operators
#
# `from_items` deals items to *shards*, as cards to players. What is chained before the *gather* runs inside the
# shards, what is chained behind it runs on the driver: here.

# %%
import flowrl
from flowrl import Local


def square(x):
    return x * x


squares = flowrl.from_items(range(6), num_shards=2).for_each(square).gather_sync().batch(2)
squares

# %% [markdown]
# A flow shows itself as a drawing. The frame is what runs in the shards. Nothing runs yet: the graph is a
# description, and it can be run as often as you like. `Local()` runs it in this process.

# %%
for _ in range(2):
    with flowrl.run(squares, Local()) as run:
        print(list(run))

# %% [markdown]
# `gather_sync` takes one item of each shard in turn, so the order is the same each time. `explain()` is the drawing
# as text, and says what the drawing cannot: how far anything may run ahead, and whether timing can change the
# numbers.

# %%
print(squares.explain())

# %% [markdown]
# ## PPO is a chain, too
#
# Two rollout workers with eight copies of CartPole each are the shards, a learner is one more actor. The experience
# goes from the workers to the learner; the driver sees counts and metrics pass.

# %%
from flowrl import actor, actors
from flowrl.operators import (
    AddAdvantages,
    ConcatBatches,
    ParallelRollouts,
    ReportMetrics,
    SendWeights,
    TrainOneStep,
)
from flowrl.rl import Learner, PolicySpec, RolloutWorker
from flowrl.rl.losses import PPOLoss

workers = actors(RolloutWorker, "CartPole-v1", PolicySpec(), steps=128, num_envs=8, count=2, name="workers")
learner = actor(Learner, PolicySpec(), PPOLoss(clip=0.2), learning_rate=4e-3, name="learner")

ppo = (
    ParallelRollouts(workers)  # fragments of 128 steps × 8 copies
    .for_each(AddAdvantages(discount=0.99, gae_lambda=0.9))  # on the shards
    .gather_sync()
    .for_each(ConcatBatches(min_steps=1900))  # one fragment of each worker
    .for_each(TrainOneStep(learner, epochs=8, minibatch=512))
    .for_each(SendWeights(learner, to=workers))
    .for_each(ReportMetrics())
)
ppo

# %% [markdown]
# The dotted lines lead to the actors that an operator asks or holds. `check()` sends one item through the graph, with
# one actor of each group, and tells what passes each edge. It finds a missing column or a wrong shape before a long
# run does.

# %%
print(ppo.check())

# %% [markdown]
# ## Step by step
#
# A run is an iterator with a few more methods. `step` moves it on by items; between two of them it rests, and you can
# look around.

# %%
run = flowrl.run(ppo, Local(), seed=0)
[first] = run.step()
print(
    f"{first.env_steps:,} steps, mean return {first.episode_return_mean:.1f}, KL {first.learner['default']['kl']:.4f}"
)

# %% [markdown]
# `stats()` says where the time went, node by node, and what limits the run.

# %%
print(run.stats())

# %% [markdown]
# ## In the background
#
# `background()` moves the run on in a thread while you use other cells. The handle that it gives shows itself as a
# table that is drawn anew as long as the run moves. Interrupt a cell that waits or steps, and the run pauses between
# two items: nothing is lost, and it can go on.

# %%
history = []
run.close()
run = flowrl.run(ppo.tap(history.append), Local(), seed=0)
handle = run.background()
handle

# %% [markdown]
# `tap` looks at each item as it passes. The next cell waits until so many have come, then pauses the run.

# %%
handle.wait(ROUNDS)
handle.pause()
print(f"{handle.state} after {history[-1].env_steps:,} steps")

# %%
import matplotlib.pyplot as plt

fig, axes = plt.subplots(figsize=(6, 2.5), layout="constrained")
axes.plot([summary.env_steps for summary in history], [summary.episode_return_mean for summary in history])
axes.set(xlabel="environment steps", ylabel="mean return", title="PPO on CartPole-v1, newest 100 episodes")
plt.show()

# %% [markdown]
# While it rests, the newest policy can be tried on environments of its own, and any actor can be asked something.

# %%
print(run.evaluate(episodes=10))
print("the pole falls to the right, so push:", run.policy().act([0.0, 0.0, 0.05, 0.8], deterministic=True))
print(run.actors["workers"][1].ask("set_epsilon", 0.1).result())  # one worker explores more from here on
handle.resume()
handle.wait(handle.count + 1)
run.close()

# %% [markdown]
# ## The same on Ray
#
# `Ray()` is the backend where none is named. It joins a Ray that runs already, or starts one and leaves it up for the
# next run. Each worker and the learner is then a process. This graph is deterministic, so one seed gives the same
# numbers, bit for bit.

# %% tags=["ray"]
from flowrl import Ray


def learned_in(backend, rounds=2):
    with flowrl.run(ppo, backend, seed=7) as run:
        return [summary.learner["default"] for summary in run.step(rounds)]


here, there = learned_in(Local()), learned_in(Ray())
print("the same, bit for bit:", here == there)

# %% [markdown]
# ## Prebuilt
#
# Most of the time you need none of this: `flowrl.train` trains a prebuilt algorithm to a goal.
# `PPOConfig(...).graph()` is the chain above.

# %%
from flowrl.algorithms import PPOConfig

result = flowrl.train(PPOConfig(env="CartPole-v1"), total_steps=2048 * min(ROUNDS, 4), backend=Local(), seed=0)
print(result.reason, f"after {result.history[-1].env_steps:,} steps;", result.policy)

# %% [markdown]
# Next: [two algorithms in one environment](02_ppo_and_dqn_mix.ipynb).
