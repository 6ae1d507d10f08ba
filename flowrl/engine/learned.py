"""The policies that a run learns, as users ask for them."""

from __future__ import annotations

from typing import Any

from flowrl.engine.core import Engine


class Learned:
    """A run's policies: of the actor groups that have `policy_state` (or `policy_states`, where one trains several)."""

    _engine: Engine

    @property
    def has_policy(self) -> bool:
        """Whether one learner, and so one policy, is in this run."""
        return len(self._learners()) == 1

    def policy(self, name: str | None = None) -> Any:
        """The newest policy of a learner, on the driver: `policy.act(obs)`.

        name: a policy's id, or its learner's group.

        Raises:
            LookupError: no learner, or several policies and none named.
        """
        state, actor_class = self._policy_state(name)
        return actor_class.policy_from(state)

    def policies(self) -> dict[str, Any]:
        """The newest policy of each policy id that is learned in this run, on the driver."""
        return {name: cls.policy_from(state) for name, (state, cls) in self._policy_states().items()}

    def policy_state(self, name: str | None = None) -> dict[str, Any]:
        """What `policy` is made of: spec, spaces, flat weights, version."""
        return self._policy_state(name)[0]

    def policy_states(self, *, timeout_s: float | None = None) -> dict[str, dict[str, Any]]:
        """What `policies` are made of, by policy id; by their learners' groups where two have one id.

        Raises:
            TimeoutError: a learner has not answered within timeout_s.
        """
        return {name: state for name, (state, _) in self._policy_states(timeout_s).items()}

    def _learners(self) -> dict[str, list[Any]]:
        """The learners by group: those that live, else the first."""
        living = {group: [one for one in all if one.up] or all[:1] for group, all in self._engine.states.items()}
        return {group: states for group, states in living.items() if hasattr(states[0].actor_class, "policy_state")}

    def _policy_states(self, timeout_s: float | None = None) -> dict[str, tuple[dict[str, Any], Any]]:
        found = [
            (group, one, learners[0].actor_class)
            for group, learners in self._learners().items()
            for one in self._states_of(learners, timeout_s)
        ]
        ids = [state["policy_id"] for _, state, _ in found]
        apart = len(set(ids)) == len(ids)
        return {state["policy_id"] if apart else group: (state, cls) for group, state, cls in found}

    def _states_of(self, learners: list[Any], timeout_s: float | None = None) -> list[dict[str, Any]]:
        if hasattr(learners[0].actor_class, "policy_states"):  # one that trains several policies together
            return list(self._ask(learners[0], "policy_states", timeout_s).values())
        # One that has just been started again in place of another knows nothing yet.
        states = [self._ask(learner, "policy_state", timeout_s) for learner in learners]
        return [max(states, key=lambda state: state.get("version") or 0)]

    def _policy_state(self, name: str | None) -> tuple[dict[str, Any], Any]:
        learners = self._learners()
        if name is None and len(learners) != 1:
            raise LookupError(
                f"policy(name) must name one of this run's learners: {', '.join(learners) or 'it has none'}"
            )
        if name is None:
            name = next(iter(learners))
        if name not in learners:
            found = self._policy_states()
            if name not in found:
                known = ", ".join(sorted({*learners, *found})) or "none"
                raise LookupError(f"no learner or policy is called {name!r}; this run has {known}")
            return found[name]
        states = self._states_of(learners[name])
        if len(states) != 1:
            ids = ", ".join(state["policy_id"] for state in states)
            raise LookupError(f"policy(name) must name one policy of learner {name!r}: {ids}")
        return states[0], learners[name][0].actor_class

    def _ask(self, state: Any, method: str, timeout_s: float | None) -> Any:
        return self._engine.handle(state, f"run.{method}", held=False).ask(method).result(timeout_s)
