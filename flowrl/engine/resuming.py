"""Resuming a run: a graph's actors and cursors are made as for any run, and then go on from a checkpoint."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from flowrl import graph
from flowrl.checkpoint import State, read_manifest, read_state
from flowrl.checkpoint.storage import Where
from flowrl.engine.call import ActorState, Call
from flowrl.engine.core import Engine
from flowrl.engine.cursor_states import set_cursor_state
from flowrl.engine.fingerprint import check_same_graph, fingerprint, other_settings
from flowrl.engine.gather_states import go_on
from flowrl.engine.limiter import Limiter
from flowrl.engine.restoring import Restorer
from flowrl.engine.saving import limiters
from flowrl.engine.stats import Accounts, NodeStats
from flowrl.errors import CheckpointError, text_of
from flowrl.handles import ActorGroup, keeps_state
from flowrl.sources import IteratorShard

_log = logging.getLogger("flowrl")
PARTS = ("run", "graph", "groups", "states")  # of a manifest


class Resumption:
    """A checkpoint from which a run goes on.

    trust: whether pickles in it, those of environments, are loaded.

    Raises:
        CheckpointError: it is none, or damaged.
    """

    def __init__(self, path: Where, *, trust: bool):
        self.path, self.trust = os.fspath(path), trust
        self._manifest = read_manifest(path)
        if any(not isinstance(self._manifest.get(part), Mapping) for part in PARTS):
            raise CheckpointError(f"the checkpoint {self.path} holds no run")
        where = str(self._manifest["directory"])
        self._directory = where if "://" in where else os.path.abspath(where)
        self._groups: Mapping[str, Any] = self._manifest["groups"]
        self.seed = int(self._manifest["run"]["seed"])
        self.own: State = None  # of the Run, once restored

    def check(self, root: graph.Node, names: Mapping[graph.Node, str], groups: Mapping[str, ActorGroup[Any]]) -> None:
        """Nothing, if the checkpoint is of this graph; what else differs goes to the log.

        Raises:
            CheckpointError: it is of another one; names the nodes.
        """
        here = fingerprint(root, names, groups)
        check_same_graph(self._manifest["graph"], here)
        for difference in other_settings(self._manifest["graph"], here):
            _log.info("resuming %s: %s", self.path, difference)
        for name, group in groups.items():
            saved = len(self._groups[name]["actors"])
            if group.actor_class is IteratorShard and saved != group.count:
                raise CheckpointError(
                    f"the items of {name} were in {saved} shards and are now in {group.count}, so nobody knows which "
                    f"of them have come: resume with {saved}"
                )

    def count(self, group: str, described: int) -> int:
        """How many actors a group goes on with: as many as were saved, or as the graph says, where that was changed."""
        said = self._groups.get(group, {})
        return len(said["actors"]) if said.get("described") == described else described

    def incarnation(self, group: str, index: int) -> int:
        """Which life an actor begins with: that which was saved, or one that none has had."""
        lives = self._groups[group]["incarnations"]
        if index >= len(lives):
            return 0
        return int(lives[index]) + (self._entry(group, index) is None)

    def _entry(self, group: str, index: int) -> Any:
        actors = self._groups[group]["actors"]
        return actors[index] if index < len(actors) else None

    def restore(self, engine: Engine) -> None:
        """Everything goes on where it stood. The actors are up, and have been greeted as at a start.

        Raises:
            CheckpointError: a state does not fit, or is damaged.
        """
        engine.retired = {name: [int(n) for n in said["incarnations"]] for name, said in self._groups.items()}
        self._remember_gone(engine)
        _calm(engine)
        states = [state for states in engine.states.values() for state in states]
        continued = {state for state in states if self._entry(state.group, state.index) is not None}
        anew = [state for state in states if state not in continued]
        self._say_anew(anew)
        anew += self._restore_actors(engine, [state for state in states if state in continued])
        self._absorb(engine)
        said = read_state(self._directory, "driver", self._manifest["states"]["driver"])
        back = Restorer(engine, continued, said["calls"], said["items"])
        _set_accounts(engine.accounts, said["accounts"])
        engine.calls.lost = said["lost_calls"]
        for name, limiter in limiters(engine).items():
            _set_limiter(limiter, said["limiters"][name], back)
        for group, index, version, weights in said["published"]:
            state = back.state(group, index)
            if state is not None:
                state.published = version, back(weights)
        for cursor in engine.cursors:
            set_cursor_state(cursor, said["cursors"][cursor.name], back)
        for number in said["pending"]:
            call = back.call(number)
            engine.calls.pending[call.sent] = call
        self.own = back(said["own"])
        for state in anew:
            engine.lives.greet(state)
        for cursor in engine.cursors:
            go_on(cursor)
        if back.lost_items:
            _log.warning(
                "resuming %s: %d items of actors that there are no more are left out", self.path, back.lost_items
            )

    def _say_anew(self, anew: list[ActorState]) -> None:
        """Says of actors that had died for good, and whose state is in no checkpoint, that they are back without it."""
        names = [
            state.name
            for state in anew
            if state.index < len(self._groups[state.group]["actors"]) and keeps_state(state.actor_class)
        ]
        if names:
            _log.warning(
                "resuming %s: %s had died before it was saved, so what they held is not in it: they begin anew",
                self.path,
                ", ".join(names),
            )

    def _remember_gone(self, engine: Engine) -> None:
        """Actors that were there no more when the run was saved, of which there may be items."""
        for group, said in self._groups.items():
            states = engine.states[group]
            for index in range(max(len(said["actors"]), len(states)), len(said["incarnations"])):
                engine.gone[group, index] = ActorState.removed(group, index, states[0].actor_class)

    # ---------------------------------------------------------------- actors

    def _restore_actors(self, engine: Engine, states: list[ActorState]) -> list[ActorState]:
        """Gives actors their states; those that begin new items all the same."""
        asked = {state: engine.calls.state(state, "restore", self._body(state)) for state in states}
        answers = {state: self._answer(engine, state, call) for state, call in asked.items()}
        unseen = [state for state, said in answers.items() if said.get("unseen")]
        for state in unseen:  # one at a time: each may be large
            body = {**self._body(state), "state": self._read(state.name, self._entry(state.group, state.index))}
            answers[state] = self._answer(engine, state, engine.calls.state(state, "restore", body))
        withheld = [state.name for state, said in answers.items() if said["withheld"]]
        if withheld:
            _log.warning(
                "resuming %s: the environments of %s begin new episodes, for their states are pickles; "
                "run(..., trust_pickles=True) loads them, which runs code in them: only of a checkpoint of your own",
                self.path,
                ", ".join(withheld),
            )
        return [state for state, said in answers.items() if said["anew"]]

    def _body(self, state: ActorState) -> dict[str, Any]:
        entry = self._entry(state.group, state.index)
        return {"directory": self._directory, "name": state.name, "entry": entry, "trust": self.trust}

    def _read(self, name: str, entry: Any) -> State:
        return read_state(self._directory, name, entry, trust_pickles=self.trust)

    def _answer(self, engine: Engine, state: ActorState, call: Call) -> dict[str, Any]:
        try:
            engine.await_call(call)
            said: dict[str, Any] = call.item(0, engine.backend)
            return said
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"{state.name} cannot go on from the checkpoint {self.path}: {type(error).__name__}: {text_of(error)}"
            ) from error

    def _absorb(self, engine: Engine) -> None:
        """What there is of actors beyond those that there are now: others take it over, or it is left out."""
        for group, said in self._groups.items():
            states = engine.states[group]
            cls = states[0].actor_class
            names = {
                f"{group}[{i}]": i for i in range(len(states), len(said["actors"])) if said["actors"][i] is not None
            }
            if not names or not callable(getattr(cls, "get_state", None)):
                continue
            if callable(getattr(cls, "absorb", None)):
                for name, index in names.items():
                    self._hand_over(engine, name, said["actors"][index], states[index % len(states)])
            else:
                _log.warning(
                    "resuming %s: the states of %s are left out: fewer actors go on", self.path, ", ".join(names)
                )

    def _hand_over(self, engine: Engine, name: str, entry: Any, heir: ActorState) -> None:
        body = {**self._body(heir), "name": name, "entry": entry, "absorb": True}
        if self._answer(engine, heir, engine.calls.state(heir, "restore", body)).get("unseen"):
            body["state"] = self._read(name, entry)
            self._answer(engine, heir, engine.calls.state(heir, "restore", body))
        _log.info("resuming %s: %s takes over what %s held", self.path, heir.name, name)


def _calm(engine: Engine) -> None:
    """Waits for the answers to all that the greetings sent."""
    engine.calls.flush()
    while engine.calls.pending or engine.lives.timers:
        engine.wait(None)
        engine.poll()
    engine.poll()


def _set_accounts(accounts: Accounts, said: State) -> None:
    with accounts.lock:
        accounts.env_steps, accounts.agent_steps = said["env_steps"], said["agent_steps"]
        accounts.started, accounts.wait_s = accounts.clock() - said["elapsed_s"], said["wait_s"]
        accounts.table.set_state(said["table"])
        for name, figures in said["nodes"].items():
            stats = accounts.nodes.setdefault(name, NodeStats())
            for figure, value in figures.items():
                if figure != "out":
                    setattr(stats, figure, value)
        for name, (busy_s, calls, deaths) in said["groups"].items():
            group = accounts.groups[name]
            group.busy_s, group.calls, group.deaths = busy_s, calls, deaths
            group.more_s = said["lived_s"][name] - group.count * said["elapsed_s"]


def _set_limiter(limiter: Limiter, said: State, back: Restorer) -> None:
    limiter.inserted, limiter.sampled, limiter.coming = said["inserted"], said["sampled"], said["coming"]
    limiter._largest_insert = said["largest_insert"]
    for index, size, mass, inserted, drawn, lives in said["stocks"]:
        state = back.state(limiter.name, index)
        if state is None:
            state = back.state(limiter.name, index % len(limiter.stocks))  # it has taken over the rows
            assert state is not None
            stock = limiter.stocks[state]
            stock.size, stock.mass = stock.size + size, stock.mass + mass
            stock.inserted, stock.drawn = stock.inserted + inserted, stock.drawn + drawn
        elif lives and state in back.continued:
            stock = limiter.stocks[state]
            stock.size, stock.mass, stock.inserted, stock.drawn = size, mass, inserted, drawn
    limiter._sum()
