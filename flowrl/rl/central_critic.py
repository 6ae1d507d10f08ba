"""PPO whose values are a central critic's, which sees what no agent sees alone (MAPPO, arXiv:2103.01955)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.ref import Answer
from flowrl.rl.descent import Descent
from flowrl.rl.flat import FlatModule
from flowrl.rl.gradients import finite_norm, gradient_of
from flowrl.rl.in_training import child_of
from flowrl.rl.initial import CRITIC_GAIN, HIDDEN_GAIN
from flowrl.rl.learner import Learner, Metrics
from flowrl.rl.loss import LossOut
from flowrl.rl.models import MLP, fill
from flowrl.rl.normalize import EPSILON, RunningMoments
from flowrl.rl.peers import Meeting
from flowrl.rl.policy import Policy
from flowrl.rl.ppo_loss import Surrogates, standardized
from flowrl.rl.returns import check_fractions, gae
from flowrl.rl.rows import batch_of
from flowrl.rl.schedules import Rate, check_rate, value_at
from flowrl.rl.spec import PolicySpec, Progress, Spaces, Team
from flowrl.rl.tensors import TensorBatch

CRITIC = 2  # its stream below the learner's seed
ROWS = frozenset({"obs", "actions", "logp", "advantages", "returns", "global_state", "agent"})


class CentralCritic(FlatModule):
    """V(s, k): the value of the global state for each agent, as flat weights. (B, S) and numbers (B,) to (B,)."""

    def __init__(self, team: Team, hidden: Sequence[int], seed: np.random.SeedSequence):
        net, rng = MLP((team.state_size + len(team.agents), *hidden, 1)), np.random.default_rng(seed)
        for layer in net.linears:
            fill(layer, rng, CRITIC_GAIN if layer is net.linears[-1] else HIDDEN_GAIN)
        self._agents = len(team.agents)
        self._adopt(net, None)

    def __call__(self, state_BS: Tensor, agent_B: Tensor) -> Tensor:
        """The values (B,), in the units that it was trained in."""
        one_hot_BK = nn.functional.one_hot(agent_B, self._agents).to(torch.float32)
        return cast("Tensor", self.module(torch.cat((state_BS, one_hot_BK), -1))).squeeze(-1)


@dataclass(frozen=True)
class CentralPPOLoss:
    """The losses of PPO's actor and of a central critic apart (arXiv:2103.01955, section 3 and appendix A).

    actor = −mean(min(r·A, clip(r, 1 ± clip)·A)) − entropy_cost·mean(H); critic = mean((V(s, agent) − return)²).

    clip, entropy_cost, standardize_advantages: as PPOLoss has them.
    """

    clip: Rate = 0.2
    entropy_cost: Rate = 0.0
    standardize_advantages: bool = True

    needs: ClassVar[frozenset[str]] = (ROWS - {"advantages", "returns"}) | {
        "rewards", "terminated", "truncated", "next_global_state"
    }  # fmt: skip

    def __post_init__(self) -> None:
        check_rate("clip", self.clip, above_0=True)
        check_rate("entropy_cost", self.entropy_cost, above_0=False)

    def __call__(self, net: Policy, batch: TensorBatch, now: Progress) -> LossOut:
        """The actor's loss over the rows of a batch, which have `advantages`."""
        clip = value_at(self.clip, now.env_steps, "clip")
        entropy_cost = value_at(self.entropy_cost, now.env_steps, "entropy_cost")
        advantages_B = batch["advantages"]
        if self.standardize_advantages:
            advantages_B = standardized(advantages_B, batch.whole["advantages"])
        logp_B, entropy_B = net.forward(batch).dist.logp_and_entropy(batch["actions"])
        returns_B = batch["returns"]  # beside themselves: of the values, the critic's loss takes care
        surrogate, _, kl, clip_fraction = Surrogates.apply(
            logp_B, returns_B, batch["logp"], advantages_B, returns_B, clip, None, None
        )
        entropy = entropy_B.mean()
        metrics = {
            "policy_loss": surrogate.detach(), "entropy": entropy.detach(), "kl": kl, "clip_fraction": clip_fraction
        }  # fmt: skip
        return LossOut(surrogate - entropy_cost * entropy, metrics)

    def critic(self, critic: CentralCritic, batch: TensorBatch, now: Progress) -> LossOut:
        """The critic's loss over the rows of a batch, whose `returns` are in its units."""
        error_B = critic(batch["global_state"], batch["agent"]) - batch["returns"]
        loss = error_B.square().mean()
        return LossOut(loss, {"value_loss": loss.detach()})


class CentralCriticLearner(Learner):
    """Trains a policy by PPO on advantages that a central critic of its own gives (MAPPO, arXiv:2103.01955).

    Batches are those of `MultiAgentWorker(joint=True)`, time-major: each row has the global state at the moment in
    which its agent acted, and the next one, so that an agent that has died has no row and counts nowhere. The critic
    judges them when they come, generalized advantages follow from that, and it is trained beside the policy. Nothing of
    it leaves the learner. The values that the policy has itself are neither used nor trained.

    The arguments are Learner's, and:
    discount, gae_lambda: γ and λ of the advantages.
    critic_hidden: widths of the critic's hidden layers.
    critic_learning_rate: the critic's step size, where it is not `learning_rate`.

    The critic learns returns less their mean, over their deviation (over all that it has seen), so that their scale
    does not matter (section 3.1). Metrics: value_loss (in these units), critic_grad_norm, return_mean and return_std.
    """

    loss: CentralPPOLoss

    def __init__(
        self,
        policy: PolicySpec,
        loss: CentralPPOLoss,
        *,
        discount: float = 0.99,
        gae_lambda: float = 0.95,
        critic_hidden: Sequence[int] = (64, 64),
        critic_learning_rate: Rate | None = None,
        max_grad_norm: float | None = 0.5,
        adam_eps: float = 1e-5,
        seed: int | np.random.SeedSequence | None = None,
        **options: Any,
    ):
        check_fractions(discount=discount, gae_lambda=gae_lambda)
        if critic_learning_rate is not None:
            check_rate("critic_learning_rate", critic_learning_rate, above_0=True)
        super().__init__(policy, loss, max_grad_norm=max_grad_norm, adam_eps=adam_eps, seed=seed, **options)
        self.discount, self.gae_lambda = discount, gae_lambda
        self.critic_learning_rate = critic_learning_rate
        self._critic_hidden, self._critic_seed = tuple(critic_hidden), child_of(seed, CRITIC)
        self._critic_descent = Descent(max_grad_norm=max_grad_norm, adam_eps=adam_eps)
        self._returns = RunningMoments.empty()
        self._critic: CentralCritic | None = None

    @property
    def needs(self) -> frozenset[str]:
        """The columns that training reads, of which the learner adds advantages and returns."""
        return ROWS

    @property
    def critic(self) -> CentralCritic:
        """The critic.

        Raises:
            RuntimeError: before `build`.
        """
        if self._critic is None:
            raise RuntimeError(f"the learner of policy {self.policy_id!r} has no critic yet: call build(spaces) first")
        return self._critic

    def build(self, spaces: Mapping[str, Spaces]) -> Answer[None]:
        """Makes policy and critic for the spaces of `policy_id`, and publishes the policy's weights.

        Raises:
            ValueError: the workers do not say how the whole environment stands.
        """
        mine = spaces.get(self.policy_id)
        if mine is not None and self._critic is None:
            if mine.team is None:
                raise ValueError("a central critic needs the global states of MultiAgentWorker(joint=True)")
            self._critic = CentralCritic(mine.team, self._critic_hidden, self._critic_seed)
        return super().build(spaces)

    def join(self, meeting: Meeting, rank: int) -> None:
        """Refused: a central critic's learner trains alone."""
        raise ValueError("CentralCriticLearner trains alone, not in step with others: give its group one actor")

    def train(self, batch: Batch | MultiAgentBatch, **options: Any) -> Answer[Batch | None]:
        """As Learner's; advantages and returns come from the critic, as it is before.

        Raises:
            ValueError: the batch is not time-major.
        """
        mine = batch_of(batch, self.policy_id)
        return super().train(batch if mine is None else self.judged(mine), **options)

    def judged(self, batch: Batch) -> Batch:
        """The batch with the columns advantages, in units of the rewards, and returns, in those of the critic."""
        if not batch.time_major:
            raise ValueError(f"a central critic judges time-major batches (T, N), got {batch!r}")
        values_TN, next_values_TN = (self._values(batch, name) for name in ("global_state", "next_global_state"))
        advantages_TN, returns_TN = gae(
            batch["rewards"], values_TN, next_values_TN, batch["terminated"], batch["truncated"],
            discount=self.discount, gae_lambda=self.gae_lambda, valid_TN=batch.valid,
        )  # fmt: skip
        self._returns = self._returns.update(returns_TN[batch.valid].astype(np.float64))
        mean, std = self._scale()
        return batch.with_columns(advantages=advantages_TN, returns=((returns_TN - mean) / std).astype(np.float32))

    def _values(self, batch: Batch, column: str) -> npt.NDArray[np.float32]:
        mean, std = self._scale()
        values_TN = np.zeros(batch.leading, np.float32)
        with torch.no_grad():
            state_BS, agent_B = (torch.from_numpy(np.array(batch[name][batch.valid])) for name in (column, "agent"))
            values_TN[batch.valid] = self.critic(state_BS, agent_B).numpy() * std + mean
        return values_TN

    def _scale(self) -> tuple[float, float]:
        return float(self._returns.mean), float(np.sqrt(self._returns.var + EPSILON))

    def update(self, batch: TensorBatch, now: Progress) -> Metrics:
        """One update of the policy and one of the critic, unless `target_kl` ends training on this batch."""
        metrics = self.step("all", self.loss, batch, now)
        if self._stop.stopped:
            return metrics
        critic = cast(Any, self.critic)
        out, gradient = gradient_of(
            critic, cast(Any, self.loss.critic), batch, now, microbatch=self._microbatch, where=self._where()
        )
        norm = finite_norm(gradient, batch, self._where())
        rate = self.learning_rate if self.critic_learning_rate is None else self.critic_learning_rate
        rate = value_at(rate, now.env_steps, "critic_learning_rate")
        self._critic_descent.step("critic", critic.flat_parameters, gradient, norm, rate)
        mean, std = self._scale()
        return {**metrics, **out.metrics, "critic_grad_norm": norm, "return_mean": mean, "return_std": std}

    def get_state(self) -> dict[str, Any]:
        """Learner's, and the critic's."""
        critic = {
            "weights": self.critic.get_weights(),
            "optimizer": self._critic_descent.get_state(),
            "returns": self._returns.get_state(),
        }
        return {**super().get_state(), "critic": critic}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; before `build` it is kept until then."""
        super().set_state(state)
        if self._critic is not None and self._pending_state is None:
            self._critic.set_weights(state["critic"]["weights"])
            self._critic_descent.set_state(state["critic"]["optimizer"], {"critic": len(self._critic.flat_parameters)})
            self._returns = RunningMoments.from_state(state["critic"]["returns"])
