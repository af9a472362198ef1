"""What `detach` leaves in a weight: m as it is, m (1 - q) of the expected network, or the most probable network."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from .distributed import is_sharded
from .method import Parts

Weights = Literal["mean", "expected", "probable"]


def check_writable(parts: Parts, weights: Weights) -> None:
    """Raise where these weights are no choice, or where the model cannot hold them.

    A weight that others use too cannot be overwritten: theirs would be another value, or the mean.
    """
    if weights not in ("mean", "expected", "probable"):
        raise ValueError(f"detach: weights must be 'mean', 'expected' or 'probable', got {weights!r}")
    if weights == "mean":
        return
    owners = {
        _memory(parameter): f"{name}.{own}"
        for name, module in parts.model.named_modules()
        if not isinstance(module, nn.MultiheadAttention) and module not in parts.layers.values()
        for own, parameter in module.named_parameters(recurse=False)
    }
    for name, layer in parts.layers.items():
        first = owners.setdefault(_memory(layer.get_parameter("weight")), name)
        if first != name:
            raise ValueError(
                f"detach: {first!r} and {name!r} share one weight but not one posterior, so it cannot hold both "
                f"their {weights} values; detach with weights='mean'"
            )


@torch.no_grad()
def write(parts: Parts, weights: Weights) -> None:
    """``mean``: nothing; ``expected``: m (1 - q), also of masked nodes; ``probable``: m where q < 1/2, else 0."""
    for name, layer in parts.layers.items() if weights != "mean" else ():
        m, q = parts.own_mean(name), parts.posteriors[name].drop
        m.mul_((1 - q).to(m.dtype) if weights == "expected" else q < 0.5)
        parameter: Any = layer.get_parameter("weight")
        own = parameter.to_local() if is_sharded(parameter) else parameter
        if own.untyped_storage().data_ptr() != m.untyped_storage().data_ptr():
            own.copy_(m.view(own.shape))  # the patches of a convolution in channels_last, whose matrix is a copy
    for name, mask in parts.node_masks.items() if weights == "expected" else ():
        kept = 1 - mask.drop.mean(-1)  # [*R]: all nodes have one rate
        for parameter in map(parts.model.get_parameter, parts.topology.embeddings[name]):
            parameter.mul_(kept.to(parameter.dtype).view(*kept.shape, *[1] * (parameter.dim() - kept.dim())))


def _memory(parameter: Tensor) -> int:
    """Where a parameter lies; one that is sharded has no one place."""
    return id(parameter) if is_sharded(parameter) else parameter.data_ptr()
