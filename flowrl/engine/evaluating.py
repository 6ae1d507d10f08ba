"""What `run.evaluate` does: whole episodes by the run's evaluators, or by a worker, whoever of them dies meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowrl.engine.call import ActorState
from flowrl.engine.turns import between_items
from flowrl.engine.view import newest_published
from flowrl.errors import ActorDied, FlowError, PayloadLost
from flowrl.handles import Pending

if TYPE_CHECKING:
    from flowrl.engine.core import Engine
    from flowrl.engine.run import Run


def evaluate_run(run: Run[Any], episodes: int, deterministic: bool) -> Any:
    """What `Run.evaluate` says."""
    engine = run._engine
    able = [states for states in engine.states.values() if hasattr(states[0].actor_class, "evaluate")]
    if not able:
        raise LookupError("no actor of this run can evaluate; evaluators and rollout workers can")
    apart = next((states for states in able if getattr(states[0].actor_class, "evaluates", False)), None)
    run._evaluations += 1
    seed = engine.seed_of("evaluation", run._evaluations)
    while True:
        asked = [
            engine.handle(state, "evaluate", held=False).ask(
                "evaluate", episodes, seed, deterministic=deterministic, **_newest(engine), **given
            )
            for state, given in (_one_of(run, able[0]) if apart is None else _shares(run, apart))
        ]
        parts = _answers(asked)
        if parts is not None:
            found = [part for part in parts if part is not None]
            return found[0] if len(found) == 1 else type(found[0]).concat(found)
        _decide(run, able[0] if apart is None else apart, one=apart is None)


def _newest(engine: Engine) -> dict[str, Any]:
    newest = [out for states in engine.states.values() if (out := newest_published(states)) is not None]
    return dict(zip(("version", "weights"), newest[0], strict=True)) if len(newest) == 1 else {}


def _one_of(run: Run[Any], states: list[ActorState]) -> list[tuple[ActorState, dict[str, Any]]]:
    """A worker that is up."""
    if not any(state.up for state in states):
        _decide(run, states, one=True)
    return [(next((state for state in states if state.up), states[0]), {})]


def _shares(run: Run[Any], states: list[ActorState]) -> list[tuple[ActorState, dict[str, Any]]]:
    """The evaluators with their shares; those that are on their way up are waited for."""
    if any(state.restarting for state in states):
        _decide(run, states, one=False)
    living = [state for state in states if state.up] or states
    alone = len(living) == len(states)
    return [(state, {} if alone else {"share": (place, len(living))}) for place, state in enumerate(living)]


def _answers(asked: list[Pending[Any]]) -> list[Any] | None:
    """All parts, or None where one was lost with an actor, or with the node that it lay on."""
    parts: list[Any] = []
    lost = False
    for pending in asked:
        try:
            parts.append(pending.result())
        except (ActorDied, PayloadLost) as error:
            if pending.run.moves_here or pending.undelivered or (isinstance(error, ActorDied) and not pending.lost):
                raise
            lost = True
    return None if lost else parts


def _decide(run: Run[Any], states: list[ActorState], *, one: bool) -> None:
    """Takes the run's turn, has deaths decided, and waits until all that are on their way up are up, or `one` is.

    Raises:
        ActorDied: a policy does not go on, which stops the run. FlowError: nobody is left.
    """
    engine = run._engine
    if engine.closed or engine.moves_here:
        return  # who asks is told
    with between_items(run, "evaluate"):
        while True:
            try:
                engine.poll()
                away = any(state.restarting for state in states)
                if not away or (one and any(state.up for state in states)):
                    break
                engine.wait(None)
            except Exception as error:
                run._stop(error)
                raise
    if not any(state.alive for state in states):
        raise FlowError(f"all of {states[0].group!r} have died, so nobody is left to evaluate; start another run")
