"""Several processes that train one model, each on its part of every batch: the default group of `torch.distributed`.

DistributedDataParallel averages the gradients of the ranks, so that m is the same on all of them. What the method adds:

    h = sum over ranks of squares / sum over ranks of examples,    at a refresh

Each rank's loss is a mean over its own examples, which its companions have undone; so sums and counts simply add up,
also where ranks have batches of different sizes, and DDP's own 1 / ranks plays no part. q then follows from equal
numbers on every rank. Nothing is sent between refreshes.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from ..curvature.average import CurvatureAverage
from ..nn.noise import KeyedNoise

T = TypeVar("T")
SPREAD = 0x9E3779B97F4A7C15
"""Takes neighbouring ranks to keys far apart."""

_sent: deque[Tensor] = deque(maxlen=16)
"""The last numbers sent. A tensor whose last owner is a thread of the group needs Python's lock to go; a group that is
destroyed at that moment has the lock and waits for the thread, for ever. So these stay ours for a while."""


def processes() -> int:
    """How many processes train together: those of the default group, or 1 where there is none."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number among them, from 0."""
    return dist.get_rank() if processes() > 1 else 0


@contextlib.contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Inside, an error of the group says what could not be done."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(
            f"rank {rank()} could not {what} with the other processes: one of them has stopped, or is not at "
            f"the same step; look at its error first, then start all again ({' '.join(str(error).split())})"
        ) from error


def is_sharded(weight: Tensor) -> bool:
    """Whether a weight is cut up over ranks at the moment."""
    return getattr(weight, "device_mesh", None) is not None


def check_whole(weight: Tensor, name: str) -> Tensor:
    """The weight, unless it is cut up over ranks: a part of m beside the whole of q would give wrong numbers."""
    if is_sharded(weight):
        raise ValueError(
            f"the weight of {name!r} is sharded over processes (fully_shard), and q is not; attach first, then "
            "fully_shard(model), then method.shard()"
        )
    return weight


def add_up(tensor: Tensor, what: str) -> Tensor:
    """The sum of a tensor over all ranks, in place; all must call it. `what` is for the error."""
    if processes() > 1:
        with in_one_line(f"add up {what}"):
            dist.all_reduce(tensor)
    return tensor


def add_up_curvature(average: CurvatureAverage) -> None:
    """Give every rank an equal share of what all have measured since the last fold: sums and counts over ranks.

    A share and not the whole, so that it may be done at any time: what all hold together stays the same. All ranks
    must call it, at the same step.
    """
    if processes() == 1:
        return
    for tensor in (average.sums, average.counts):
        add_up(tensor, "curvature").div_(processes())


def total(number: int, what: str, device: torch.device | str = "cpu") -> int:
    """The sum of a number over all ranks, by way of a device that their group knows; all must call it."""
    if processes() == 1:
        return number
    _sent.append(torch.tensor(number, dtype=torch.int64, device=device))
    return int(add_up(_sent[-1], what))


def by_first(work: Callable[[], T], others: Callable[[], T], device: torch.device | str = "cpu") -> T:
    """Let the first process do something; the others wait for it, then do something else. Both give what they found.

    Raises:
        RuntimeError: on the others, where the first one failed; it raises its own error.
    """
    if processes() == 1:
        return work()
    if rank() == 0:
        try:
            found = work()
        except BaseException:
            total(1, "an answer", device)
            raise
        total(0, "an answer", device)
        return found
    if total(0, "an answer", device):
        raise RuntimeError("the first process stopped with an error; see there")
    return others()


def nothing() -> None:
    """What the others do while the first one writes."""


class RankNoise(KeyedNoise):
    """Noise that no two ranks share, also where all have seeded torch alike: averaged over ranks it is smaller.

    Every pass draws its key from torch's default CPU generator and mixes the rank in. So it follows
    `torch.manual_seed` like `TorchNoise` does, and there is no state to be saved.

    Args:
        like: q of a layer, ``[*R, out, in]``, for replicas and device.
        rank: this process's number.
    """

    stored = False

    def __init__(self, like: Tensor, rank: int) -> None:
        super().__init__(torch.zeros(like.shape[:-2], dtype=torch.int64, device=like.device))
        self.rank = rank
        self.advance()

    def advance(self) -> None:
        """Draw the next pass's keys."""
        drawn = torch.randint(2**62, tuple(self.keys.shape))
        self.keys.copy_(drawn ^ (self.rank * SPREAD) % 2**62)
        self._rekey()
