"""How long a pass takes on this machine."""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from ..nn.masked import in_eval_mode
from .shape import shape_of

WARM_UP, PASSES = 3, 15


@torch.no_grad()
def latency_ms(model: nn.Module, *, batch: int = 1, passes: int = PASSES) -> float:
    """Median time of a pass in eval mode, in milliseconds, on the device and threads that torch uses now.

    Args:
        model: a `ViT` or `CompactViT`. One with a method is timed as its expected network, which makes m (1 - q) anew
            at every pass.
        batch: images a pass.
        passes: how many are timed, after three that are not.
    """
    if batch < 1 or passes < 1:
        raise ValueError(f"latency_ms: batch and passes must be 1 or more, got {batch} and {passes}")
    shape, like = shape_of(model), next(model.parameters())
    x = torch.zeros(batch, shape.channels, shape.image_size, shape.image_size, device=like.device, dtype=like.dtype)
    times = []
    with in_eval_mode(model):
        for number in range(WARM_UP + passes):
            _finish(x)
            started = time.perf_counter()
            model(x)
            _finish(x)
            if number >= WARM_UP:
                times.append(time.perf_counter() - started)
    return 1e3 * statistics.median(times)


def _finish(x: torch.Tensor) -> None:
    """Wait for a GPU, which works on while Python has long gone on."""
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
