"""The torch policy: acts on observations, gives distributions and values, and is one flat vector of weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from flowrl.rl.actions import ActionLayout
from flowrl.rl.encoding import num_numbers
from flowrl.rl.flat import evaluating
from flowrl.rl.heads import PolicyOut, State, head_of
from flowrl.rl.initial import initial_weights
from flowrl.rl.models import ActorCritic, build_module
from flowrl.rl.obs_statistics import ObsStatistics
from flowrl.rl.observations import MASK, ObsLayout
from flowrl.rl.sequences import STARTS, SequenceBatch
from flowrl.rl.spaces import check_policy, runs_in_numpy
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.with_critics import WithCritics

NOISE = 0x6E6F697365  # the stream of the noise of layers, below the seed of the weights
Float32 = npt.NDArray[np.float32]
TensorObs = Tensor | dict[str, Tensor]


class Policy(WithCritics):
    """A policy over its spaces: `act`, `forward`, `target`, and all its weights as one flat float32 vector.

    The flat vector holds the module's parameters in order, its float buffers, and mean and variance of normalized
    observations; the parameters are views into it. For the default model that is actor then critic, layer by layer,
    weight (out, in) and bias, behind the actor's layers any log standard deviations; of a soft or deterministic actor
    the actor, all critics, and the temperature. Such a one's `values` are NaN: `q_values` values actions.
    Initial weights follow from the seed alone and no global generator is touched.

    Raises:
        UnsupportedSpace: no policy can observe or act in the spaces, or not with this specification.
        TypeError: the module has parameters that are not float32.
    """

    def __init__(self, spec: PolicySpec, spaces: Spaces, *, seed: int | np.random.SeedSequence | None = None):
        check_policy(spec, spaces)
        sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
        self.spec = spec
        self.spaces = spaces
        self.layout = ObsLayout.of(spaces.observation)
        self.actions = ActionLayout.for_policy(spec, spaces.action)
        self.head = head_of(spec, self.actions)
        normalizes = spec.normalize_obs and num_numbers(self.layout) > 0
        self._adopt(build_module(spec, spaces, sequence), ObsStatistics(self.layout) if normalizes else None)
        if runs_in_numpy(spec, spaces):
            self.set_weights(initial_weights(spec, spaces, sequence))
        self._generator = torch.Generator()
        self._generator.manual_seed(int(sequence.generate_state(2, np.uint64)[1] >> 1))
        self._noise_rng = np.random.default_rng(
            np.random.SeedSequence(sequence.entropy, spawn_key=(*sequence.spawn_key, NOISE))
        )

    def _adopt(self, module: nn.Module, statistics: ObsStatistics | None) -> None:
        super()._adopt(module, statistics)
        self._towers = module.towers() if isinstance(module, ActorCritic) else None
        self.state_shapes: dict[str, tuple[int, ...]] = dict(getattr(module, "state_shapes", {}))
        self._draw: Callable[..., None] | None = getattr(module, "resample", None)
        self._target: Policy | None = None

    # acting
    def act(
        self,
        obs: Any,
        *,
        deterministic: bool = False,
        state: Mapping[str, npt.ArrayLike] | None = None,
        action_mask: npt.ArrayLike | None = None,
    ) -> Any:
        """The environment's action for one observation (an int if Discrete, else an array), or an array for a batch.

        Args:
            obs: an observation as the environment gives it, or a batch with one leading dimension more everywhere.
            deterministic: takes the most probable action; otherwise it is drawn with the policy's own generator.
            state: of a recurrent policy, which gives (action, state after it); None begins an episode.
            action_mask: which actions may be taken, where the observation does not hold it.

        Raises:
            ValueError: the observation has neither the space's shape nor one leading dimension more, or a
                `state` is given to a policy that keeps none.
            FloatingPointError: the network's outputs are not finite.
        """
        if state is not None and not self.state_shapes:
            raise ValueError(f"this policy keeps no state between steps, so state must be None, got {state!r}")
        tensors, one = self._tensors(obs)
        mask = self.layout.mask_of(obs) if action_mask is None else np.asarray(action_mask, np.bool_)
        mask_BA = None if mask is None else torch.tensor(mask[None] if one else mask)
        with torch.no_grad(), evaluating(self.module):
            out = self._act(tensors, mask_BA, None if state is None else _state(state, one))
        if not torch.isfinite(out.dist.params).all():
            raise FloatingPointError(
                "the policy's logits are not finite: look for NaN in the observation or the weights"
            )
        stored = out.dist.mode() if deterministic else out.dist.sample(self._generator)
        actions_B = self.actions.to_env(stored.numpy())
        action: Any = actions_B
        if one:
            action = int(actions_B[0]) if self.actions.kind == "discrete" else np.asarray(actions_B[0])
        if not self.state_shapes:
            return action
        return action, {name: (h[0] if one else h).numpy() for name, h in out.state.items()}

    def _act(self, obs: TensorObs, mask_BA: Tensor | None, state: State | None) -> PolicyOut:
        if not self.state_shapes:
            return self.run(obs, mask_BA)
        rows = len(obs if isinstance(obs, Tensor) else next(iter(obs.values())))
        starts_1N = torch.full((1, rows), state is None)
        out = self.run_sequence(
            map_obs(lambda x: x[None], obs),
            None if mask_BA is None else mask_BA[None],
            self.initial_state(rows) if state is None else state,
            starts_1N,
        )
        return self.head.rows(out, 0)

    def _tensors(self, obs: Any) -> tuple[TensorObs, bool]:
        """An environment's observation as tensors with a leading dimension, and whether it was a single one."""
        split = self.layout.split(obs)
        arrays = split if isinstance(split, dict) else {"": split}
        first = self.layout.leaves[0]
        one = arrays[first.path].shape == first.shape
        for leaf in self.layout.leaves:
            found = arrays[leaf.path].shape
            if (found if one else found[1:]) != leaf.shape or (not one and not found):
                raise ValueError(
                    f"{leaf.column} has shape {found}, but one observation of this policy has {leaf.shape} and a "
                    f"batch (B, *{leaf.shape})"
                )
        tensors = {path: torch.tensor(array[None] if one else array) for path, array in arrays.items()}
        return (tensors if self.layout.nested else tensors[""]), one

    def seed(self, seed: int) -> None:
        """Starts the generator that `act` draws from anew."""
        self._generator.manual_seed(seed)

    def initial_state(self, rows: int) -> State:
        """The state (rows, ...) of a recurrent policy at the beginning of an episode: zeros."""
        return {name: torch.zeros(rows, *shape) for name, shape in self.state_shapes.items()}

    # training
    def forward(self, batch: Mapping[str, Any]) -> PolicyOut:
        """Distribution and values for the column `obs` (or those below `obs/`) of a batch, with gradients.

        Rows (B,) or (T, N). A column `action_mask` is applied. A recurrent policy takes a time-major batch with
        the columns `state/...`, whose first row begins, and `starts`, before whose rows the state is zeroed; of a
        learner's SequenceBatch it gives the valid rows (B,).

        Raises:
            ValueError: the module's params or values have the wrong shape.
            KeyError: a column is missing.
        """
        if self.state_shapes and isinstance(batch, SequenceBatch):
            return self._rows_of_sequences(batch)
        obs = map_obs(_tensor, _tree(batch, "obs"))
        if self.layout.mask is not None and MASK not in batch:
            raise KeyError(f"the observations of this policy hold an action mask, but the batch has no column {MASK!r}")
        mask = _tensor(batch[MASK]) if MASK in batch else None
        if not self.state_shapes:
            return self.run(obs, mask)
        state = {name: _tensor(h)[0] for name, h in _tree(batch, "state").items()}
        return self.run_sequence(obs, mask, state, _tensor(batch[STARTS]))

    def run(self, obs: TensorObs, mask: Tensor | None = None) -> PolicyOut:
        """Distribution and values of observations (B, ...) or (T, N, ...), for a policy that keeps no state."""
        leaf = self.layout.leaves[0]
        first = obs if isinstance(obs, Tensor) else obs[leaf.path]
        leading = first.shape[: first.dim() - len(leaf.shape)]
        if len(leading) == 1:
            return self.head.out(self.outputs(obs), mask, {})
        outputs = self.outputs(map_obs(lambda x: x.flatten(0, len(leading) - 1), obs))
        return self.head.out(tuple(output.unflatten(0, leading) for output in outputs), mask, {})

    def outputs(self, obs: TensorObs) -> tuple[Tensor, ...]:
        """The network's outputs for observations (B, ...), as `head` reads them: what `run` makes its answer of."""
        first = obs if isinstance(obs, Tensor) else next(iter(obs.values()))
        return self.head.checked(self._network(self.normalized(obs)), (len(first),))

    def run_sequence(self, obs: TensorObs, mask: Tensor | None, state: State, starts_TN: Tensor) -> PolicyOut:
        """Distribution, values and last state of a recurrent policy over observations (T, N, ...)."""
        steps, envs = starts_TN.shape
        if self.statistics is not None:
            rows = self.statistics(map_obs(lambda x: x.flatten(0, 1), obs))
            obs = map_obs(lambda x: x.unflatten(0, (steps, envs)), rows)
        *outputs, after = self.module(obs, state, starts_TN)
        return self.head.out(self.head.checked(tuple(outputs), starts_TN.shape), mask, after)

    def _rows_of_sequences(self, batch: SequenceBatch) -> PolicyOut:
        steps = batch.steps
        out = self.run_sequence(batch.steps_of("obs"), steps.get(MASK), dict(batch.initial), steps[STARTS])
        return self.head.rows(out, batch.valid_TN)

    def _network(self, obs: TensorObs) -> Any:
        if self.has_critics:
            return self._actor_outputs(obs)
        if self._towers is not None and all(parameter.requires_grad for parameter in self.parameters):
            return cast("ActorCritic", self.module).from_flat(self._leaf, self._towers, obs)
        return self.module(obs)

    def resample(self, rng: np.random.Generator | None = None) -> None:
        """Draws the noise of a network that explores by noise anew, for itself and then for `target`.

        rng: draws it; None: the policy's own generator. A module of one's own takes part if it has `resample(rng)`.
        """
        if self._draw is not None:
            rng = self._noise_rng if rng is None else rng
            self._draw(rng)
            if self._target is not None:
                self._target.resample(rng)

    def noise_state(self) -> dict[str, Any]:
        """The state of the generator that `resample` draws from."""
        return dict(self._noise_rng.bit_generator.state)

    def set_noise_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state."""
        self._noise_rng.bit_generator.state = state

    @property
    def target(self) -> Policy:
        """A copy of this policy in evaluation mode, buffers too, as it stood when it was first asked for; made then."""
        if self._target is None:
            self._target = self._copy()
            self._target.module.eval()
        return self._target

    def outputs_of_target(self, obs: TensorObs) -> tuple[Tensor, ...]:
        """The outputs of the target's network for observations (B, ...), which this policy normalizes."""
        first = obs if isinstance(obs, Tensor) else next(iter(obs.values()))
        return self.head.checked(self.target._network(self.normalized(obs)), (len(first),))

    def target_params(self, obs: TensorObs) -> Tensor:
        """The outputs (B, P) of the target's actor for observations (B, ...), which this policy normalizes."""
        first = obs if isinstance(obs, Tensor) else next(iter(obs.values()))
        outputs = self.target._actor_outputs(self.normalized(obs))
        return self.head.checked(outputs, (len(first),))[0]

    @property
    def has_target(self) -> bool:
        """Whether `target` was ever asked for."""
        return self._target is not None

    def _copy(self) -> Policy:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        other._adopt(copy.deepcopy(self.module), copy.deepcopy(self.statistics))
        other._generator = torch.Generator()
        other._generator.set_state(self._generator.get_state())
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.spec, self.spaces, self.get_weights(), self.other_buffers())

    def __repr__(self) -> str:
        return f"Policy({self.spec}, {self.spaces.observation} -> {self.spaces.action}, {len(self.flat):,} weights)"


def map_obs(function: Callable[[Any], Tensor], obs: Any) -> TensorObs:
    """The function of an observation's array, or of each part of a nested one."""
    return {path: function(part) for path, part in obs.items()} if isinstance(obs, dict) else function(obs)


def _tensor(column: Any) -> Tensor:
    return column if isinstance(column, Tensor) else torch.tensor(np.asarray(column))


def _tree(batch: Mapping[str, Any], path: str) -> Any:
    """The column `path`, or else those below it as a dict by their path from there on."""
    if path in batch:
        return batch[path]
    below = {name[len(path) + 1 :]: batch[name] for name in batch if name.startswith(path + "/")}
    return below or batch[path]


def _state(state: Mapping[str, npt.ArrayLike], one: bool) -> State:
    arrays = {name: np.asarray(h, np.float32) for name, h in state.items()}
    return {name: torch.tensor(h[None] if one else h) for name, h in arrays.items()}


def _rebuild(spec: PolicySpec, spaces: Spaces, flat: Float32, buffers: Mapping[str, npt.NDArray[Any]]) -> Policy:
    policy = Policy(spec, spaces)
    policy.set_weights(flat)
    policy.set_other_buffers(buffers)
    return policy
