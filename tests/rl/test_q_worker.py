"""Workers with values of actions: what is taken, what batches say of it, ε an environment, and masks."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from flowrl.rl.inference import make_inference
from flowrl.rl.policy import Policy
from flowrl.rl.spaces import UnsupportedSpace
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.worker import RolloutWorker

SPACES = Spaces(Box(-np.inf, np.inf, (4,), np.float32), Discrete(3))
ATOMS = {"atoms": 11, "value_range": (-2.0, 10.0)}
KINDS = {
    "plain": {},
    "relu": {"activation": "relu"},
    "dueling": {"dueling": True},
    "noisy": {"noisy": True},
    "atoms": ATOMS,
    "rainbow": {"dueling": True, "noisy": True, **ATOMS},
}


class Masked(gymnasium.Env):
    """Three actions, of which a mask in `info` (or in the observation) forbids one by turns; ends after 5 steps."""

    action_space = Discrete(3)

    def __init__(self, inside: bool = False, truncates: bool = True):
        box = Box(-9, 9, (2,), np.float32)
        mask = gymnasium.spaces.MultiBinary(3)
        self.inside, self.truncates = inside, truncates
        self.observation_space = gymnasium.spaces.Dict(x=box, action_mask=mask) if inside else box

    def _answer(self):
        mask = np.array([1, 1, 1], np.int8)
        mask[self.t % 3] = 0
        x = np.array([self.t, 1], np.float32)
        return {"x": x, "action_mask": mask} if self.inside else x, {} if self.inside else {"action_mask": mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._answer()

    def step(self, action):
        assert action != self.t % 3, "a masked action was taken"
        self.t += 1
        obs, info = self._answer()
        return obs, 1.0, not self.truncates and self.t == 5, self.truncates and self.t == 5, info


def policy_and_net(kind: str, seed: int = 1):
    spec = PolicySpec(head="q", hidden=(16, 8), **KINDS[kind])
    policy, (net, flat) = Policy(spec, SPACES, seed=seed), make_inference(spec, SPACES, np.random.SeedSequence(seed))
    np.testing.assert_array_equal(flat, policy.get_weights())
    flat = flat + 0.3 * np.random.default_rng(0).normal(size=len(flat)).astype(np.float32)
    policy.set_weights(flat)
    net.set_weights(flat)
    return policy, net


@pytest.mark.parametrize("kind", KINDS)
def test_workers_see_the_learners_values_without_torch(kind: str):
    policy, net = policy_and_net(kind)
    obs = np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32)
    for _ in range(2):  # at first without noise, and then with the same
        with torch.no_grad():
            out = policy.forward({"obs": obs})
        params, values = net.forward(obs)
        np.testing.assert_allclose(params, out.dist.params.numpy(), atol=2e-6)
        np.testing.assert_allclose(net.values(obs), out.values.numpy(), atol=2e-6)
        assert values is None
        np.testing.assert_array_equal(net.act(obs)[0], out.dist.params.numpy().argmax(1))
        policy.resample(np.random.default_rng(3))
        net.resample(np.random.default_rng(3))
    without = Policy(policy.spec, SPACES)
    without.set_weights(policy.get_weights())
    differs = (without.forward({"obs": obs}).values != policy.forward({"obs": obs}).values).any()
    assert differs == ("noisy" in KINDS[kind])


def test_dueling_advantages_have_mean_zero_over_actions():
    policy, _ = policy_and_net("dueling")
    advantages, value = policy.module.heads(torch.ones(1, 4))
    q = policy.run(torch.ones(1, 4)).dist.params
    torch.testing.assert_close(q.mean(1), value[:, 0])  # Q = V + A − mean(A)
    torch.testing.assert_close(q - q.mean(1, keepdim=True), advantages - advantages.mean(1, keepdim=True))


def test_values_of_atoms_are_the_mean_of_their_distribution():
    policy, _ = policy_and_net("atoms")
    out = policy.run(torch.ones(2, 4))
    p = torch.softmax(out.atoms.double(), -1)
    support = np.linspace(-2.0, 10.0, 11)
    np.testing.assert_allclose(out.dist.params.detach(), (p.detach().numpy() * support).sum(-1), atol=1e-5)
    assert out.atoms.shape == (2, 3, 11)


def test_noise_is_the_policys_own_and_differs_between_policy_and_target():
    policy, _ = policy_and_net("noisy")
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    target = policy.target
    policy.resample()
    x = torch.ones(1, 4)
    assert (policy.run(x).values != target.run(x).values).all()
    again, _ = policy_and_net("noisy")
    _ = again.target
    again.resample()
    torch.testing.assert_close(again.run(x).values, policy.run(x).values, rtol=0, atol=0)
    assert torch.equal(before[0], torch.random.get_rng_state())
    np.testing.assert_array_equal(before[1], np.random.get_state()[1])


def test_columns_say_the_greatest_value_and_that_of_the_action_taken():
    worker = RolloutWorker("CartPole-v1", PolicySpec(head="q"), steps=40, num_envs=3, next_obs=True, seed=0)
    worker.set_epsilon(0.5)
    batch = worker.sample().payload
    net, _ = make_inference(PolicySpec(head="q"), worker.spaces()["default"])
    net.set_weights(worker.get_state()["weights"])
    q = net.forward(batch["obs"].reshape(-1, 4))[0].reshape(40, 3, 2)
    np.testing.assert_allclose(batch["values"], q.max(-1), atol=1e-6)
    np.testing.assert_allclose(
        batch["q_taken"], np.take_along_axis(q, batch["actions"][..., None], -1)[..., 0], atol=1e-6
    )
    following = net.values(batch["next_obs"].reshape(-1, 4)).reshape(40, 3)
    np.testing.assert_allclose(batch["next_values"], following, atol=1e-6)
    greedy = batch["actions"] == q.argmax(-1)
    assert 0.6 < greedy.mean() < 0.9  # half of the time greedy, and by chance half of the other time
    np.testing.assert_allclose(batch["logp"], np.log(np.where(greedy, 0.75, 0.25)), atol=1e-6)
    assert "q_taken" in RolloutWorker.batch_columns("CartPole-v1", PolicySpec(head="q"))
    assert "q_taken" not in RolloutWorker.batch_columns("CartPole-v1")


def test_every_environment_may_explore_on_its_own():
    worker = RolloutWorker("CartPole-v1", PolicySpec(head="q"), steps=400, num_envs=3, seed=0)
    worker.set_epsilon(np.array([0.0, 0.5, 1.0]))
    batch = worker.sample().payload
    net, _ = make_inference(PolicySpec(head="q"), worker.spaces()["default"])
    net.set_weights(worker.get_state()["weights"])
    greedy = batch["actions"] == net.forward(batch["obs"].reshape(-1, 4))[0].reshape(400, 3, 2).argmax(-1)
    np.testing.assert_allclose(greedy.mean(0), [1.0, 0.75, 0.5], atol=0.08)
    assert (batch["logp"][:, 0] == 0).all()
    np.testing.assert_allclose(np.exp(batch["logp"][:, 2]), 0.5, atol=1e-6)
    other = RolloutWorker("CartPole-v1", PolicySpec(head="q"), steps=400, num_envs=3, seed=1)
    other.set_state(worker.get_state())
    assert other.sample().payload == worker.sample().payload
    fewer = RolloutWorker("CartPole-v1", PolicySpec(head="q"), steps=4, num_envs=2, seed=1)
    fewer.set_state(worker.get_state())
    assert fewer.get_state()["epsilon"] == 0.5
    with pytest.raises(ValueError, match=r"epsilon must be a number, or an array \(3,\).*of shape \(2,\)"):
        worker.set_epsilon([0.1, 0.2])
    with pytest.raises(ValueError, match=r"from 0 to 1, got 1\.5"):
        worker.set_epsilon([0.1, 0.2, 1.5])


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_masked_actions_are_neither_taken_nor_the_greatest(inside: bool, mode: str, epsilon: float):
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda: Masked(inside)] * 2, autoreset_mode=gymnasium.vector.AutoresetMode[mode]
    )
    spec = PolicySpec(head="q", hidden=())
    worker = RolloutWorker(lambda: vector, spec, steps=14, num_envs=2, next_obs=True, seed=0)
    weights = np.zeros_like(worker.get_state()["weights"])
    weights[-3:] = 3.0, 2.0, 1.0  # the first action is the best where it may be taken
    worker.set_weights(weights, 1)
    worker.set_epsilon(epsilon)
    batch = worker.sample().payload
    x, following = ("obs/x", "next_obs/x") if inside else ("obs", "next_obs")
    valid = batch.valid
    t = batch[x][..., 0].astype(int)
    np.testing.assert_allclose(batch["values"][valid], np.where(t % 3 == 0, 2.0, 3.0)[valid])
    after = batch[following][..., 0].astype(int)
    np.testing.assert_allclose(batch["next_values"][valid], np.where(after % 3 == 0, 2.0, 3.0)[valid])
    np.testing.assert_array_equal(batch["next_action_mask"][valid], (np.arange(3) != (after % 3)[..., None])[valid])
    np.testing.assert_allclose(batch["q_taken"][valid], 3.0 - batch["actions"][valid])
    assert batch["truncated"].any()


def test_only_discrete_actions_have_values_each():
    with pytest.raises(UnsupportedSpace, match=r"head='q'.*has a value an action"):
        RolloutWorker("Pendulum-v1", PolicySpec(head="q"))
    wrong = Policy(PolicySpec(head="q", model=lambda obs, act: torch.nn.Linear(4, 2)), SPACES)
    with pytest.raises(ValueError, match=r"the model must give values of actions \(5, 3\) for 5 observations"):
        wrong.run(torch.ones(5, 4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dueling": True}, "dueling is for head='q'"),
        ({"head": "q", "atoms": 3}, "atoms and value_range belong together"),
        ({"head": "q", "atoms": 5.5, "value_range": (0, 1)}, "atoms must be an integer of at least 2, got 5.5"),
        ({"head": "q", "atoms": 5, "value_range": (0,)}, r"value_range must be \(least, greatest\), got \(0,\)"),
        ({"head": "q", "atoms": 5, "value_range": 5}, "value_range must be a tuple of numbers, got 5"),
        ({"head": "q", "atoms": 1, "value_range": (0, 1)}, "atoms must be at least 2, got 1"),
        ({"head": "q", "atoms": 5, "value_range": (1, 1)}, r"value_range must be \(least, greatest\)"),
        ({"head": "q", "noisy": True, "model": lambda o, a: None}, "noisy is for the default model"),
        ({"head": "w"}, "head must be one of"),
    ],
)
def test_a_specification_that_makes_no_sense_is_refused(settings: dict, message: str):
    with pytest.raises(ValueError, match=message):
        PolicySpec(**settings)
