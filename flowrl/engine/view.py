"""What operators and users see of a run: live handles, published weights, figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowrl.engine.replaced import wait_up
from flowrl.handles import ActorGroup, ActorHandle, Pending
from flowrl.ref import Ref

if TYPE_CHECKING:
    from flowrl.engine.call import ActorState
    from flowrl.engine.core import Engine


def newest_published(states: Sequence[ActorState]) -> tuple[int, Ref[Any]] | None:
    """The newest weights that any of these actors published: where one answers for all, it may have died."""
    if len(states) == 1:
        return states[0].published
    found = [(state.published, state.up) for state in states if state.published is not None]
    return max(found, key=lambda one: (one[0][0], one[1]), default=(None, False))[0]


class NodeView:
    """What a node's context may see of the run."""

    __slots__ = ("engine", "node", "prefix")

    def __init__(self, engine: Engine, node: str, prefix: str):
        self.engine, self.node, self.prefix = engine, node, prefix

    def actors_of(self, group: ActorGroup[Any]) -> tuple[ActorHandle[Any], ...]:
        """The live handles of a group that the node holds."""
        states = self.engine.states.get(self.prefix + group.name)
        if states is None:
            raise KeyError(
                f"group {group.name!r} is not part of this run: an operator must hold it as a dataclass field "
                f"(or a callable in its closure); the run has {', '.join(self.engine.states) or 'no groups'}"
            )
        return tuple(self.engine.handle(state, self.node, held=True) for state in states)

    def living_of(self, group: ActorGroup[Any]) -> tuple[ActorHandle[Any], ...]:
        """Those of `actors_of` whose process is up."""
        return tuple(handle for handle in self.actors_of(group) if self.engine.state_of(handle).up)

    def is_up(self, handle: ActorHandle[Any], *, wait: bool) -> bool:
        """Whether the actor's process is up, once what is known of its death is decided."""
        state = self.engine.state_of(handle)
        self.engine.lives.settle_deaths(state)
        if wait:
            wait_up(self.engine, state)
        return state.up

    def seed(self) -> int:
        """The seed of the node's own random stream."""
        return self.engine.seed_of(self.node)

    def bound(self, handles: tuple[ActorHandle[Any], ...]) -> tuple[ActorHandle[Any], ...]:
        """The same actors, messaged in this node's name."""
        engine = self.engine
        return tuple(engine.handle(engine.known(h), self.node, held=True) for h in handles)

    def published(self, learner: ActorHandle[Any] | ActorGroup[Any]) -> tuple[int, Ref[Any]] | None:
        """The newest weights that an actor, or any of a group, published."""
        handles = (learner,) if isinstance(learner, ActorHandle) else self.actors_of(learner)
        found = newest_published([self.engine.state_of(handle) for handle in handles])
        return None if found is None else (found[0], Ref(found[1]._tree, found[1].info, self.engine.fetch))

    def groups(self) -> Mapping[str, tuple[ActorHandle[Any], ...]]:
        """Every group of the run."""
        return {
            name: tuple(self.engine.handle(state, self.node, held=True) for state in states)
            for name, states in self.engine.states.items()
        }

    def having(self, method: str) -> tuple[ActorHandle[Any], ...]:
        """The actors whose class has a method; `states` lists sources first."""
        return tuple(
            self.engine.handle(state, self.node, held=True)
            for states in self.engine.states.values()
            for state in states
            if callable(getattr(state.actor_class, method, None))
        )

    def deterministic(self) -> bool:
        """Whether the graph is."""
        return self.engine.deterministic

    def report(self) -> Any:
        """The run's figures."""
        return self.engine.accounts


class HandleLink:
    """Ties handles to a run: those of operators hold their tells, those of run.actors send at once."""

    __slots__ = ("held", "node", "run")

    def __init__(self, run: Any, node: str, *, held: bool):
        self.run, self.node, self.held = run, node, held

    def ask(self, handle: ActorHandle[Any], method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Pending[Any]:
        """A call that is out."""
        run = self.run
        state = run.state_of(handle)
        if state.reviver is None or not (self.held and run.moves_here):
            return Pending(run.calls.ask(state, method, args, kwargs, self.node), run)
        return self._ask(state, method, args, kwargs, None)

    def _ask(
        self, state: ActorState, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any], within_s: float | None
    ) -> Pending[Any]:
        """A call of an actor that outlives its deaths, once it is up."""
        run = self.run
        run.lives.settle_deaths(state)
        wait_up(run, state, within_s)

        def again(within_s: float | None) -> Pending[Any]:
            return self._ask(state, method, args, kwargs, within_s)

        return Pending(run.calls.ask(state, method, args, kwargs, self.node), run, again=again)

    def tell(self, handle: ActorHandle[Any], method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A held tell, or one that goes at once."""
        self.run.calls.tell(self.run.state_of(handle), method, args, kwargs, self.node, held=self.held)
