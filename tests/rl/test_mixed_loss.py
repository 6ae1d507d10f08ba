"""Mixed losses: each term over its own rows, also in parts of a minibatch."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from flowrl.rl.gradients import gradient_of
from flowrl.rl.losses import LossOut, PPOLoss
from flowrl.rl.mixed_loss import MixedLoss, Term
from flowrl.rl.policy import Policy
from flowrl.rl.schedules import Linear
from flowrl.rl.spec import PolicySpec, Progress, Spaces
from flowrl.rl.tensors import TensorBatch

SPACES = Spaces(Box(-np.inf, np.inf, (4,), np.float32), Discrete(3))
NOW = Progress(env_steps=50)


@dataclass(frozen=True)
class Imitation:
    """The negative log-probability of the actions, with its rows as priorities."""

    needs: ClassVar[frozenset[str]] = frozenset({"obs", "actions"})

    def __call__(self, net, batch, now):
        logp_B = net.forward(batch).dist.logp(batch["actions"])
        return LossOut(-logp_B.mean(), {"nll": -logp_B.detach().mean()}, {"surprise": -logp_B.detach()})


def batch_of(rows=40, experts=13):
    rng = np.random.default_rng(0)
    numbers = {name: torch.tensor(rng.normal(size=rows), dtype=torch.float32) for name in ("advantages", "returns")}
    expert = torch.zeros(rows, dtype=torch.bool)
    expert[rng.permutation(rows)[:experts]] = True
    return TensorBatch(
        {
            "obs": torch.tensor(rng.normal(size=(rows, 4)), dtype=torch.float32),
            "actions": torch.tensor(rng.integers(3, size=rows)),
            "logp": torch.full((rows,), -1.1),
            **numbers,
            "expert": expert,
            "own": ~expert,
        }
    )


def mix(**terms):
    return MixedLoss({"ppo": Term(PPOLoss(), rows="own"), "imitate": Term(Imitation(), 0.3, "expert"), **terms})


def test_it_is_the_sum_of_the_terms_over_their_rows():
    net, batch = Policy(PolicySpec(hidden=(8,)), SPACES, seed=0), batch_of()
    assert mix().needs == {"obs", "actions", "logp", "advantages", "returns", "own", "expert"}
    out = mix()(net, batch, NOW)
    own = TensorBatch({name: column[batch["own"]] for name, column in batch.items()})
    expert = TensorBatch({name: column[batch["expert"]] for name, column in batch.items()})
    expected = PPOLoss()(net, own, NOW).loss + 0.3 * Imitation()(net, expert, NOW).loss
    torch.testing.assert_close(out.loss, expected)
    torch.testing.assert_close(net.gradient(out.loss), net.gradient(expected))
    assert {"ppo/kl", "imitate/nll"} <= out.metrics.keys()
    surprise = out.per_row["imitate/surprise"]
    assert (surprise[batch["own"]] == 0).all()
    torch.testing.assert_close(surprise[batch["expert"]], Imitation()(net, expert, NOW).per_row["surprise"])


@pytest.mark.parametrize("microbatch", [1, 6, 40])
def test_parts_add_up_to_the_whole(microbatch):
    net, batch = Policy(PolicySpec(hidden=(8,)), SPACES, seed=0), batch_of()
    loss = mix(all=Term(Imitation(), Linear(0.2, 0.0, 100)))
    whole, gradient = gradient_of(net, loss, batch, NOW, microbatch=None, where="here")
    parts, accumulated = gradient_of(net, loss, batch, NOW, microbatch=microbatch, where="here")
    torch.testing.assert_close(parts.loss, whole.loss.detach())
    torch.testing.assert_close(accumulated, gradient)


def test_a_term_without_rows_adds_nothing():
    net, batch = Policy(PolicySpec(hidden=(8,)), SPACES, seed=0), batch_of(experts=0)
    out = mix()(net, batch, NOW)
    torch.testing.assert_close(out.loss, PPOLoss()(net, batch, NOW).loss)
    nothing = MixedLoss({"imitate": Term(Imitation(), rows="expert")})(net, batch, NOW)
    assert float(nothing.loss.detach()) == 0
    assert (net.gradient(nothing.loss) == 0).all()
    assert nothing.metrics == {}


def test_what_is_refused():
    with pytest.raises(ValueError, match="at least one term, got none"):
        MixedLoss({})
    with pytest.raises(ValueError, match="weight must be at least 0 and finite, got -1"):
        Term(Imitation(), -1.0)
    net = Policy(PolicySpec(hidden=(8,)), SPACES, seed=0)
    with pytest.raises(TypeError, match="column 'actions' says which rows a loss is for and must be boolean"):
        MixedLoss({"a": Term(Imitation(), rows="actions")})(net, batch_of(), NOW)
