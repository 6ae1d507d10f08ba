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
# # Two algorithms in one environment
#
# PPO and DQN train side by side: four cart-poles share an environment, two of the agents play PPO's policy and two
# play DQN's. Each policy is trained by the very tail that the single-agent algorithm uses. While it runs you will
# send messages to one worker: more exploration, a harder environment, another policy.

# %% tags=["parameters"]
SUMMARIES = 60  # to wait for, one for each batch that either algorithm has trained on

# %% [markdown]
# ## The environment
#
# Any object with dicts by agent will do (PettingZoo's environments, too). This one is four cart-poles, each of which
# gets its own observation and reward. Agents leave as their poles fall; the episode ends with the last.

# %%
import numpy as np

from flowrl.rl.cartpoles import MultiAgentCartPole

env = MultiAgentCartPole(agents=4)
obs, _ = env.reset(seed=0)
rng = np.random.default_rng(0)
while env.agents:
    acted = list(env.agents)
    obs, *_ = env.step({agent: int(rng.integers(2)) for agent in acted})
    if len(env.agents) < len(acted):
        print("has fallen:", *sorted(set(acted) - set(env.agents)))

# %% [markdown]
# ## The mix
#
# Workers sample for both policies at once. `by_policy` parts what they give, each part goes `through` a tail, and
# `Union` joins what was trained. Everything that is special to this mix is in this one cell.

# %%
import flowrl
from flowrl import Local, actors
from flowrl.algorithms import DQNConfig, PPOConfig, dqn, ppo
from flowrl.algorithms.replaying import replay_of
from flowrl.operators import AddAdvantages, NStep, ParallelRollouts, ReportMetrics, Union
from flowrl.rl import MultiAgentWorker

for_ppo = PPOConfig(batch_steps=900, learning_rate=2e-3, gae_lambda=0.95)
for_dqn = DQNConfig(min_size=500, samples_per_step=4.0)


def policy_of(agent, episode):
    return "ppo" if agent in ("agent_0", "agent_1") else "dqn"


policies = {"ppo": for_ppo.policy, "dqn": for_dqn.policy}
workers = actors(
    MultiAgentWorker,
    MultiAgentCartPole,
    policies,
    policy_of,
    steps=64,
    num_envs=4,
    next_obs=True,
    count=2,
    name="workers",
)
ppo_learner = ppo.learner_of(for_ppo, policy_id="ppo", name="ppo_learner")
dqn_learner = dqn.learner_of(for_dqn, policy_id="dqn", name="dqn_learner")
replay = replay_of(for_dqn, prioritized=False)

to_ppo, to_dqn = (
    ParallelRollouts(workers)
    .for_each(AddAdvantages(for_ppo.discount, for_ppo.gae_lambda, policy="ppo"))
    .for_each(NStep(for_dqn.n_step, for_dqn.discount, policy="dqn"))
    .gather_async()
    .by_policy("ppo", "dqn")
)
mix = Union(
    [
        to_ppo.through(ppo.learn(for_ppo, ppo_learner, workers)),
        to_dqn.through(dqn.learn(for_dqn, dqn_learner, replay, workers)),
    ],
    mode="async",
).for_each(ReportMetrics())
mix

# %% [markdown]
# The upper branch is PPO's, the lower one DQN's with its replay. `check()` sends one item through both.

# %%
print(mix.check())

# %% [markdown]
# ## It runs while you look
#
# The table below this cell is drawn anew while the run moves on. `Local()` keeps everything in this process, which
# suits a notebook on a small machine; leave it out and the actors are Ray's.

# %%
history = []
run = flowrl.run(mix.tap(history.append), Local(), seed=0)
handle = run.background()
handle

# %%
handle.wait(SUMMARIES // 2)
run  # a look at the same table, now

# %% [markdown]
# ## Messages to one worker
#
# `run.actors` has the handles of every actor. A message goes at once, is answered between two fragments, and touches
# nobody else. The second worker's DQN explores more from here on:

# %%
first, second = run.actors["workers"]
second.ask("set_epsilon", 0.5, policy="dqn").result()
print([worker.ask(lambda w: w.get_state()["policies"]["dqn"]["epsilon"]).result() for worker in (first, second)])

# %% [markdown]
# (The graph itself goes on telling its workers the ε of DQN's schedule whenever that changes, so an ε of your own
# holds until then.) A curriculum is a message as well: longer poles, on this worker only.


# %%
def longer(env):
    for pole in env.poles.values():
        pole.unwrapped.length = 0.8
    return len(env.poles)


print("poles made longer:", second.ask("each_env", longer).result())
print(
    "their lengths on the first worker:",
    first.ask("each_env", lambda env: env.poles["agent_0"].unwrapped.length).result(),
)

# %% [markdown]
# And so is a look at what an actor is like now, or another policy in the place of one. Here PPO's policy on the
# second worker becomes an untrained one; the learner's next weights, which `SendWeights` brings, put it right again.

# %%
handle.pause()
before = second.ask(lambda w: w.get_state()["policies"]["ppo"]["version"]).result()
second.ask("set_policy", for_ppo.policy, policy="ppo").result()
swapped = second.ask(lambda w: w.get_state()["policies"]["ppo"]["version"]).result()
handle.resume()
handle.wait(max(SUMMARIES, handle.count + 6))
handle.pause()
after = second.ask(lambda w: w.get_state()["policies"]["ppo"]["version"]).result()
print(f"version of the weights: {before}, swapped {swapped}, later {after}")

# %% [markdown]
# ## What each has learned
#
# Metrics are kept by policy, so neither overwrites the other's. With so few steps neither is done (`flowrl train
# ppo_and_dqn --total-steps 60000` brings both to 450 and more), but both have left the 20 steps of chance behind.

# %%
import matplotlib.pyplot as plt

fig, axes = plt.subplots(figsize=(6, 2.5), layout="constrained")
for policy in policies:
    known = [s for s in history if "episode_return" in s.learner.get(policy, {})]
    axes.plot([s.env_steps for s in known], [s.learner[policy]["episode_return"] for s in known], label=policy)
axes.set(xlabel="environment steps", ylabel="mean return of an agent", title="Two algorithms, one environment")
axes.legend()
plt.show()

# %%
judged = run.evaluate(episodes=5)
for policy, one in judged.policies.items():
    updates = history[-1].learner[policy]["updates"]
    print(f"{policy}: {one.mean:.0f} over {one.episodes} agents' episodes, after {updates:.0f} updates")
print(sorted(run.policies()))
run.close()

# %% [markdown]
# Next: [policies that play against their own past](03_league_self_play.ipynb).
