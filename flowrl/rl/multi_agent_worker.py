"""The rollout worker of environments with several agents, each of which plays one of several policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.errors import add_note
from flowrl.numbers import check_whole
from flowrl.ref import Answer
from flowrl.rl.agent_ids import WithAgentIds
from flowrl.rl.agents_env import AgentsEnv
from flowrl.rl.agents_faults import AgentsFaults, check_agents_options, close_all
from flowrl.rl.agents_rollout import AgentsRollout, evaluation_of
from flowrl.rl.envs import EnvSource, describe, make_agents_env
from flowrl.rl.episodes import Casting, PolicyOf
from flowrl.rl.epsilon import checked_epsilon, restored_epsilon
from flowrl.rl.evaluation import EVALUATION_KEY, MAX_STEPS, Evaluation, quotas
from flowrl.rl.global_state import GlobalState
from flowrl.rl.playstate import freeze_plays, thaw_plays
from flowrl.rl.roles import Role, Scripted
from flowrl.rl.spec import PolicySpec, Spaces
from flowrl.rl.vector import child
from flowrl.rl.watchdog import Watchdog
from flowrl.rl.wrappers import EnvOptions

ENVS, ACTIONS, WEIGHTS, EPISODES = range(4)  # the worker's streams of random numbers, below its seed


class MultiAgentWorker:
    """Steps `num_envs` copies of an environment of several agents; each `sample` is one fragment.

    Args:
        env: a factory of one environment, or "pkg.module:Name" of one: PettingZoo's parallel or AEC kind, or dicts by
            agent (`flowrl.rl.agents_env.AgentsEnv`). A factory with a parameter `ctx` gets an EnvContext.
        policies: by id, what each is made of (a PolicySpec), or a `Scripted` one.
        policy_of: (agent_id, episode) -> policy id, asked once an agent and episode; `episode` has an `index` and a
            generator `rng` of its own. None where there is one policy, which all share.
        collect: the policies whose experience is gathered; None: all that are no function.
        steps: vector steps of a fragment.
        num_envs: copies of the environment.
        env_kwargs: keyword arguments of the environment.
        env_options: of `EnvOptions` what concerns faults: on_fault, env_timeout_s (of actors in processes of their
            own), crash_dir.
        reward_clip: rewards of transitions are clipped to ± this for training.
        next_obs: whether batches have the column `next_obs`.
        agent_ids: whether observations say whose they are (`flowrl.rl.agent_ids.WithAgentIds`), for shared policies.
        joint: whether batches say besides how the whole environment stood, for central critics (`sample`).
        index, count, seed: as RolloutWorker's; the engine gives them.

    Raises:
        ValueError: a number below 1; a policy that nobody defined; one policy for agents of different spaces.
        TypeError: the environment does not follow the protocol.
    """

    default_cpus = 1
    casting: ClassVar[type[Casting]] = Casting

    def __init__(
        self,
        env: EnvSource,
        policies: Mapping[str, PolicySpec | Scripted],
        policy_of: PolicyOf | None = None,
        *,
        collect: tuple[str, ...] | None = None,
        steps: int = 128,
        num_envs: int = 1,
        env_kwargs: Mapping[str, Any] | None = None,
        env_options: EnvOptions = EnvOptions(),  # noqa: B008  (frozen)
        reward_clip: float | None = None,
        next_obs: bool = False,
        agent_ids: bool = False,
        joint: bool = False,
        index: int = 0,
        count: int = 1,
        seed: int | np.random.SeedSequence | None = None,
    ):
        check_whole("steps", steps)
        check_whole("num_envs", num_envs)
        if reward_clip is not None and not reward_clip > 0:
            raise ValueError(f"reward_clip must be above 0, got {reward_clip}")
        if not policies:
            raise ValueError("policies must have at least one: {'default': PolicySpec()}")
        unknown = set(collect or ()) - set(policies)
        if unknown:
            raise ValueError(f"collect names {sorted(unknown)}, which are not among the policies {sorted(policies)}")
        self._env, self._env_kwargs, self._name = env, dict(env_kwargs or {}), describe(env)
        self._steps, self._num_envs, self._next_obs, self._agent_ids = steps, num_envs, next_obs, agent_ids
        self._index, self._count = index, count
        self._stream = (
            seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed, spawn_key=(index,))
        )
        check_agents_options(env_options)
        timeout_s = env_options.env_timeout_s
        self._watchdog = None if timeout_s is None else Watchdog(timeout_s)
        self._faults = AgentsFaults(env, env_kwargs, env_options, index, count, num_envs, child(self._stream, ENVS))
        envs = [self._faults.made(lambda i=i: self._make_env(child(self._stream, ENVS, i), i)) for i in range(num_envs)]  # type: ignore[misc]
        self._casting = self.casting(tuple(policies), policy_of, envs[0], self._name)
        spaces = self._casting.spaces
        self._scripted = {name: spec for name, spec in policies.items() if isinstance(spec, Scripted)}
        self._roles = {
            name: Role(name, spec, spaces[name], num_envs, child(self._stream, WEIGHTS, i))
            for i, (name, spec) in enumerate(policies.items())
            if isinstance(spec, PolicySpec)
        }
        self._joint = GlobalState(envs[0], self._casting.of_agents, self._name) if joint else None
        self._collected = tuple(self._roles) if collect is None else tuple(collect)
        self._steps_taken = 0
        self._rng = np.random.default_rng(child(self._stream, ACTIONS))
        self._rollout = AgentsRollout(
            envs, self._casting, self._roles, self._scripted, self._rng, child(self._stream, EPISODES),
            name=self._name, first=index, stride=count, reward_clip=reward_clip, joint=self._joint,
            watchdog=self._watchdog,
        )  # fmt: skip
        if self._watchdog is not None:
            self._watchdog.before = lambda call: self._faults.hangs(self._rollout, call)

    def _make_env(self, seeds: np.random.SeedSequence, i: int) -> AgentsEnv:
        env = make_agents_env(self._env, self._env_kwargs, worker_index=self._index, num_workers=self._count,
                              env_index=i, seed=int(seeds.generate_state(1)[0] >> 1))  # fmt: skip
        return WithAgentIds(env) if self._agent_ids else env

    # experience
    def sample(self) -> Answer[MultiAgentBatch]:
        """One fragment: `steps` steps of each environment, the batch of each policy time-major.

        A column for each (environment, agent) that ever played the policy, in which the agent's own transitions follow
        one another; what is left of the T rows is not valid. A transition that is still under way at the end
        (its agent is not to act yet) comes with a later fragment. Columns are RolloutWorker's, and with `joint`:
        global_state and next_global_state (S,), the environment's `state()` or else all observations joined
        (`flowrl.rl.global_state.GlobalState`); alive and next_alive (K,), which of all possible agents are to act;
        over, whether the episode ended with it; and what tells which rows belong together: env, moment (the worker's
        steps before it), took (steps until the agent acted again, or its end), agent (its number). env_steps are steps
        of environments, agent_steps transitions. Metrics: episode_return (of all agents together), episode_length and
        episodes, and each policy's own: episode_return and episode_length of its agents.

        Raises:
            FloatingPointError: a reward, an observation or a policy's output is not finite.
            Whatever the environment raises, with a note where. The next sample then begins new episodes. With
            `EnvOptions(on_fault=Restart(n))` as RolloutWorker.sample says.
        """
        rollout = self._rollout
        while (batches := self._batches()) is None:
            pass
        self._steps_taken += self._steps
        for role in rollout.roles.values():  # a league's members too
            role.rows.clear()  # of policies whose experience nobody wants
        metrics, rollout.ended = self._metrics(rollout), []
        if self._faults.in_a_row:
            metrics |= self._faults.outlived()
        made = {name: batch for name, batch in batches.items() if batch is not None}
        version = min((self._roles[name].version for name in self._collected), default=None)
        return Answer(MultiAgentBatch(made, env_steps=self._steps * self._num_envs), metrics, version)

    def _batches(self) -> dict[str, Batch | None] | None:
        """The batches of a fragment; None where an environment's fault has cost it, which is outlived."""
        rollout, taken = self._rollout, 0
        try:
            for taken in range(self._steps):  # noqa: B007  # how far it came
                rollout.step()
            return {name: self._roles[name].batch(self._steps, next_obs=self._next_obs) for name in self._collected}
        except BaseException as error:
            fault = rollout.fault if rollout.fault is not None and rollout.fault.error is error else None
            if fault is not None:
                self._faults.tell(fault, rollout.faulty)
            rollout.forget()
            add_note(
                error,
                f"in worker {self._index} of {self._count}, environment {self._name} (one of its {self._num_envs}), "
                f"after {self._steps_taken + taken} vector steps",
            )
            if fault is None or not self._faults.goes_on(fault.error, taken * self._num_envs):
                raise
        assert fault.env is not None
        self._make_anew(fault.env)
        return None

    def _make_anew(self, i: int) -> None:
        """Another environment in place of one that failed."""
        with suppress(Exception):  # it is given up in any case
            self._rollout.envs[i].close()
        self._rollout.envs[i] = self._faults.made(lambda: self._make_env(child(self._stream, ENVS, i), i))

    def _metrics(self, rollout: AgentsRollout) -> dict[Any, Any]:
        return rollout.metrics()

    # the policies
    @property
    def policies(self) -> dict[str, PolicySpec]:
        """By id, what each policy that has weights is made of."""
        return {name: role.spec for name, role in self._roles.items()}

    def spaces(self) -> dict[str, Spaces]:
        """The spaces of the policies that are trained, or could be."""
        team = None if self._joint is None else self._joint.team
        return {name: replace(self._casting.spaces[name], team=team) for name in self._roles}

    def set_weights(
        self, flat: npt.NDArray[np.float32], version: int, policy: str | tuple[str, ...] | None = None
    ) -> None:
        """Takes a policy's flat weights and their version; a copy is kept.

        policy: where there are several; of those named together the weights stand one after the other in `flat`.

        Raises:
            ValueError: no such policy, or another length than theirs; names both.
        """
        if not isinstance(policy, tuple):
            return self._role(policy).set_weights(flat, version)
        for name, weights in self._apart(flat, policy).items():
            self._role(name).set_weights(weights, version)

    def _apart(self, flat: npt.NDArray[np.float32], policies: tuple[str, ...]) -> dict[str, npt.NDArray[np.float32]]:
        """The weights of several policies, which stand one after the other."""
        ends = np.cumsum([self._role(name).net.size for name in policies])
        if len(flat) != ends[-1]:
            raise ValueError(f"the policies {policies} have {ends[-1]} weights together, got {len(flat)}")
        return dict(zip(policies, np.split(flat, ends[:-1]), strict=True))

    def set_policy(
        self, spec: PolicySpec, flat: npt.NDArray[np.float32] | None = None, version: int = 0, policy: str | None = None
    ) -> None:
        """Puts another policy in a policy's place; without weights it begins with its initial ones.

        Transitions under way are forgotten, as the new one would have to answer for them: new episodes begin.
        """
        role = self._role(policy)
        role.put(spec, child(self._stream, WEIGHTS, list(self._roles).index(role.policy_id)))
        if flat is not None:
            role.set_weights(flat, version)
        self._rollout.forget()

    def set_epsilon(self, value: npt.ArrayLike, policy: str | tuple[str, ...] | None = None) -> None:
        """From the next step on, an action of this policy, or of these, is uniform with this probability: a number, or
        one an environment (N,)."""
        for name in policy if isinstance(policy, tuple) else (policy,):
            role = self._role(name)
            role.epsilon = checked_epsilon(value, self._num_envs, role.net)

    def _role(self, policy: str | None) -> Role:
        if policy is None and len(self._roles) == 1:
            return next(iter(self._roles.values()))
        if policy not in self._roles:
            raise ValueError(
                f"policy={policy!r} must name one of this worker's policies: {', '.join(map(repr, self._roles))}"
            )
        return self._roles[policy]

    def evaluate(
        self,
        episodes: int = 20,
        seed: int = 0,
        deterministic: bool = True,
        weights: npt.NDArray[np.float32] | None = None,
        version: int | None = None,
        *,
        policy: str | None = None,
        max_steps: int = MAX_STEPS,
    ) -> Answer[Evaluation]:
        """An Evaluation of all policies as they are, on environments of its own with seeds of its own.

        Its returns are those of all agents together, and its `policies` are Evaluations of each policy's agents.

        weights, version: to evaluate instead of the worker's, of `policy`, or of those whose experience is gathered,
            one after the other.

        Raises:
            RuntimeError: an episode does not end within `max_steps`.
            ValueError: weights of another length.
        """
        whose = self._collected if policy is None else (policy,)
        theirs = {} if weights is None else self._apart(weights, whose) if len(whose) > 1 else {whose[0]: weights}
        roles = {name: role.for_evaluation(theirs.get(name)) for name, role in self._rollout.roles.items()}
        stream = np.random.SeedSequence(seed, spawn_key=(EVALUATION_KEY,))
        quota = quotas(episodes, min(episodes, self._num_envs))
        envs = [self._make_env(child(stream, ENVS, i), i) for i in range(len(quota))]
        try:
            rollout = AgentsRollout(
                envs, self._casting, roles, self._scripted, np.random.default_rng(child(stream, ACTIONS)),
                child(stream, EPISODES), name=self._name, deterministic=deterministic,
            )  # fmt: skip
            return Answer(evaluation_of(rollout, quota, max_steps), policy_version=version, env_steps=0)
        except Exception as error:
            add_note(error, f"in an evaluation by worker {self._index}, environment {self._name}")
            raise
        finally:
            for env in envs:
                env.close()

    # its state and end
    def get_state(self) -> dict[str, Any]:
        """All that the next sample depends on; `plays` is None where the environments cannot be pickled."""
        return {
            "rng": self._rng.bit_generator.state,
            "steps_taken": self._steps_taken,
            "begun": list(self._rollout.begun),
            "moments": self._rollout.moments,
            "plays": freeze_plays(self._rollout) if self._rollout.plays else None,
            "playing": bool(self._rollout.plays),
            "policies": {
                name: {
                    "weights": role.flat.copy(),
                    "version": role.version,
                    "epsilon": role.epsilon,
                    "columns": role.columns_state(),
                }
                for name, role in self._roles.items()
            },
        }

    def set_state(self, state: Mapping[str, Any]) -> bool:
        """Goes on from a state: the next sample is that of the worker that gave it, number for number.

        Whether it is so: else new episodes begin, where there are none in it or other than `num_envs`.

        Raises:
            ValueError: a policy is not this worker's, or its weights are of another.
        """
        for name, one in state["policies"].items():
            role = self._role(name)
            role.set_weights(np.asarray(one["weights"]), int(one["version"]))
            role.epsilon = restored_epsilon(one["epsilon"], self._num_envs, role.net)
            if len(state["begun"]) == self._num_envs:
                role.set_columns(one["columns"])
        self._rng.bit_generator.state = state["rng"]
        self._steps_taken = int(state["steps_taken"])
        self._rollout.forget()
        self._rollout.moments = int(state["moments"])
        most = max(state["begun"], default=0)
        same = len(state["begun"]) == self._num_envs
        self._rollout.begun = list(state["begun"]) if same else [most] * self._num_envs  # no episode comes twice
        return same and (not state["playing"] or thaw_plays(self._rollout, state["plays"]))

    def each_env(self, act: Callable[[Any], Any]) -> list[Any]:
        """What a function gives of each environment: to look into them, or for a curriculum."""
        return [act(env.env) for env in self._rollout.envs]

    def close(self) -> None:
        """Closes the environments; again does nothing."""
        envs, self._rollout.envs = self._rollout.envs, []
        if self._watchdog is not None:
            self._watchdog.close()
        close_all(envs)
