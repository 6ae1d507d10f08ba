"""Training batches of whole sequences, for memories and losses over time: losses see rows, the network sees time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from flowrl.batch import Batch
from flowrl.rl.tensors import TensorBatch, columns_of, not_finite

STARTS = "starts"
STATE = "state/"


class SequenceBatch(TensorBatch):
    """N whole sequences of T steps. A column is its valid rows (B, ...), by time and then sequence, as in any batch.

    steps: the columns themselves, (T, N, ...); `starts` among them says where an episode begins.
    initial: the state (N, ...) of the policy before the first step, by name.
    valid_TN: which rows are transitions. `size` is N: minibatches and parts are of whole sequences.
    """

    __slots__ = ("_rows", "initial", "steps", "valid_TN")

    def __init__(
        self,
        steps: Mapping[str, Tensor],
        initial: Mapping[str, Tensor],
        valid_TN: Tensor,
        *,
        whole: TensorBatch | None = None,
    ):
        super().__init__(steps, whole=whole)
        self.steps, self.initial, self.valid_TN = steps, initial, valid_TN
        self.rows = int(valid_TN.sum())
        self._rows: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._rows:
            self._rows[name] = super().__getitem__(name)[self.valid_TN]
        return self._rows[name]

    @property
    def slots(self) -> Tensor | None:
        """The places (N,) in a replay shard that the sequences came from; None if they came from none."""
        return self.steps["slots"][0] if "slots" in self.steps else None

    @property
    def size(self) -> int:
        """N, the number of sequences."""
        return self.valid_TN.shape[1]

    def steps_of(self, root: str) -> Tensor | dict[str, Tensor]:
        """The column `root` (T, N, ...), or else the columns below it as a dict by their path from there on."""
        below = {name[len(root) + 1 :]: x_TN for name, x_TN in self.steps.items() if name.startswith(root + "/")}
        return below or self.steps[root]

    def where(self, mask_B: Tensor, *, whole: TensorBatch | None = None) -> SequenceBatch:
        """Only the rows where the mask (B,) is true; the network still sees all steps."""
        valid_TN = torch.zeros_like(self.valid_TN)
        valid_TN[self.valid_TN] = mask_B
        return SequenceBatch(self.steps, self.initial, valid_TN, whole=whole)

    def minibatches(self, rows: int, order: Tensor | None) -> Iterator[SequenceBatch]:
        """All sequences in the given order (None: as they stand), `rows` at a time, less those without a valid row."""
        for chosen in (torch.arange(self.size) if order is None else order).split(rows):
            yield from self._chosen(chosen, None)

    def parts(self, rows: int) -> Iterator[SequenceBatch]:
        """Its sequences in order, `rows` of them at a time: parts of this batch, which is their `whole`."""
        for chosen in torch.arange(self.size).split(rows):
            yield from self._chosen(chosen, self.whole)

    def _chosen(self, sequences: Tensor, whole: TensorBatch | None) -> Iterator[SequenceBatch]:
        valid_TN = self.valid_TN[:, sequences]
        if valid_TN.any():
            steps = {name: column[:, sequences] for name, column in self.steps.items()}
            initial = {name: column[sequences] for name, column in self.initial.items()}
            yield SequenceBatch(steps, initial, valid_TN, whole=whole)


def sequences_of(batch: Batch, needs: Iterable[str], states: Iterable[str], where: str) -> SequenceBatch:
    """The needed columns of a time-major batch; for a policy with memory also `starts` and its first states.

    states: the names of its states; none for a policy without memory.

    Floats become float32. Rows that are no transitions may hold anything; the network gets zeros for what is not
    finite there. `where` begins an error's text.

    Raises:
        ValueError: the batch is not time-major.
        KeyError: a needed column is missing, also `starts` and `state/<name>`, which a recurrent policy's workers give.
        FloatingPointError: a value of a valid row is not finite; names column and row.
    """
    if not batch.time_major:
        raise ValueError(
            f"{where}: {'a policy with memory' if states else 'this loss'} trains on sequences and needs a time-major "
            f"batch (T, N), got {batch!r}; leave out what takes single rows before the learner (flat, replay of "
            "transitions)"
        )
    states = tuple(states)
    with_memory = (STARTS,) if states else ()
    names = dict.fromkeys(name for need in (*sorted(needs), *with_memory) for name in columns_of(batch, need, where))
    steps = {name: _steps(batch, name, where) for name in names}
    initial = {}
    for state in states:
        (column,) = columns_of(batch, STATE + state, where)
        initial[state] = torch.tensor(batch[column][0], dtype=torch.float32)
    return SequenceBatch(steps, initial, torch.tensor(batch.valid))


def map_pairs(
    function: Callable[[Tensor, Tensor], Tensor], one: Tensor | dict[str, Tensor], other: Tensor | dict[str, Tensor]
) -> Tensor | dict[str, Tensor]:
    """The function of two observations, or of each part of two nested ones of the same layout."""
    if isinstance(one, dict):
        assert isinstance(other, dict)
        return {path: function(part, other[path]) for path, part in one.items()}
    assert isinstance(other, Tensor)
    return function(one, other)


def _steps(batch: Batch, name: str, where: str) -> Tensor:
    array = batch[name]
    if array.dtype.kind == "f":
        array = array.astype(np.float32, copy=False)
        finite = np.isfinite(array)
        if not finite.all():
            if not finite[batch.valid].all():
                raise FloatingPointError(not_finite(batch, name, where))
            array = np.where(finite, array, np.float32(0))
    return torch.tensor(array)
