"""How learners that train in step find each other, and what they exchange where each has a process of its own."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
HEAD_BYTES = 4096  # of a gathered object; what is longer follows in a second round
CONNECT_S = 30.0  # how long members may take to find each other


class PeerLost(RuntimeError):  # noqa: N818
    """Another member of the group has ended, failed, or not been heard of for too long."""


@dataclass(frozen=True)
class Whereabouts:
    """Where a member is: its machine (that is, its network), its process, the address that others reach it by."""

    machine: str
    process: int
    address: str

    @staticmethod
    def here() -> Whereabouts:
        """Those of this process."""
        try:
            network = os.readlink("/proc/self/ns/net")  # containers of one machine have networks of their own
        except OSError:
            network = ""
        return Whereabouts(f"{socket.gethostname()} {network}", os.getpid(), _address())


@dataclass(frozen=True)
class Meeting:
    """What each member is told in order to join: who there is, where, and how long to wait for one another.

    key: of this meeting and no other. names: of the members, for errors. port: of the first member's store; None where
    all live in one process. timeout_s: the longest that a member is waited for.
    """

    key: str
    names: tuple[str, ...]
    members: tuple[Whereabouts, ...]
    port: int | None
    timeout_s: float

    @property
    def in_one_process(self) -> bool:
        """Whether no network is needed."""
        return len({(member.machine, member.process) for member in self.members}) == 1

    def host(self, rank: int) -> str:
        """The address by which the others reach a member."""
        here_only = len({member.machine for member in self.members}) == 1
        return LOOPBACK if here_only else self.members[rank].address


class Peers(Protocol):
    """The other members of a group, met by all members in the same order; every method is one such meeting."""

    rank: int
    size: int

    def work(self, task: Callable[[], T]) -> T | None:
        """What the task gives, which meets the others; None where the first member will do it together with its own."""
        ...

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every member's tensor (one dimension), added by rank: the same bits at every member.

        Raises:
            PeerLost: a member is gone.
        """
        ...

    def gather(self, thing: Any) -> list[Any]:
        """What every member gave, by rank.

        Raises:
            PeerLost: a member is gone.
        """
        ...

    def share(self, thing: Any, source: int) -> Any:
        """What the member `source` gave.

        Raises:
            PeerLost: a member is gone.
        """
        ...

    def close(self) -> None:
        """Leaves the others, who notice at their next meeting."""
        ...


def open_store(timeout_s: float) -> Any:
    """The store at which the members find each other, on a free port of this process; `port` says which."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # It connects to itself first, which takes a busy machine a while and is nobody's absence.
    store = TCPStore(LOOPBACK, 0, None, True, timedelta(seconds=max(timeout_s, CONNECT_S)), wait_for_workers=False)
    store.set_timeout(timedelta(seconds=timeout_s))
    return store


class GlooPeers:
    """Members in processes of their own, by torch's Gloo: a process group of this object's, not torch's default one.

    Raises:
        PeerLost: not all members have come within the timeout.
    """

    def __init__(self, meeting: Meeting, rank: int, store: Any = None):
        from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

        assert meeting.port is not None
        self.rank, self.size = rank, len(meeting.members)
        self._names = meeting.names
        connect = timedelta(seconds=min(CONNECT_S, meeting.timeout_s))
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        options._timeout = connect
        options._devices = [gloo.create_device(hostname=meeting.host(rank))]
        try:
            if store is None:
                store = TCPStore(meeting.host(0), meeting.port, None, False, connect, wait_for_workers=False)
            self._group: Any = gloo(PrefixStore(meeting.key, store), rank, self.size, options)
        except RuntimeError as error:
            raise PeerLost(f"{self._me} did not find all of {', '.join(self._names)}: {_first_line(error)}") from error
        self._group._set_default_timeout(timedelta(seconds=meeting.timeout_s))
        self._store: Any = store  # it lives in the first member, and must as long as somebody may yet connect

    @property
    def _me(self) -> str:
        return self._names[self.rank]

    def work(self, task: Callable[[], T]) -> T | None:
        """What the task gives. Whatever it raises, the others are let go."""
        try:
            return task()
        except BaseException:
            self.close()
            raise

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every member's tensor (one dimension), added by rank."""
        if self.size == 2:  # a + b = b + a
            tensor = tensor.clone()
            self._meet(lambda group: group.allreduce([tensor]))
            return tensor
        # Each member adds up one part of all, in the order of ranks, which no ring keeps; then they exchange the parts.
        length = -(-len(tensor) // self.size)
        parts = torch.zeros(length * self.size, dtype=tensor.dtype)
        parts[: len(tensor)] = tensor
        mine = torch.empty_like(parts)
        self._meet(lambda group: group.alltoall_base(mine, parts, [], []))
        added = mine[:length].clone()
        for rank in range(1, self.size):
            added += mine[rank * length : (rank + 1) * length]
        self._meet(lambda group: group._allgather_base(parts, added))
        return parts[: len(tensor)]

    def gather(self, thing: Any) -> list[Any]:
        """What every member gave, by rank; pickled."""
        packed = pickle.dumps(thing, 5)
        head = np.zeros(HEAD_BYTES, np.uint8)
        head[:8] = np.frombuffer(len(packed).to_bytes(8, "little"), np.uint8)
        first, rest = packed[: HEAD_BYTES - 8], packed[HEAD_BYTES - 8 :]
        head[8 : 8 + len(first)] = np.frombuffer(first, np.uint8)
        heads = self._all_of(head)
        sizes = [int.from_bytes(bytes(one[:8]), "little") for one in heads]
        longest = max(sizes) - (HEAD_BYTES - 8)
        rests = [b""] * self.size
        if longest > 0:
            padded = np.zeros(longest, np.uint8)
            padded[: len(rest)] = np.frombuffer(rest, np.uint8)
            rests = [bytes(one) for one in self._all_of(padded)]
        return [
            pickle.loads((bytes(one[8:]) + more)[:size]) for one, more, size in zip(heads, rests, sizes, strict=True)
        ]

    def _all_of(self, array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
        found = [torch.empty(len(array), dtype=torch.uint8) for _ in range(self.size)]
        self._meet(lambda group: group.allgather([found], [torch.from_numpy(array)]))
        return [one.numpy() for one in found]

    def share(self, thing: Any, source: int) -> Any:
        """What the member `source` gave; pickled."""
        packed = pickle.dumps(thing, 5) if self.rank == source else b""
        (length,) = self._broadcast(torch.tensor([len(packed)]), source).tolist()
        data = torch.empty(length, dtype=torch.uint8)
        if self.rank == source:
            data = torch.frombuffer(bytearray(packed), dtype=torch.uint8)
        return pickle.loads(self._broadcast(data, source).numpy().tobytes())

    def _broadcast(self, tensor: Tensor, source: int) -> Tensor:
        self._meet(lambda group: group.broadcast(tensor, source))
        return tensor

    def _meet(self, begin: Callable[[Any], Any]) -> None:
        if self._group is None:
            raise PeerLost(f"{self._me} has left its group")
        try:
            begin(self._group).wait()
        except RuntimeError as error:
            raise PeerLost(f"{self._me} has lost one of {', '.join(self._names)}: {_first_line(error)}") from error

    def close(self) -> None:
        """Ends the connections; again does nothing."""
        self._group = self._store = None


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def _address() -> str:
    """The address of this machine in the network that its default route leads to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of no machine, and nothing is sent: it only chooses a route
            return str(probe.getsockname()[0])
        except OSError:
            pass
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return LOOPBACK
