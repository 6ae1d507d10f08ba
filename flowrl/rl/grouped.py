"""A learner as the member of a group of learners that train in step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from flowrl.batch import Batch, MultiAgentBatch
from flowrl.metrics import Sum
from flowrl.ref import Answer
from flowrl.rl.descent import Descent, EarlyStop
from flowrl.rl.in_step import InStep, share_of
from flowrl.rl.in_training import InTraining
from flowrl.rl.peers import GlooPeers, Meeting, PeerLost, Peers, Whereabouts, open_store
from flowrl.rl.peers_here import PeersHere
from flowrl.rl.rows import batch_of
from flowrl.rl.spec import PolicySpec, Progress
from flowrl.rl.torch_state import quiet

if TYPE_CHECKING:
    from flowrl.rl.learner import Learner


class Grouped(InTraining):
    """What a learner does together with others: they meet (`join`), and then train with one gradient."""

    def __init__(self, policy: PolicySpec, policy_id: str, seed: int | np.random.SeedSequence | None, descent: Descent):
        super().__init__(policy, policy_id, seed, descent)
        self._peers: Peers | None = None
        self._store: Any = None
        self._now = Progress()
        self._microbatch: int | None = None
        self._stop = EarlyStop(None)
        self.moved: Callable[[], None] | None = None  # is called when the group has changed the weights

    def whereabouts(self) -> Whereabouts:
        """Where this learner lives, for others that train in step with it."""
        return Whereabouts.here()

    def open_store(self, timeout_s: float) -> int:
        """The port of a store at which the members of a group find each other; of the first member."""
        self._store = open_store(timeout_s)
        return int(self._store.port)

    def join(self, meeting: Meeting, rank: int) -> int | None:
        """Becomes a member of a group that trains in step, and takes over the state of the member trained the most.

        Returns how many updates that one has made; None where the first member says it for all.

        Raises:
            PeerLost: not all members have come within the timeout.
        """
        self.leave()
        store, self._store = self._store, None
        peers = PeersHere(meeting, rank) if meeting.in_one_process else GlooPeers(meeting, rank, store)
        self._peers = peers
        return peers.work(lambda: self._agree(peers))

    def leave(self) -> None:
        """Lets go those that wait for this one."""
        if self._peers is not None:
            self._peers.close()

    def _agree(self, peers: Peers) -> int:
        trained = peers.gather((self._updates, self._version))
        source = trained.index(max(trained))
        mine = self.get_state()
        state = peers.share(mine if peers.rank == source else None, source)
        # What each draws by remains its own.
        self.set_state({**state, **{name: mine[name] for name in ("generator", "noise")}})
        if self.moved is not None:
            self.moved()
        return self._updates

    def train_in_step(
        self,
        batch: Batch | MultiAgentBatch | None,
        *,
        share: tuple[int, int] = (0, 1),
        epochs: int = 1,
        minibatch: int | None = None,
        microbatch: int | None = None,
        shuffle: bool | None = None,
        env_steps: int = 0,
    ) -> Answer[Any]:
        """As `train`, on the valid rows of all members' batches: each computes the gradient over its own.

        batch: this member's, of which it takes share i of n; None: it has no rows. minibatch: rows of all members
        together. The gradient, `kl`, scales and statistics are over all rows (a mean by rows, not of means), and so
        every member has the same weights after each update. The first member answers for all, the others nothing.
        Where a member was lost, the answer is why, with the metric `rounds_lost`; then all must `join` again.

        Raises:
            RuntimeError: before `join`. As `train` does; the other members then lose this one.
        """
        peers = self._peers
        if peers is None:
            raise RuntimeError(f"the learner of policy {self.policy_id!r} is in no group yet: call join(meeting, rank)")
        self._now, self._microbatch = Progress(env_steps, self._updates), microbatch
        self._stop.begin()
        try:
            answer = peers.work(lambda: self._train_with(peers, batch, share, epochs, minibatch, shuffle))
        except PeerLost as error:
            peers.close()
            said = {(self.policy_id, "trained_steps"): Sum(0), (self.policy_id, "rounds_lost"): Sum(1)}
            return Answer(str(error), said, self._version)
        return answer if answer is not None and peers.rank == 0 else Answer(None)

    def _train_with(
        self,
        peers: Peers,
        batch: Batch | MultiAgentBatch | None,
        share: tuple[int, int],
        epochs: int,
        minibatch: int | None,
        shuffle: bool | None,
    ) -> Answer[Batch | None]:
        """This member's part of a call, in the group's `work`."""
        learner = cast("Learner", self)
        given = None if batch is None else batch_of(batch, self.policy_id)
        given = None if given is None else share_of(given, *share)
        mine = None if given is None else learner._rows(given)
        call = InStep(learner, peers, mine, given)
        order = self._rng if shuffle or (shuffle is None and (mine is None or mine.slots is None)) else None
        with quiet(self._rng if self.spec.model else None):
            plan = call.plan(minibatch)
            for _ in range(epochs if plan.sizes else 0):
                if not self._stop.stopped:
                    call.epoch(plan, order)
        means, trained_rows, priorities = call.finish()
        counts: dict[str, Any] = {"rows": plan.rows, "trained_steps": Sum(trained_rows)}
        if plan.sizes:
            self._version += 1
            counts |= {"learning_rate": learner._learning_rate(self._now), "updates": self._updates}
        if self._stop.target_kl is not None:
            counts["kl_stops"] = Sum(int(self._stop.stopped))
        if self.moved is not None:
            self.moved()
        return self._answer({**means, **counts}, priorities)
