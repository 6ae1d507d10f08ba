"""The statistics that benchmarks print."""

import dataclasses
import json

import numpy as np
import pytest

from benchmarks import learn_agents, learn_async, learn_league, learn_replay, mix, staleness
from benchmarks.learn import interquartile_mean, interval


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([5.0], 5.0),
        ([1.0, 3.0], 2.0),
        ([100.0, 1.0, 2.0], (0.25 * 1 + 2 + 0.25 * 100) / 1.5),  # of three, the outer ones count a quarter each
        ([9.0, 1.0, 3.0, 5.0], 4.0),
        (range(12), 5.5),
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end(scores, expected):
    assert float(interquartile_mean(list(scores))) == pytest.approx(expected)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(60):
        low, high = interval(rng.normal(5.0, 1.0, size=(12, 20)), seed=trial)
        hits += low <= 5.0 <= high
    assert hits >= 50
    assert interval([[2.0, 2.0]]) == (2.0, 2.0)


def test_seeds_trained_apart_make_one_section(tmp_path):
    seeds = [
        learn_replay.Reached(0, True, (500.0, 480.0), 430.0, 30_000, 240_000, 10.0, "ray"),
        learn_replay.Reached(1, True, (500.0, 500.0), 470.0, 20_000, 160_000, 8.5, "ray"),
        learn_replay.Reached(2, False, (100.0, 200.0), 140.0, 200_000, 1_600_000, 90.0, "ray"),
    ]
    files = [tmp_path / f"dqn-{one.seed}.json" for one in seeds]
    for one, file in zip(seeds, files, strict=True):
        file.write_text(json.dumps(dataclasses.asdict(one)), encoding="utf-8")
    read = [learn_replay.Reached.read(file) for file in files]
    assert read == seeds
    section = learn_replay.report("dqn", learn_replay.TASKS["dqn"], read, "Others worked beside it.")
    assert "## DQN on CartPole-v1 to a mean return of 475" in section
    assert "2 of 3 seeds reached it" in section
    assert section.endswith(" Others worked beside it.\n")
    # The median of those that reached it; a quarter of the best and of the worst seed's mean counts.
    assert "25,000 environment steps, 200,000 samples trained and 9.2 s" in section
    assert f"**{(0.25 * 150 + 490 + 0.25 * 500) / 1.5:.4g}**" in section
    assert "| 2 | no | 150 | 140 | 200,000 | 1,600,000 | 90.0 |" in section
    task = learn_async.TASKS["appo"]
    section = learn_replay.report("appo", task, read, script="learn_async.py")
    assert "## APPO on CartPole-v1 to a mean return of 475" in section
    assert "`python benchmarks/learn_async.py appo` on ray" in section
    assert f"target_every {task.config.target_every}" in section


def a_run(algorithm, slowdown, bound, seed, returns, dropped=0.0):
    points = tuple((float(t), 1000.0 * t, value, 1.0, 3.0, dropped * t) for t, value in enumerate(returns))
    return staleness.Curve(algorithm, slowdown, bound, seed, 2, points, 50)


def test_curves_under_slow_learners_make_one_table(tmp_path):
    runs = [
        a_run("appo", 2.0, None, 0, [float("nan"), 100.0, 300.0]),
        a_run("impala", 8.0, 2, 0, [0.0, 200.0, 480.0], dropped=250.0),
        a_run("impala", 8.0, 2, 1, [0.0, 500.0, 400.0], dropped=250.0),
        a_run("impala", 8.0, None, 0, [0.0, 20.0, 40.0]),
    ]
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(json.dumps(dataclasses.asdict(one)) + "\n" for one in runs), encoding="utf-8")
    read = staleness.read(file)
    assert [one.key for one in read] == [one.key for one in runs]
    assert [staleness.mean_return(one) for one in read] == [125.0, 220.0, 350.0, 20.0]  # trapezia, NaN as 0
    assert [staleness.reached_s(one) for one in read] == [float("inf"), 2.0, 1.0, float("inf")]
    rows = [line for line in staleness.report(read).splitlines() if line.startswith(("| impala", "| appo"))]
    assert rows == [
        "| impala | 8 | none | 1,000 | 25.0 | 1 | 3 | 0% | 40 (40 to 40) | 20 (20 to 20) | – (0 of 1) |",
        "| impala | 8 | 2 | 1,000 | 25.0 | 1 | 3 | 25% | 440 (400 to 480) | 285 (220 to 350) | 1.5 (2 of 2) |",
        "| appo | 2 | none | 1,000 | 25.0 | 1 | 3 | 0% | 300 (300 to 300) | 125 (125 to 125) | – (0 of 1) |",
    ]


@pytest.mark.parametrize("algorithm", ["impala", "appo"])
def test_slow_learners_train(algorithm):
    assert staleness.graph(algorithm, 4.0, 2, 2).check().item.iteration == 1


def test_seeds_of_a_mix_make_one_section():
    found = [
        mix.Learned(0, 36_000, 61.0, 44_000, 80.0, {"ppo": [500.0, 480.0], "dqn": [500.0, 460.0]}, "ray"),
        mix.Learned(1, None, None, 120_000, 200.0, {"ppo": [500.0, 500.0], "dqn": [100.0, 200.0]}, "ray"),
    ]
    section = mix.report(found)
    assert "Both policies at 450 or more in 1 of 2 seeds" in section
    assert "| 0 | 490 | 480 | 36,000 | 61 | 44,000 | 80 |" in section
    assert "| 1 | 500 | 150 | – | – | 120,000 | 200 |" in section


def test_every_agent_of_the_standing_poles_acts_at_every_step():
    env = mix.Standing(3)
    obs, _ = env.reset(seed=0)
    for step in range(1, 501):
        obs, rewards, terminated, truncated, _ = env.step(dict.fromkeys(obs, 0))  # every pole falls again and again
        assert set(obs) == set(rewards) == {"agent_0", "agent_1", "agent_2"}
        assert not any(terminated.values())
        assert truncated["__all__"] == (step == 500)


def test_a_league_s_marks_make_a_table_of_means_and_worst():
    seeds = [
        [
            learn_league.Mark(steps, 10.0, snapshots, {"average": average, "newest": 2 * average})
            for steps, snapshots, average in marks
        ]
        for marks in (((1000, 1, 0.5), (2000, 2, 0.1)), ((1000, 1, 0.7), (2000, 2, 0.06)))
    ]
    section = learn_league.report("kuhn", learn_league.TASKS["kuhn"], seeds, "local")
    assert section.startswith("## League: kuhn\n\n2 seed(s), wanted: below 0.1;")
    assert "| 1,000 | 1 | 0.600 (0.700) | 1.200 (1.400) |" in section
    assert "| 2,000 | 2 | 0.080 (0.100) | 0.160 (0.200) |" in section
    assert "Uniform play: 0.917." in section
    wins = [[learn_league.Mark(1000, 10.0, 1, {"won": 0.95})], [learn_league.Mark(1000, 10.0, 1, {"won": 0.85})]]
    section = learn_league.report("connect_four", learn_league.TASKS["connect_four"], wins, "local")
    assert "| 1,000 | 1 | 0.900 (0.850) |" in section


def test_teams_make_a_row_an_algorithm(tmp_path):
    found = [
        learn_agents.Learned(name, seed, ((500, -70.0), (1000, -60.0 + seed)), (mean, mean), (-80.0,), 1000, 9.0, "ray")
        for name, mean in (("mappo", -40.0), ("ppo", -50.0))
        for seed in (0, 1)
    ]
    file = tmp_path / "one.json"
    file.write_text(json.dumps(dataclasses.asdict(found[0])), encoding="utf-8")
    learn_agents.Learned(**json.loads(file.read_text(encoding="utf-8")))
    section = learn_agents.report(found, [-80.0, -76.0])
    assert "Random play: -78.0." in section
    assert "| MAPPO | 2 | **-40.0** (-40.0 to -40.0) | -80.0 | -70.0 / -59.5 |" in section
    assert "| independent PPO | 2 | **-50.0** (-50.0 to -50.0) | -80.0 | -70.0 / -59.5 |" in section
