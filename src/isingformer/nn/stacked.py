"""Replicas stacked on a leading axis: ten networks train as one batched program.

Every parameter of a stacked model is ``[R, *shape]``: entry r is replica r's own parameter. Elementwise optimisers then
treat replicas apart by themselves; clipping does so through `clip_grad_norm_`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..curvature.linear import linear


class StackedLinear(nn.Module):
    """R linear layers: x ``[R, N, ..., in]`` to ``[R, N, ..., out]``."""

    def __init__(self, replicas: int, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(replicas, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(replicas, out_features)) if bias else None
        bound = 1 / math.sqrt(in_features)  # as nn.Linear
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """Each replica's own product."""
        return linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Like nn.Linear, with the replicas."""
        return f"replicas={self.weight.shape[0]}, in_features={self.in_features}, out_features={self.out_features}"


class StackedLayerNorm(nn.Module):
    """R layer norms over the last axis: x ``[R, N, ..., width]``."""

    def __init__(self, replicas: int, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.width, self.eps = width, eps
        self.weight = nn.Parameter(torch.ones(replicas, width))
        self.bias = nn.Parameter(torch.zeros(replicas, width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalised, then each replica's own scale and shift."""
        shape = (len(self.weight), *(1 for _ in range(x.dim() - 2)), self.width)
        return F.layer_norm(x, (self.width,), eps=self.eps) * self.weight.view(shape) + self.bias.view(shape)


def linear_layer(in_features: int, out_features: int, replicas: int | None) -> nn.Module:
    """`nn.Linear`, or `StackedLinear` where there are replicas."""
    return (
        nn.Linear(in_features, out_features) if replicas is None else StackedLinear(replicas, in_features, out_features)
    )


def layer_norm(width: int, replicas: int | None) -> nn.Module:
    """`nn.LayerNorm`, or `StackedLayerNorm` where there are replicas."""
    return nn.LayerNorm(width) if replicas is None else StackedLayerNorm(replicas, width)


@torch.no_grad()
def clip_grad_norm_(parameters: Iterable[Tensor], max_norm: float, *, replicas: int | None = None) -> Tensor:
    """Scale gradients so that each replica's norm over all its parameters is at most `max_norm`.

    Like `torch.nn.utils.clip_grad_norm_`, but replicas of a stacked model do not share a norm.

    Returns:
        The norms before clipping, ``[R]``, or a scalar without replicas.
    """
    parameters = list(parameters)
    if replicas is None:
        return nn.utils.clip_grad_norm_(parameters, max_norm)
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.zeros(replicas)
    norms = torch.stack([grad.flatten(1).norm(dim=1) for grad in grads]).norm(dim=0)
    scale = (max_norm / (norms + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(scale.view(-1, *(1 for _ in grad.shape[1:])).to(grad.dtype))
    return norms
