"""The losses on V-trace: against a policy asked row by row in every layout of episodes; minibatches of sequences."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from flowrl import Batch
from flowrl.rl.learner import Learner
from flowrl.rl.losses import APPOLoss, MixedLoss, PPOLoss, Term, VTraceLoss
from flowrl.rl.policy import Policy, map_obs
from flowrl.rl.schedules import Linear
from flowrl.rl.sequences import SequenceBatch, sequences_of
from flowrl.rl.spec import PolicySpec, Progress, Spaces
from tests.rl.test_vtrace import slow_vtrace

PLAIN = Spaces(Box(-np.inf, np.inf, (3,), np.float32), Discrete(2))
NESTED = Spaces(Dict({"a": Box(-1, 1, (2,), np.float32), "b": Discrete(3)}), Box(-1, 1, (2,), np.float32))
NOW = Progress()


def policy_of(spaces: Spaces = PLAIN, **settings: Any) -> Policy:
    """A policy whose target differs from it."""
    policy = Policy(PolicySpec(hidden=(8,), **settings), spaces, seed=0)
    rng = np.random.default_rng(0)
    policy.set_weights(policy.get_weights() + 0.3 * rng.normal(size=len(policy.flat)))
    policy.target.set_weights(policy.get_weights() + 0.3 * rng.normal(size=len(policy.flat)))
    return policy


def fragment(policy: Policy, *, phantom: bool, masks: bool = False, steps: int = 12, envs: int = 4, seed: int = 0):
    """Sequences over several episodes; `phantom`: the last observation of an episode has a row that only resets."""
    rng = np.random.default_rng(seed)
    space = policy.spaces.observation
    space.seed(seed)
    policy.spaces.action.seed(seed)
    ends = rng.random((steps, envs)) < 0.3
    ends[-1, 0], ends[-1, 1] = True, False
    valid, starts = np.ones((steps, envs), bool), np.zeros((steps, envs), bool)
    for t in range(1, steps):
        after_end = ends[t - 1] & valid[t - 1]
        valid[t] = ~(after_end & phantom)
        starts[t] = (t > 1) & ends[t - 2] & valid[t - 2] & ~valid[t - 1] if phantom else after_end
    ends &= valid
    terminated = ends & (rng.random((steps, envs)) < 0.4)
    seen = [[policy.layout.split(space.sample()) for _ in range(envs)] for _ in range(2 * steps + 1)]
    obs = stacked(seen[: steps + 1])
    following = map_obs(lambda x: x[1:].copy(), obs)
    if not phantom:  # the last observation of an episode is one that no row shows
        final = stacked(seen[steps + 1 :])
        following = {path: np.where(ends.reshape(steps, envs, *(1 for _ in x.shape[2:])), final[path], x)
                     for path, x in following.items()}  # fmt: skip
    state = {f"state/{name}": rng.normal(size=(steps, envs, *shape)).astype(np.float32)
             for name, shape in policy.state_shapes.items()}  # fmt: skip
    actions = np.stack([[policy.spaces.action.sample() for _ in range(envs)] for _ in range(steps)])
    columns = {
        **{f"obs/{path}" if path else "obs": x[:-1] for path, x in obs.items()},
        **{f"next_obs/{path}" if path else "next_obs": x for path, x in following.items()},
        "actions": actions, "valid": valid, "terminated": terminated,
        "truncated": ends & (~terminated | (rng.random((steps, envs)) < 0.3)),
        "rewards": rng.normal(size=(steps, envs)).astype(np.float32),
        "logp": rng.normal(-0.7, 0.3, size=(steps, envs)).astype(np.float32),
    }  # fmt: skip
    if masks:
        allowed = rng.random((steps, envs, 2)) < 0.5
        np.put_along_axis(allowed, actions[..., None], True, -1)
        columns["action_mask"] = allowed
    if state:
        columns |= {"starts": starts, **state}
    columns["rewards"][~valid] = np.nan  # of a row that is no transition nothing matters
    return Batch(columns, time_major=True)


def stacked(rows: list[list[Any]]) -> dict[str, np.ndarray]:
    """Observations (T, N, ...) by path; "" where they are plain."""
    first = rows[0][0]
    if not isinstance(first, dict):
        return {"": np.stack([np.stack(row) for row in rows])}
    return {path: np.stack([np.stack([one[path] for one in row]) for row in rows]) for path in first}


def sequences(policy: Policy, batch: Batch) -> SequenceBatch:
    """As the learner makes them."""
    masks = {"action_mask"} & set(batch)
    return sequences_of(batch, VTraceLoss().needs | masks, policy.state_shapes, "a test")


def asked_row_by_row(policy: Policy, batch: Batch) -> tuple[Any, ...]:
    """log π, entropy, V and V' of each row (T, N): one environment and step after the other, memory carried along."""
    steps, envs = batch.leading
    logp, entropy, values, following = ([[None] * envs for _ in range(steps)] for _ in range(4))

    def one(column: str, t: int, n: int) -> Any:
        return map_obs(lambda x: torch.tensor(x[t, n])[None], batch.tree(column))

    def ask(obs: Any, mask: Any, state: Any, start: bool) -> Any:
        if not state:
            return policy.run(obs, mask)
        out = policy.run_sequence(
            map_obs(lambda x: x[None], obs), None if mask is None else mask[None], state, torch.tensor([[start]])
        )
        return policy.head.rows(out, 0)

    for n in range(envs):
        state = {name: torch.tensor(batch[f"state/{name}"][0, n])[None] for name in policy.state_shapes}
        for t in range(steps):
            mask = torch.tensor(batch["action_mask"][t, n])[None] if "action_mask" in batch else None
            out = ask(one("obs", t, n), mask, state, bool(batch["starts"][t, n]) if state else False)
            state = out.state
            logp[t][n], entropy[t][n] = out.dist.logp_and_entropy(torch.tensor(batch["actions"][t, n])[None])
            values[t][n] = out.values
            following[t][n] = ask(one("next_obs", t, n), None, state, False).values.detach()
    return tuple(torch.cat([x for row in rows for x in row]).view(steps, envs)
                 for rows in (logp, entropy, values, following))  # fmt: skip


CASES = [
    (PLAIN, {}, False),
    (PLAIN, {}, True),
    (NESTED, {}, False),
    (PLAIN, {"recurrent": "lstm", "recurrent_size": 5}, True),
    (NESTED, {"recurrent": "gru", "recurrent_size": 5}, False),
]
IDS = ["plain", "masks", "nested", "lstm", "gru"]


@pytest.mark.parametrize("phantom", [True, False], ids=["next_step", "same_step"])
@pytest.mark.parametrize(("spaces", "settings", "masks"), CASES, ids=IDS)
def test_vtrace_loss_and_gradient_are_those_of_a_policy_asked_row_by_row(spaces, settings, masks, phantom):
    policy = policy_of(spaces, **settings)
    batch = fragment(policy, phantom=phantom, masks=masks)
    loss = VTraceLoss(0.9, 0.7, 0.05, rho_clip=1.1, c_clip=0.9, pg_rho_clip=1.2, vtrace_lambda=0.8)
    found = loss(policy, sequences(policy, batch), NOW)

    logp, entropy, values, following = asked_row_by_row(policy, batch)
    arrays = (batch["rewards"], values.detach().numpy(), following.numpy(), batch["terminated"], batch["truncated"],
              batch.valid)  # fmt: skip
    made = slow_vtrace(batch["logp"], logp.detach().numpy(), arrays, 0.9, 1.1, 0.9, 1.2, 0.8)
    targets, advantages = (torch.from_numpy(x).float() for x in made)
    valid = torch.from_numpy(batch.valid.copy())
    expected = (
        -(advantages * logp)[valid].mean()
        + 0.7 * (values - targets)[valid].square().mean()
        - 0.05 * entropy[valid].mean()
    )
    torch.testing.assert_close(found.loss, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(policy.gradient(found.loss), policy.gradient(expected), rtol=1e-4, atol=1e-5)
    ratio = (logp.detach() - torch.from_numpy(batch["logp"].copy()))[valid].exp()
    torch.testing.assert_close(found.metrics["rho"], ratio.clamp(max=1).mean())
    torch.testing.assert_close(found.metrics["kl"], (ratio - 1 - ratio.log()).mean())


@pytest.mark.parametrize("phantom", [True, False], ids=["next_step", "same_step"])
@pytest.mark.parametrize(("spaces", "settings", "masks"), CASES, ids=IDS)
def test_appo_loss_and_gradient_are_those_of_policies_asked_row_by_row(spaces, settings, masks, phantom):
    policy = policy_of(spaces, **settings)
    batch = fragment(policy, phantom=phantom, masks=masks)
    loss = APPOLoss(0.9, 0.7, 0.05, rho_clip=1.1, c_clip=0.9, pg_rho_clip=1.2, vtrace_lambda=0.8, clip=0.1)
    found = loss(policy, sequences(policy, batch), NOW)

    logp, entropy, values, _ = asked_row_by_row(policy, batch)
    still_logp, _, still_values, following = (x.detach() for x in asked_row_by_row(policy.target, batch))
    arrays = (batch["rewards"], still_values.numpy(), following.numpy(), batch["terminated"], batch["truncated"],
              batch.valid)  # fmt: skip
    made = slow_vtrace(batch["logp"], still_logp.numpy(), arrays, 0.9, 1.1, 0.9, 1.2, 0.8)
    targets, advantages = (torch.from_numpy(x).float() for x in made)
    valid = torch.from_numpy(batch.valid.copy())
    ratio = (logp - still_logp).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.9, 1.1) * advantages)
    expected = -surrogate[valid].mean() + 0.7 * (values - targets)[valid].square().mean() - 0.05 * entropy[valid].mean()
    torch.testing.assert_close(found.loss, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(policy.gradient(found.loss), policy.gradient(expected), rtol=1e-4, atol=1e-5)
    outside = ((ratio < 0.9) | (ratio > 1.1))[valid].float().mean()
    torch.testing.assert_close(found.metrics["clip_fraction"], outside)
    to_behaviour = (logp.detach() - torch.from_numpy(batch["logp"].copy()))[valid]
    torch.testing.assert_close(found.metrics["kl"], (to_behaviour.exp() - 1 - to_behaviour).mean())


def test_appo_next_to_its_target_has_the_gradient_of_impala():
    policy = policy_of()
    policy.target.set_weights(policy.get_weights())
    batch = sequences(policy, fragment(policy, phantom=True))
    ours, theirs = (policy.gradient(loss(policy, batch, NOW).loss) for loss in (APPOLoss(), VTraceLoss()))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_what_appo_learns_from_a_batch_stands_still_while_the_policy_moves():
    learner = learner_of(APPOLoss(entropy_cost=0.0, value_cost=0.0), learning_rate=0.1)
    learner.set_target_update(every_updates=100)
    batch = fragment(learner.policy, phantom=True)
    target = learner.policy.target.get_weights()
    metrics = learner.train(batch, epochs=30).metrics
    np.testing.assert_array_equal(learner.policy.target.get_weights(), target)
    assert metrics["default", "clip_fraction"] > 0.3


def test_what_follows_a_termination_does_not_matter():
    policy = policy_of()
    batch = fragment(policy, phantom=False)
    other = batch["next_obs"].copy()
    other[batch["terminated"]] = 100.0
    losses = [
        VTraceLoss()(policy, sequences(policy, one), NOW).loss for one in (batch, batch.with_columns(next_obs=other))
    ]
    torch.testing.assert_close(*losses, rtol=0, atol=0)
    assert (batch["terminated"] & batch.valid).any()


def learner_of(loss: Any, spec: PolicySpec | None = None, spaces: Spaces = PLAIN, **settings: Any) -> Learner:
    learner = Learner(PolicySpec(hidden=(8,)) if spec is None else spec, loss, seed=0, **settings)
    learner.build({"default": spaces})
    return learner


def test_a_learner_takes_minibatches_of_whole_sequences():
    seen: list[tuple[int, int]] = []

    class Watched(VTraceLoss):
        def __call__(self, net: Any, batch: Any, now: Any) -> Any:
            seen.append(tuple(batch.valid_TN.shape))
            return super().__call__(net, batch, now)

    learner = learner_of(Watched())
    batch = fragment(learner.policy, phantom=True)
    answer = learner.train(batch, epochs=2, minibatch=3)
    assert seen == [(12, 3), (12, 1)] * 2
    assert answer.metrics["default", "trained_steps"].value == 2 * batch.env_steps
    assert answer.metrics["default", "updates"] == 4


@pytest.mark.parametrize("settings", [{}, {"recurrent": "gru", "recurrent_size": 5}], ids=["plain", "gru"])
def test_parts_of_a_minibatch_give_the_same_gradient(settings):
    learner = learner_of(VTraceLoss(entropy_cost=0.1), PolicySpec(hidden=(8,), **settings))
    batch = fragment(learner.policy, phantom=False)
    whole, parts = (learner.compute_gradients(batch, microbatch=size).payload for size in (None, 1))
    np.testing.assert_allclose(parts, whole, rtol=1e-4, atol=1e-6)


class Forbids(torch.nn.Module):
    """A user's model that may forbid action 1 by a logit of −inf."""

    forbids = False

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = torch.nn.Linear(3, 2), torch.nn.Linear(3, 1)

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.actor(obs)
        if self.forbids:
            logits = torch.stack((logits[..., 0], torch.full_like(logits[..., 0], -math.inf)), -1)
        return logits, self.critic(obs).squeeze(-1)


@pytest.mark.parametrize("forbidden", [(True, True), (True, False), (False, True)], ids=["both", "policy", "target"])
@pytest.mark.parametrize("loss", [VTraceLoss(), APPOLoss()], ids=["impala", "appo"])
def test_an_action_that_the_policy_never_takes_has_no_part(loss, forbidden):
    policy = Policy(PolicySpec(model=lambda *_: Forbids()), PLAIN, seed=1)
    batch = fragment(policy, phantom=True)
    assert 1 in batch["actions"][batch["valid"]]
    policy.target.module.forbids, policy.module.forbids = forbidden[1], forbidden[0]
    out = loss(policy, sequences(policy, batch), NOW)
    assert torch.isfinite(out.loss)
    assert not any(math.isnan(float(value)) for value in out.metrics.values())  # the KL divergence is infinite
    assert torch.isfinite(policy.gradient(out.loss)).all()


def test_a_flat_batch_is_refused():
    learner = learner_of(VTraceLoss())
    with pytest.raises(ValueError, match="this loss trains on sequences and needs a time-major batch"):
        learner.train(fragment(learner.policy, phantom=True).flat())


def test_a_policy_of_values_of_actions_is_refused():
    learner = learner_of(VTraceLoss(), PolicySpec(head="q", hidden=(8,)))
    with pytest.raises(ValueError, match=r"VTraceLoss trains a policy and its values \(PolicySpec without head=\)"):
        learner.train(fragment(learner.policy, phantom=True))


def test_a_mix_is_of_sequences_if_a_term_is():
    mix = MixedLoss({"now": Term(VTraceLoss(), 0.5), "clipped": Term(PPOLoss(standardize_advantages=False))})
    assert mix.sequences
    assert not MixedLoss({"clipped": Term(PPOLoss())}).sequences
    learner = learner_of(mix)
    batch = fragment(learner.policy, phantom=True)
    judged = {name: np.zeros(batch.leading, np.float32) for name in ("advantages", "returns")}
    answer = learner.train(batch.with_columns(judged))
    assert np.isfinite(answer.metrics["default", "clipped/value_loss"])


def test_the_entropy_cost_may_be_a_schedule():
    policy = policy_of()
    batch = sequences(policy, fragment(policy, phantom=True))
    found = VTraceLoss(entropy_cost=Linear(0.2, 0.0, 100))(policy, batch, Progress(env_steps=50))
    fixed = VTraceLoss(entropy_cost=0.1)(policy, batch, NOW)
    torch.testing.assert_close(found.loss, fixed.loss)
    assert found.metrics["entropy_cost"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"discount": 1.1}, "discount must be at most 1, got 1.1"),
        ({"value_cost": -1}, "value_cost must be at least 0, got -1"),
        ({"entropy_cost": -1}, "entropy_cost must be"),
        ({"rho_clip": -0.5}, "rho_clip must be at least 0, got -0.5"),
    ],
)
def test_a_number_out_of_range_is_refused(settings, message):
    for loss in (VTraceLoss, APPOLoss):
        with pytest.raises(ValueError, match=message):
            loss(**settings)


def test_appo_needs_a_clip():
    with pytest.raises(ValueError, match="clip must be above 0 and finite, got 0"):
        APPOLoss(clip=0.0)
