"""What a training is to reach, and whether it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flowrl.continuing import Start
from flowrl.flow import Flow
from flowrl.numbers import check_finite, check_whole

if TYPE_CHECKING:
    from flowrl.engine.run import Run

CONFIRMING_EPISODES = 20
RETURN_WINDOW = 100  # training episodes whose mean return is held against stop_return


def goal_of(
    config: Any, start: Start | None, total_steps: int | None, stop_return: float | None
) -> dict[str, float | None]:
    """total_steps and stop_return: those that are given, or else those of the checkpoint that one goes on from.

    Raises:
        ValueError: one is out of range, or there is none for an algorithm that would never end.
    """
    if total_steps is None and stop_return is None and start is not None:
        total_steps, stop_return = start.goal.get("total_steps"), start.goal.get("stop_return")
    if total_steps is None and stop_return is None and not isinstance(config, Flow):
        raise ValueError("train needs total_steps or stop_return, or it would never end")
    if total_steps is not None:
        check_whole("total_steps", total_steps)
        if start is not None and start.env_steps >= total_steps:
            raise ValueError(
                f"{start.path} has taken {start.env_steps:,} environment steps already: total_steps={total_steps:,} "
                "must be more"
            )
    if stop_return is not None:
        check_finite("stop_return", stop_return)
    return {"total_steps": total_steps, "stop_return": stop_return}


def confirmed(running: Run[Any], history: Sequence[Any], stop_return: float | None) -> Any:
    """The evaluation that judges, if the newest Summary says that the goal may be reached; else None."""
    if stop_return is None:
        return None
    summary = history[-1]
    trained = summary.episodes >= RETURN_WINDOW and summary.episode_return_mean >= stop_return
    if not trained and not any(found >= stop_return for found in _new_evaluations(history)):
        return None
    return running.evaluate(CONFIRMING_EPISODES)


def _new_evaluations(history: Sequence[Any]) -> list[float]:
    """The mean returns of evaluations beside training (EvaluateEvery) that the newest Summary is the first to tell of.

    Workers that explore for ever, as Ape-X has them, never reach in training what their policy can.
    """
    before = history[-2].nodes if len(history) > 1 else {}
    return [
        table["return_mean"]
        for name, table in history[-1].nodes.items()
        if "return_mean" in table and table.get("evaluations") != before.get(name, {}).get("evaluations")
    ]
