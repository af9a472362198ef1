"""One training by the processes that torchrun has started: each takes its part of every batch, the first one writes.

Whatever one process decides for all, such as stopping, is agreed on; whatever one does for all is waited for. A process
that dies closes its connections, at which the others fail; one that hangs is waited for up to `TIMEOUT`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..methods.distributed import rank, total

TIMEOUT = timedelta(minutes=10)
"""How long processes wait for each other: at the start, and at any later step."""


def launched() -> bool:
    """Whether torchrun has started this process."""
    return dist.is_available() and dist.is_torchelastic_launched()


def is_first() -> bool:
    """Whether this is the process that writes and prints, also before and after they are joined."""
    return int(os.environ["RANK"]) == 0 if launched() else rank() == 0


def own_device(device: torch.device) -> torch.device:
    """A GPU of its own for each process on a machine, where no GPU was named."""
    if device.type != "cuda" or device.index is not None or not launched():
        return device
    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if here > torch.cuda.device_count():
        raise ValueError(
            f"torchrun started {here} processes on this machine, and torch sees {torch.cuda.device_count()} GPUs; "
            "start one a GPU, or use --device cpu"
        )
    return torch.device("cuda", local)


@contextlib.contextmanager
def joined(device: torch.device) -> Iterator[None]:
    """Inside, the processes that torchrun has started are one group; one that is there already is used as it is."""
    if not launched() or dist.is_initialized():
        yield
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # gloo beside NCCL: small questions, such as whether to stop, must not make a GPU wait.
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    yield
    # Not after an error: the others may wait elsewhere. They see that this process has gone.
    dist.barrier()
    dist.destroy_process_group()


def data_parallel(model: nn.Module) -> DistributedDataParallel:
    """The model with its gradients averaged over processes; q, which is the same on all by itself, is not sent along.

    torch calls the setting by another name from 2.13 on.
    """
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    name = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    setting: dict[str, Any] = {name: False}
    return DistributedDataParallel(model, **setting)


def any_of(flag: bool) -> bool:
    """Whether any process says so; all must ask."""
    return bool(total(int(flag), "an answer"))
