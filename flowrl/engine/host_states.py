"""An actor's state, taken and given inside the actor: its object's, and its shards' operators'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flowrl.checkpoint import Pickled, State
from flowrl.engine.cursor_states import set_stage_state, stage_state
from flowrl.engine.keeping import HandleKeeper
from flowrl.engine.restoring import HandleRestorer
from flowrl.errors import CheckpointError
from flowrl.handles import keeps_state
from flowrl.operator import Operator

if TYPE_CHECKING:
    from flowrl.engine.host import Host

SMALL = 4096  # bytes of a file that is read to know it


class ActorKeeper(HandleKeeper):
    """Makes an actor's state plain; its pickles stay out unless they are wanted."""

    def __init__(self, *, pickles: bool):
        self._wants_pickles = pickles

    def __call__(self, value: Any, where: str) -> State:
        return super().__call__(_without(value) if not self._wants_pickles else value, where)


def _without(value: Any) -> Any:
    """The same dicts, lists and tuples without the bytes of pickles."""
    if type(value) is Pickled:
        return Pickled(None)
    if type(value) is dict:
        return {key: _without(entry) for key, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_without(entry) for entry in value)
    return value


def save_host(host: Host, body: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the state into the checkpoint's directory, or answers with it where that cannot be seen from here.

    body: the `directory`, the entry of a file in it by which that is known (`probe`), whether `pickles` are wanted.
    """
    from flowrl.checkpoint import write_state
    from flowrl.checkpoint.storage import folder

    name = host.me.name
    keep = ActorKeeper(pickles=body["pickles"])
    has = keeps_state(host.object)
    state = {
        "object": keep(host.object.get_state(), f"the state of {name}") if has else None,
        "shards": [
            {
                "ended": shard.ended,
                "pulls": shard.pulls,
                "stages": [stage_state(stage, keep) for stage in shard.stages],
            }
            for shard in host.shards.values()
        ],
    }
    said: dict[str, Any] = {"keeps_state": has}
    policy = _policy(host)
    if not _seen(folder(body["directory"]), body["probe"]):
        return {**said, "state": state, "policy_state": policy}
    if policy is not None:
        said["policy"] = write_state(body["directory"], f"{name} policy", policy)
    return {**said, "entry": write_state(body["directory"], name, state)}


def _policy(host: Host) -> State:
    """The policy of a group's first actor, for those who only want to act with it; None where there is none to save."""
    make = getattr(host.object, "policy_as_state", None)
    if host.me.index or not callable(make):
        return None
    try:
        return make()
    except (CheckpointError, RuntimeError):  # its spaces have no plain form, or it has not met its environments yet
        return None


def restore_host(host: Host, body: Mapping[str, Any]) -> dict[str, Any]:
    """Goes on from a state: one that came along, or that of the checkpoint. `anew`: the object begins new items.

    Raises:
        CheckpointError: the state is damaged.
    """
    from flowrl.checkpoint import read_state
    from flowrl.checkpoint.storage import folder

    if "state" in body:
        state = body["state"]
    elif not _seen(folder(body["directory"]), body["entry"]):
        return {"unseen": True}
    else:
        state = read_state(body["directory"], body["name"], body["entry"], trust_pickles=body["trust"])
    back = HandleRestorer()
    if body.get("absorb"):
        host.object.absorb(back(state["object"]))
        return {"anew": False, "withheld": False}
    own, anew, withheld = state["object"], False, False
    if own is not None and keeps_state(host.object):
        withheld = _withheld(own)
        anew = host.object.set_state(back(own)) is False
    for shard, said in zip(host.shards.values(), state["shards"], strict=False):
        shard.ended, shard.pulls = said["ended"], said["pulls"]
        for stage, of_stage in zip(shard.stages, said["stages"], strict=True):
            set_stage_state(stage, of_stage, back)
            if anew and type(stage.op).actor_started is not Operator.actor_started:
                stage.op.actor_started(host.me, stage.ctx)
    return {"anew": anew, "withheld": withheld}


def _seen(where: Any, entry: Mapping[str, Any]) -> bool:
    """Whether these very files are there. A large one is only looked at for its size."""
    try:
        return all(
            where.size(name) == said["bytes"] and (said["bytes"] > SMALL or where.digest(name) == said)
            for name, said in entry["files"].items()
        )
    except OSError:
        return False


def _withheld(state: State) -> bool:
    """Whether a pickle was not read."""
    if type(state) is Pickled:
        return state.payload is None
    if type(state) is dict:
        return any(_withheld(entry) for entry in state.values())
    return type(state) in (list, tuple) and any(_withheld(entry) for entry in state)
