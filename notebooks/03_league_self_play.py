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
# # A league of past selves
#
# In self-play a policy learns against itself. In games with hidden information the newest policy alone goes round in
# circles: it learns to beat what it was, and forgets what it knew. A **league** keeps frozen snapshots, knows who
# beats whom, and says who plays whom next. Kuhn poker is small enough to measure exactly how far from unbeatable the
# result is.

# %% tags=["parameters"]
ROUNDS = 30  # of 2,048 environment steps each

# %% [markdown]
# ## The game
#
# Three cards, an ante of 1, one bet of 1. `flowrl.rl.games` has it as an environment of two agents that act in turns,
# and as a tree that can be enumerated. **NashConv** is what the best responses to both seats win together: 0 in an
# equilibrium, 11/12 for a player who tosses coins.

# %%
from flowrl.rl.games import Kuhn, average_strategy, nash_conv, policy_strategies, uniform_strategy

game = Kuhn()
print(
    f"coins: {nash_conv(game, uniform_strategy(game)):.3f}, equilibrium: {nash_conv(game, game.equilibrium(0.2)):.3f}"
)

# %% [markdown]
# ## The graph
#
# PPO's tail again, and two operators behind it that tie a `League` to it: `SnapshotToLeague` tells it each new
# version of the weights and has every second one frozen; `PlayAgainst` carries each worker's results to the league
# and the league's lineup to the worker. Weights go from actor to actor; the driver sees none. Half of the opponents
# are the player as it is now, half are drawn from all snapshots. The entropy bonus begins large and is lowered
# slowly, which keeps play from running into a corner.

# %%
import flowrl
from flowrl import Local, actor, actors
from flowrl.algorithms import PPOConfig, ppo
from flowrl.operators import AddAdvantages, ParallelRollouts, PlayAgainst, ReportMetrics, SnapshotToLeague
from flowrl.rl import League, LeagueWorker, Matchmaking
from flowrl.rl.schedules import Linear

cfg = PPOConfig(
    batch_steps=2000,
    epochs=4,
    learning_rate=Linear(2e-3, 5e-4, 240_000),
    entropy_cost=Linear(0.5, 0.1, 120_000),
)
league = actor(League, {"main": Matchmaking(latest=0.5, uniform=0.5)}, name="league")
workers = actors(
    LeagueWorker, "flowrl.rl.games:kuhn_poker", "main", cfg.policy, steps=32, num_envs=64, count=1, name="workers"
)
learner = ppo.learner_of(cfg, policy_id="main")
flow = (
    ParallelRollouts(workers)
    .for_each(AddAdvantages(1.0, 1.0, policy="main"))
    .gather_sync()
    .through(ppo.learn(cfg, learner, workers))
    .for_each(SnapshotToLeague(league, learner, every_updates=2))
    .for_each(PlayAgainst(league, workers, opponents=4))
    .for_each(ReportMetrics())
)
flow

# %% [markdown]
# ## It plays

# %%
run = flowrl.run(flow, Local(), seed=0)
handle = run.background()
handle

# %%
handle.wait(ROUNDS)
handle.pause()
print(f"{handle.latest.env_steps:,} steps, {handle.latest.episodes:,} games")

# %% [markdown]
# ## Who is in the league
#
# The league is an actor like any other: ask it. Snapshots are called after their player and a number.

# %%
coordinator = run.actors["league"][0]
snapshots = coordinator.ask("snapshots", "main").result()
ratings = coordinator.ask("ratings").result()
print(len(snapshots), "snapshots, from", *list(snapshots)[:1], "to", *list(snapshots)[-1:])
for row in coordinator.ask("payoffs").result()[:3]:
    print(f"{row['player']} against {row['member']}: {row['games']} games, {row['return']:+.2f} a game")

# %% [markdown]
# ## How good is it?
#
# The league's *average strategy* is that of a player who draws a snapshot before the game and keeps to it; late ones
# count more. Its way down is steadier than that of the newest snapshot, which may stray again.

# %%
import matplotlib.pyplot as plt
import numpy as np

strategies = policy_strategies(game, cfg.policy, snapshots.values())
marks = sorted({max(1, round(len(strategies) * share)) for share in np.linspace(0.05, 1, 15)})
of_average = [
    nash_conv(game, average_strategy(game, strategies[:n], weights=np.arange(1, n + 1) ** 2.0)) for n in marks
]
of_newest = [nash_conv(game, strategies[n - 1]) for n in marks]

fig, (left, right) = plt.subplots(1, 2, figsize=(7, 2.4), layout="constrained")
left.plot(marks, of_average, label="average of the league")
left.plot(marks, of_newest, label="newest snapshot", alpha=0.5)
left.set(xlabel="snapshots", ylabel="NashConv", ylim=(0, None), title="How much can be won against it")
left.legend()
right.plot([ratings[name] for name in snapshots])
right.set(xlabel="snapshot", ylabel="Elo rating", title="Ratings")
plt.show()
print(f"NashConv of the average: {of_average[0]:.3f} at first, {of_average[-1]:.3f} at last")

# %% [markdown]
# What it has found, beside an equilibrium: how often to bet first with each card. With the lowest card a bet is a
# bluff; all equilibria bet the highest three times as often as the lowest.

# %%
average = average_strategy(game, strategies, weights=np.arange(1, len(strategies) + 1) ** 2.0)
for card, name in enumerate(("lowest", "middle", "highest")):
    print(f"{name:>7} card: bets {average[card, ()][1]:.0%} of the time")

# %% [markdown]
# ## Another lineup
#
# Matchmaking is a name in the league's description: `"latest"`, `"uniform"`, `"prioritized"`, AlphaStar's `"main"`
# with `"main_exploiter"` and `"league_exploiter"`, or shares of your own. A league of two players is the same graph
# twice behind one `Union`: `flowrl.algorithms.LeaguePlayConfig` writes it.

# %%
from flowrl.algorithms import LeaguePlayConfig

two = LeaguePlayConfig(players={"main": "main", "exploiter": "main_exploiter"}, ppo=cfg, envs_per_worker=64)
run.close()
with flowrl.run(two.graph(), Local(), seed=0) as run:
    run.step(4)
    print(run.actors["league"][0].ask("chances", "exploiter").result())
    print(sorted(run.policies()))
two.graph()

# %% [markdown]
# Next: [an operator and a loss of your own](04_your_own_operator_and_loss.ipynb).
