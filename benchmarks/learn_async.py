"""How many steps, samples and seconds the asynchronous actor-critics take to CartPole-v1 at 475: five seeds each.

    python benchmarks/learn_async.py impala     # also appo, a2c, a3c, ddppo
    python benchmarks/learn_async.py appo --seeds 5 --backend ray [--write]
    python benchmarks/learn_async.py a3c --seed 3 --json a3c-3.json     # one seed alone
    python benchmarks/learn_async.py a3c --read a3c-*.json [--write]    # the section from such files

As benchmarks/learn_replay.py does it, which says what stops a seed and what is counted; here training episodes say when
the goal may be reached. --write appends to benchmarks/RESULTS.md.
"""

from __future__ import annotations

from benchmarks.learn_replay import Task, main
from flowrl.algorithms import A2CConfig, A3CConfig, APPOConfig, DDPPOConfig, IMPALAConfig

TASKS = {
    name: Task(f"{title} on CartPole-v1", config, 475.0, 1_000_000)
    for name, title, config in (
        ("a2c", "A2C", A2CConfig()),
        ("a3c", "A3C", A3CConfig()),
        ("impala", "IMPALA", IMPALAConfig()),
        ("appo", "APPO", APPOConfig()),
        ("ddppo", "DD-PPO", DDPPOConfig()),
    )
}

if __name__ == "__main__":
    main(TASKS, "learn_async.py", __doc__)
