"""What the soak looks for is found when it is there, and not when it is not."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import random
import threading
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrl
from benchmarks import chaos, goodput, ledger, soak, trend, watch
from flowrl import Restart
from flowrl.algorithms import ApexConfig, IMPALAConfig, PPOConfig
from flowrl.rl import EnvContext
from flowrl.testing import Delayed

AGAIN = Restart(3, backoff_s=0.0)
SMALL: dict[str, Any] = {
    "num_workers": 2, "envs_per_worker": 2, "unroll": 8, "on_worker_failure": AGAIN, "on_learner_failure": AGAIN,
    "snapshot_every": 2,
}  # fmt: skip
STORED: dict[str, Any] = {"min_size": 32, "batch": 8, "batches": 2, "replay_shards": 2, "on_shard_failure": AGAIN}
CONFIGS: dict[str, Any] = {
    "ppo": PPOConfig(**SMALL, batch_steps=32, epochs=2, minibatch=16),
    "impala": IMPALAConfig(**SMALL, batch_steps=48, max_policy_lag=1),
    "apex": ApexConfig(**SMALL, **STORED, evaluate_every_env_steps=None),
}


def dying(seed: int, *often: str) -> Any:
    """Deaths of actors, by name, each after other numbers of messages: always the same would be given up."""
    at = {}
    for name in often:
        draw = random.Random(f"{seed} {name}")
        at[name] = set(accumulate(draw.randrange(8, 24) for _ in range(100)))
    return lambda actor, n: n in at.get(actor, ())


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(2))
def test_the_books_balance_whatever_dies(name: str, seed: int) -> None:
    dies = dying(seed, "workers[0]", "workers[1]", "learner[0]", "replay[1]")
    with flowrl.run(CONFIGS[name].graph(), Delayed(seed, in_order=seed == 0, die=dies), seed=seed) as run:
        books = None
        for summary in islice(run, 40):
            last, books = books, ledger.books_of(run, summary)
            assert list(ledger.wrong(last, books)) == []
        deaths = {group: figures.deaths for group, figures in run.stats().groups.items()}
    assert all(deaths.values()), deaths
    assert books is not None
    assert books.totals["sampled"] > 0
    assert books.totals["dropped"] > 0
    if name != "apex":
        assert books.totals["sampled"] == sum(books.totals[what] for what in ("trained", "dropped", "held"))


def test_a_lost_item_is_seen_once() -> None:
    with flowrl.run(CONFIGS["impala"].graph(), Delayed(0), seed=0) as run:
        joins = next(cursor.stage.op for cursor in run._engine.cursors if cursor.name == "ConcatBatches")
        lost = []

        def forgets(value: Any, ctx: Any) -> Any:
            lost.append(value.info.env_steps)
            del joins.process
            return ()

        before = ledger.books_of(run, next(run))
        joins.process = forgets
        now = ledger.books_of(run, next(run))
        ((node, said),) = ledger.wrong(before, now)
        assert node == "ConcatBatches"
        assert said.endswith(f" held: {lost[0]} missing")
        assert list(ledger.wrong(now, ledger.books_of(run, next(run)))) == []


def test_a_counter_that_goes_back_is_seen() -> None:
    with flowrl.run(CONFIGS["ppo"].graph(), flowrl.Local(), seed=0) as run:
        before = ledger.books_of(run, run.step(5)[-1])
        run._engine.accounts.groups["workers"].calls = 0
        found = dict(ledger.wrong(before, ledger.books_of(run, next(run))))
    assert set(found) == {"workers: calls"}
    assert found["workers: calls"].startswith("went back from ")


@settings(max_examples=30, deadline=None)
@given(rise=st.floats(-500, 500), levels=st.lists(st.floats(0, 1000), min_size=1, max_size=4))
def test_a_slope_is_that_of_all_pieces_whatever_their_levels(rise: float, levels: list[float]) -> None:
    times = [np.arange(20.0) + 100 * i for i in range(len(levels))]
    found = trend.slope([(t, level + rise * t / 3600) for t, level in zip(times, levels, strict=True)])
    assert found is not None
    assert found.per_hour == pytest.approx(rise, abs=1e-4)
    assert found.low - 1e-3 <= rise <= found.high + 1e-3
    assert (found.readings, found.seconds) == (20 * len(levels), pytest.approx(19 * len(levels)))


def test_a_slope_of_one_piece_is_the_least_squares() -> None:
    rng = np.random.default_rng(0)
    times = np.sort(rng.random(200)) * 600
    values = 3 + 0.01 * times + rng.normal(size=200)
    (expected, _), covariance = np.polyfit(times / 3600, values, 1, cov=True)
    found = trend.slope([(times, values)])
    assert found is not None
    assert found.per_hour == pytest.approx(expected)
    wide = (found.high - found.low) / 2 / trend.SIGMAS  # errors are independent here, so little wider
    assert math.sqrt(covariance[0, 0]) * 0.99 < wide < 1.3 * math.sqrt(covariance[0, 0])
    assert trend.slope([(times[:5], values[:5])]) is None


@pytest.mark.parametrize(("leak", "seen"), [(0.0, False), (300.0, True)])
def test_a_leak_is_seen_and_noise_is_not(leak: float, seen: bool) -> None:
    rng = np.random.default_rng(1)
    holdings = trend.Holdings(soak.LIMITS, warm_up_s=30.0)
    walk = np.convolve(rng.normal(0, 2, size=700), np.ones(20) / 20, "valid")[:600]  # readings alike for some time
    for at in range(600):
        settling = 100.0 * min(at, 30) / 30
        holdings.read(float(at), {}, {"references": 20 + settling + leak * at / 3600 + walk[at]})
    found = holdings.growing()
    assert [whose for whose, _ in found] == (["references"] if seen else [])
    if seen:
        assert "limit 60" in found[0][1]


def test_memory_and_files_of_a_process_are_read_and_those_of_no_process_left_out() -> None:
    holdings = trend.Holdings(soak.LIMITS, warm_up_s=0.0)
    kept = []
    for at in range(12):
        holdings.read(float(at), {"this": os.getpid(), "none": 2**22 + 1}, {})
        kept.append(np.ones(2**20, np.uint8))  # a MiB a second
        kept.append(os.open(os.devnull, os.O_RDONLY))
    for file in kept[1::2]:
        os.close(file)
    rows = {(whose, what): rise for whose, what, _, _, rise in holdings.rows()}
    assert set(rows) == {("this", "MiB"), ("this", "files")}
    files = rows["this", "files"]
    assert files is not None
    assert files.per_hour == pytest.approx(3600)
    assert {said.split(":")[0] for _, said in holdings.growing()} >= {"files"}


class Stalled:
    """A run that gives nothing."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def stats(self) -> Any:
        with flowrl.run(flowrl.from_iterable(list), flowrl.Local()) as run:
            return run.stats()

    def close(self) -> None:
        self.closed.set()


def test_a_run_without_items_is_a_violation_and_is_closed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watch, "EVERY_S", 0.01)
    monkeypatch.setattr(watch, "held_by_ray", dict)
    run, violations = Stalled(), watch.Violations(0.0)
    watching = watch.Watch(run, violations, trend.Holdings(soak.LIMITS, 0.0), 0.05)  # type: ignore[arg-type]
    watching.start()
    assert run.closed.wait(30)
    watching.end()
    assert not watching._exit.is_alive()
    (found,) = violations.found
    assert found["node"] == "run"
    assert found["said"].startswith("no item for ")
    captured = capfd.readouterr()
    assert "VIOLATION at" in captured.out
    assert "watch.py" in captured.err  # where every thread is


def test_a_process_that_stays_behind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LEAVES_S", 0.05)
    monkeypatch.setattr(watch, "references", lambda: 12)
    found = watch.left_behind({"this": os.getpid(), "none": 2**22 + 1}, 7)
    assert found == [
        ("this", f"process {os.getpid()} is still there 0.05 s after the run"),
        ("references", "5 more than before the run"),
    ]


def test_faults_come_by_their_seed_and_each_kind_by_its_own(tmp_path: Path) -> None:
    means = {"raises": 5.0, "worker killed": 20.0}
    first = {kind: list(islice(chaos.Storm(means, 7, tmp_path, 4).times(kind), 200)) for kind in means}
    alone = list(islice(chaos.Storm({"raises": 5.0}, 7, tmp_path, 4).times("raises"), 200))
    assert first["raises"] == alone
    assert first["raises"] != list(islice(chaos.Storm(means, 8, tmp_path, 4).times("raises"), 200))
    for kind, mean in means.items():
        assert np.mean(np.diff(first[kind])) == pytest.approx(mean, rel=0.2)
    with pytest.raises(ValueError, match="no fault 'rain' with a mean of 3"):
        chaos.Storm({"rain": 3.0}, 0, tmp_path, 1)


def played(env: Any, steps: int) -> list[np.ndarray]:
    env.reset(seed=0)
    found = []
    for _ in range(steps):
        obs, _, terminated, truncated, _ = env.step(0)
        found.append(obs)
        if terminated or truncated:
            env.reset()
    return found


def test_an_order_is_carried_out_once_by_the_copy_it_is_for(tmp_path: Path) -> None:
    storm = chaos.Storm({"raises": 1.0, "gives NaN": 1.0}, 0, tmp_path, 1)
    storm.pids = {"workers[0]": 1, "learner[0]": 2}
    env, other = (chaos.chaotic(str(tmp_path), EnvContext(worker, 2, 0, 0)) for worker in (0, 1))
    struck = storm.strike("raises")
    assert struck is not None
    assert struck.whom == "workers[0], environment 0"
    played(other, 20)
    with pytest.raises(chaos.OrderedFault):
        played(env, 20)
    played(env, 20)
    storm.strike("gives NaN")
    assert sum(bool(np.isnan(obs).all()) for obs in played(env, 40)) == 1
    assert len(storm.struck) == 2


def test_only_processes_of_actors_are_killed() -> None:
    assert not chaos.killed(os.getpid())
    assert not chaos.killed(2**22 + 1)


def test_what_a_kill_costs_is_read_from_what_follows_it() -> None:
    lifelines = goodput.Lifelines(
        known={"workers[0]": [1.0, 12.5], "workers[1]": [11.0]},
        up={"workers[0]": [4.0, 15.0], "workers[1]": [13.0]},
        sampled={"workers[0]": [4.5, 5.0, 12.1, 15.5, 16.0], "workers[1]": [12.0, 13.25]},
    )
    assert lifelines.after(chaos.Struck(12.0, goodput.KILL, "workers[0]")) == (0.5, 3.0, 3.5)
    assert lifelines.after(chaos.Struck(10.0, goodput.KILL, "workers[1]")) == (1.0, 3.0, 3.25)
    assert lifelines.after(chaos.Struck(12.0, goodput.KILL, "workers[1]")) is None


def test_goodput_makes_one_section_and_its_figures_can_be_read_again(tmp_path: Path) -> None:
    windows = [
        goodput.Window("ppo", 5.0, 0, 90.0, 11, 400.0, 1000.0, ((1.0, 4.0, 4.5), (2.0, 3.0, 4.0))),
        goodput.Window("ppo", 5.0, 1, 90.0, 13, 700.0, 1000.0),
        goodput.Window("impala", 5.0, 0, 90.0, 12, 900.0, 1500.0),
    ]
    file = tmp_path / "windows.json"
    file.write_text(json.dumps([dataclasses.asdict(one) for one in windows]), encoding="utf-8")
    assert [goodput.Window.read(one) for one in json.loads(file.read_text())] == windows
    section = goodput.report(windows)
    assert "| ppo | 5 | 24 | 550 | 1,000 | 0.550 (0.400 to 0.700) |" in section
    assert "| impala | 5 | 12 | 900 | 1,500 | 0.600 (0.600 to 0.600) |" in section
    assert "| ppo | 2 | 1.50 (1.00 to 2.00) | 3.50 (3.00 to 4.00) | 4.25 (4.00 to 4.50) |" in section
    assert "| impala | 0 | – | – | – |" in section


def test_a_window_counts_what_is_trained_and_waits_for_its_workers() -> None:
    loop = object.__new__(goodput.Loop)
    loop.run = flowrl.run(CONFIGS["ppo"].graph(), Delayed(0), seed=0)
    with loop.run:
        loop._epochs, loop._pids, loop._trained = 2, chaos.Pids(loop.run), 0.0
        lifelines = goodput.Lifelines()
        lifelines.follow(loop.run)
        seconds, steps = loop.advance(0.3)
        assert seconds >= 0.3
        assert steps == loop.run.stats().metrics["TrainOneStep"]["default/trained_steps"] / 2
        assert set(loop._pids.known) == {"workers[0]", "workers[1]", "learner[0]"}
        assert set(lifelines.sampled) == {"workers[0]", "workers[1]"}
