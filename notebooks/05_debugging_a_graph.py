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
# # When it does not work
#
# What a plain loop gives you (a debugger that stops where you say, a traceback that ends in your file, a look at
# anything between two steps) a graph gives as well: on `Local()` everything runs in this process. This notebook
# breaks things on purpose: a shape, an operator, an environment, and the speed.

# %% tags=["parameters"]
ITEMS = 40  # that the slow graph at the end is measured over

# %% [markdown]
# ## Before it runs
#
# `check()` sends one item through and says what came out of each node. A shape that is not what you meant is seen
# here.

# %%
import numpy as np

import flowrl
from flowrl import Local, actors
from flowrl.operators import ParallelRollouts
from flowrl.rl import EnvOptions, RolloutWorker

one_by_one = EnvOptions(vector="sync")  # the copies of an environment can be looked into one by one
workers = actors(RolloutWorker, "CartPole-v1", steps=16, num_envs=4, env_options=one_by_one, count=2, name="workers")


def mean_tilt(batch):
    return float(np.abs(batch["obs"][..., 2]).mean())


flow = ParallelRollouts(workers).for_each(mean_tilt).gather_sync()
print(flow.check())

# %% [markdown]
# ## A look at what passes
#
# `tap` sees each item on its way and changes nothing. On an edge in the middle of a graph it is the quickest way to
# know.

# %%
seen = []
with flowrl.run(flow.tap(seen.append).batch(2), Local(), seed=0) as run:
    print(run.step(2))
print("passed the tap:", seen)

# %% [markdown]
# Between two steps a run rests, and any actor can be asked anything: a function that you send is called with the
# actor's own object.

# %%
with flowrl.run(flow, Local(), seed=0) as run:
    run.step(2)
    for worker in run.actors["workers"]:
        state = worker.ask("get_state").result()
        print(worker, "version", state["version"], "weights", state["weights"].shape)
    print(run.actors["workers"][0].ask("each_env", lambda env: round(float(env.state[2]), 3)).result())

# %% [markdown]
# ## Breakpoints
#
# `breakpoint()` works in an operator, a loss, an environment or a model, in a shard as well as on the driver: with
# `Local()` all of it is this process. In your own cell write `breakpoint()` and type below the cell. This notebook
# has to run by itself, so the debugger reads its commands from a string.

# %%
import io
import pdb
import sys


def debugger(*commands):
    """pdb, which is given these commands in place of a keyboard's."""
    return pdb.Pdb(stdin=io.StringIO("\n".join([*commands, ""])), stdout=sys.stdout, nosigint=True)


def halved(x):
    half = x // 2
    if 2 * half != x:
        debugger("p x, half", "continue").set_trace()
    return half


with flowrl.run(flowrl.from_items([2, 4, 7, 8], num_shards=2).for_each(halved).gather_sync(), Local()) as run:
    print(list(run))

# %% [markdown]
# A debugger of your editor stops there too. (Without isolation, `Local(isolate=False)`, items are not even copied
# between the actors.)
#
# ## An operator that fails
#
# The exception that you get is the one that was raised, with its own type, and a note says where in the graph it was:
# the node, the line that put it there, the path from the source, the item and the shard.


# %%
def reciprocal(x):
    return 1 / x


try:
    with flowrl.run(flowrl.from_items([4, 2, 0, 1], num_shards=2).for_each(reciprocal).gather_sync(), Local()) as run:
        for item in run:
            print(item)
except ZeroDivisionError as error:
    failed = error
    print(*error.__notes__, sep="\n")

# %% [markdown]
# ## An environment that fails
#
# Here is one with a mistake: it drifts, and past a certain place it looks up a row of a table that is not there. That
# happens once in a while, in one copy of many, in an actor.

# %%
import gymnasium
from gymnasium.spaces import Box, Discrete


class Terrain(gymnasium.Env):
    """A walk over a strip of 24 heights."""

    observation_space = Box(-10.0, 10.0, (1,))
    action_space = Discrete(2)
    heights = np.linspace(0, 1, 24)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 12, 0
        return self._look(), {}

    def step(self, action):
        self.place += 1 if action else -1
        self.steps += 1
        reward = self.heights[self.place]  # wrong: nothing keeps the place on the strip
        return self._look(), float(reward), False, self.steps == 50, {}

    def _look(self):
        return np.array([self.place], np.float32)


# %%
import tempfile
from pathlib import Path

crashes = tempfile.mkdtemp()


def walking(env, **options):
    walkers = actors(
        RolloutWorker,
        env,
        steps=32,
        num_envs=4,
        env_options=EnvOptions(crash_dir=crashes, **options),
        count=2,
        name="walkers",
    )
    return ParallelRollouts(walkers).gather_sync()


try:
    with flowrl.run(walking(Terrain), Local(), seed=0) as run:
        run.step(20)
except IndexError as error:
    print(error)
    print(*error.__notes__, sep="\n")

# %% [markdown]
# The notes name the copy, the step of its episode, the action and the seed. A *bundle* lies beside: environment, seed
# and the actions since, in one file without pickle. Played again, alone, it fails in the same place, as often as you
# like.

# %%
from flowrl.rl.replay_crash import replay_crash

[bundle, *_] = sorted(Path(crashes).glob("*.crash"))
again = replay_crash(bundle, env=Terrain)
print(again.said)

# %% [markdown]
# With the mistake mended the same actions pass:


# %%
class Mended(Terrain):
    """The place stays on the strip."""

    def step(self, action):
        self.place = min(max(self.place, 1), len(self.heights) - 2)
        return super().step(action)


print(replay_crash(bundle, env=Mended).said)

# %% [markdown]
# Where an environment cannot be mended, a run can outlive it: the fragment is dropped whole, the copies are made
# anew, and it is counted what that cost. `on_fault=Restart(n)` gives up after n faults of a worker in a row.

# %%
from flowrl import Restart

with flowrl.run(walking(Terrain, on_fault=Restart(50, backoff_s=0.0)), Local(), seed=0) as run:
    batches = run.step(4)
    counted = run.stats().metrics["ParallelRollouts"]
print(len(batches), "whole fragments;", {name: counted[name] for name in ("env_restarts", "steps_discarded")})

# %% [markdown]
# ## Slow
#
# `stats()` counts where the time goes and ends in a verdict that names what limits the run, and the knob. Here an
# operator is slow, and it runs on the driver, behind the gather (one worker, for on `Local()` they take turns):


# %%
def slow(batch):
    return float(np.linalg.svd(np.resize(batch["obs"], (300, 300)), compute_uv=False).sum())


one = actors(RolloutWorker, "CartPole-v1", steps=16, num_envs=4, count=1, name="workers")
behind = ParallelRollouts(one).gather_sync().for_each(slow)
with flowrl.run(behind, Local(), seed=0) as run:
    run.step(ITEMS)
    print(run.stats().verdict)

# %% [markdown]
# Before the gather it runs in the workers, of which there can be many, and on Ray the driver is free meanwhile.

# %%
before = ParallelRollouts(one).for_each(slow).gather_sync()
with flowrl.run(before, Local(), seed=0) as run:
    run.step(ITEMS)
    print(run.stats().verdict)

# %% [markdown]
# That is the end of the tour. The pages in [docs/](../docs/) go deeper: [reliability](../docs/reliability.md) on what
# dies and hangs, [environments](../docs/environments.md), [several agents](../docs/multi_agent.md),
# [self-play](../docs/self_play.md).
