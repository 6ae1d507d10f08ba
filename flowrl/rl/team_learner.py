"""The learner of a team whose agents share a policy of values, and whose value is mixed of theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

import numpy as np

from flowrl.batch import Batch
from flowrl.ref import Answer
from flowrl.rl.gradients import finite_norm
from flowrl.rl.in_training import child_of
from flowrl.rl.learner import Learner, Metrics
from flowrl.rl.mixing import Mixer, TeamValues
from flowrl.rl.peers import Meeting
from flowrl.rl.qmix_loss import QMIXLoss
from flowrl.rl.spec import PolicySpec, Progress, Spaces
from flowrl.rl.targets import TargetUpdates
from flowrl.rl.tensors import TensorBatch

MIXER = 2  # its stream below the learner's seed


class TeamLearner(Learner):
    """Trains the policy that the agents of a team share, by the value of the team (QMIX, arXiv:1803.11485).

    Batches are `JoinAgents`' with the column `discounts`. The arguments are Learner's, and:
    mixing: "qmix": a mixing network that sees the global state; "vdn": the sum (arXiv:1706.05296).
    embedding: width of the mixing network.

    The gradient's global norm is that over policy and mixing network together, whose weights never leave the learner.
    """

    loss: Any  # a QMIXLoss, which judges a TeamValues instead of a Policy

    def __init__(
        self,
        policy: PolicySpec,
        loss: QMIXLoss,
        *,
        mixing: Literal["qmix", "vdn"] = "qmix",
        embedding: int = 32,
        max_grad_norm: float | None = 10.0,
        adam_eps: float = 1e-8,
        seed: int | np.random.SeedSequence | None = None,
        **options: Any,
    ):
        if mixing not in ("qmix", "vdn"):
            raise ValueError(f"mixing must be 'qmix' or 'vdn', got {mixing!r}")
        if embedding < 1:
            raise ValueError(f"embedding must be at least 1, got {embedding}")
        if policy.head != "q" or policy.atoms is not None or policy.recurrent is not None:
            raise ValueError(
                f"a team's agents share a policy of PolicySpec(head='q') without atoms and without memory, got {policy}"
            )
        super().__init__(policy, cast(Any, loss), max_grad_norm=max_grad_norm, adam_eps=adam_eps, seed=seed, **options)
        self.mixing, self._embedding, self._mixer_seed = mixing, embedding, child_of(seed, MIXER)
        self._mixer_targets = TargetUpdates()
        self._team: TeamValues | None = None
        self._mixer: Mixer | None = None

    def build(self, spaces: Mapping[str, Spaces]) -> Answer[None]:
        """Makes policy and mixing network for the spaces of `policy_id`, and publishes the policy's weights.

        Raises:
            ValueError: the workers do not say how the whole environment stands.
        """
        mine = spaces.get(self.policy_id)
        if mine is not None and self._mixer is None and self.mixing == "qmix":
            if mine.team is None:
                raise ValueError("a team's value needs the global states of MultiAgentWorker(joint=True)")
            self._mixer = Mixer(mine.team, self._embedding, self._mixer_seed)
            self._mixer_targets.begin(cast(Any, self._mixer))
        return super().build(spaces)

    @property
    def team(self) -> TeamValues:
        """The policy and what mixes the agents' values."""
        return TeamValues(self.policy, self._mixer)

    def _observed(self, batch: Batch) -> Batch:
        """A row for each agent that lives."""
        alive = batch["alive"][batch.valid]
        return Batch({name: batch[name][batch.valid][alive] for name in batch if name.partition("/")[0] == "obs"})

    def join(self, meeting: Meeting, rank: int) -> int | None:
        """Refused: a team's learner trains alone."""
        raise ValueError("TeamLearner trains alone, not in step with others: give its group one actor")

    def update(self, batch: TensorBatch, now: Progress) -> Metrics:
        """One update of policy and mixing network on a minibatch."""
        team = self.team
        out = self.loss(team, batch, now)
        gradients = team.gradients(out.loss)
        norms = [finite_norm(gradient, batch, self._where()) for gradient in gradients]
        norm = float(np.hypot.reduce(norms))
        self._priorities = out.per_row["priorities"]
        rate = self._learning_rate(now)
        # Both are clipped as one, by the norm of the gradient over all parameters.
        for name, module, gradient in zip(("all", "mixer"), (team.policy, team.mixer), gradients, strict=False):
            assert module is not None
            self._descent.step(name, module.flat_parameters, gradient, norm, rate)
        return {**out.metrics, "grad_norm": norm}

    # its targets
    def set_target_update(self, *, every_updates: int | None = None, tau: float | None = None) -> None:
        """As Learner's, of both targets."""
        self._mixer_targets.set(every_updates, tau)
        if self._mixer is not None:
            self._mixer_targets.begin(cast(Any, self._mixer))
        super().set_target_update(every_updates=every_updates, tau=tau)

    def update_target(self) -> None:
        """Both targets take over the weights now."""
        super().update_target()
        if self._mixer is not None:
            self._mixer_targets.move(cast(Any, self._mixer))

    def _updated(self) -> None:
        super()._updated()
        if self._mixer is not None:
            self._mixer_targets.after_update(cast(Any, self._mixer))

    # its state
    def get_state(self) -> dict[str, Any]:
        """Learner's, and the mixing network's."""
        state = super().get_state()
        optimizers = state["optimizers"]
        mixer = None
        if self._mixer is not None:
            mixer = {
                "weights": self._mixer.get_weights(),
                "target": self._mixer.target.get_weights(),
                "target_updates": self._mixer_targets.get_state(),
                "optimizer": optimizers.get("mixer"),
            }
        kept = {name: adam for name, adam in optimizers.items() if name != "mixer"}
        return {**state, "optimizers": kept, "mixer": mixer}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state; before `build` it is kept until then."""
        super().set_state(state)
        mixer = state["mixer"]
        if self._policy is None or self._mixer is None or mixer is None:
            return
        self._mixer.set_weights(mixer["weights"])
        self._mixer.target.set_weights(mixer["target"])
        self._mixer_targets.set_state(mixer["target_updates"])
        if mixer["optimizer"] is not None:
            states = {**state["optimizers"], "mixer": mixer["optimizer"]}
            sizes = {name: self._policy.span(name) for name in state["optimizers"]}
            lengths = {name: span.stop - span.start for name, span in sizes.items()}
            self._descent.set_state(states, {**lengths, "mixer": len(self._mixer.flat_parameters)})
