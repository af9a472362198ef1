"""A layer whose weight `fully_shard` has cut up: which piece this process keeps, and how pieces become whole.

FSDP2 cuts a parameter along its first axis into runs of equal length, the last ones shorter or empty. As a matrix
``[out, in]`` that is a run of rows, or of columns for a layer that keeps its weight transposed. Outside of passes the
parameter is this process's run; from a pass to the backward pass it may be whole. q and h are kept as the run alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from ..nn.layers import weight_of
from .distributed import add_up, in_one_line, is_sharded, processes


@dataclass(frozen=True)
class Piece:
    """A run of rows or columns of a matrix, one a process.

    Args:
        axis: -2 for rows, -1 for columns.
        start: where it begins.
        count: how long it is, may be 0.
        shape: (out, in) of the whole.
    """

    axis: int
    start: int
    count: int
    shape: tuple[int, int]

    @property
    def _longest(self) -> int:
        """The length of all runs but the last ones."""
        return -(-self.shape[self.axis] // processes())

    def cut(self, whole: Tensor) -> Tensor:
        """This process's piece of ``[out, in]``, or of whatever a node has, ``[out, 1]``; live."""
        if whole.shape[self.axis] != self.shape[self.axis]:  # columns of something that has but one
            return whole
        return whole.narrow(self.axis, self.start, self.count)

    @torch.no_grad()
    @torch.compiler.disable
    def gather(self, own: Tensor) -> Tensor:
        """The whole ``[out, in]`` from the pieces; all processes must call it."""
        rows = own.movedim(self.axis, 0)
        padded = rows.new_zeros(self._longest, rows.shape[1])
        padded[: self.count] = rows
        whole = rows.new_empty(processes() * self._longest, rows.shape[1])
        with in_one_line("gather q"):
            dist.all_gather_into_tensor(whole, padded)
        return whole[: self.shape[self.axis]].movedim(0, self.axis).contiguous()

    @torch.no_grad()
    def add_up(self, whole: Tensor) -> Tensor:
        """This process's piece of the sum over processes of ``[out, in]``; all must call it."""
        rows = whole.movedim(self.axis, 0)
        padded = rows.new_zeros(processes() * self._longest, rows.shape[1])
        padded[: len(rows)] = rows
        own = rows.new_empty(self._longest, rows.shape[1])
        with in_one_line("add up curvature"):
            dist.reduce_scatter_tensor(own, padded)
        return own[: self.count].movedim(0, self.axis)

    def columns(self, sums: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Column sums of the whole, ``[in]`` each, from those of the pieces; all must call it."""
        both = torch.stack(sums)  # [2, in], or of the columns that are here
        if self.axis == -1:
            whole = both.new_zeros(2, self.shape[-1])
            whole[:, self.start : self.start + self.count] = both
            both = whole
        dropped, total = add_up(both, "curvature")
        return dropped, total

    def of(self, layer: nn.Module) -> Tensor:
        """This process's piece of a layer's m, differentiable, whether the parameter is whole at the moment or not.

        Gradients of the piece alone reach a parameter that is cut up. For one that is whole FSDP takes the mean over
        processes, of which this one alone has any, so there they count as often as there are processes.
        """
        parameter: Any = layer.get_parameter("weight")
        if is_sharded(parameter):
            return weight_of(layer, parameter.to_local())
        return _CountedOften.apply(self.cut(weight_of(layer)))


class _CountedOften(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        return own.view_as(own)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * processes()


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        return add_up(own.clone(), "kl()")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def total_of(own: Tensor) -> Tensor:
    """The sum over processes of something that each computes from its pieces; each has the gradient of its own."""
    return _Total.apply(own)


def piece_of(layer: nn.Module, name: str) -> Piece:
    """Which piece of a layer is here; an error where its weight is cut up in a way that q cannot follow."""
    parameter: Any = layer.get_parameter("weight")
    whole = weight_of(layer)
    if not is_sharded(parameter):
        raise ValueError(f"shard: the weight of {name!r} is not sharded; call fully_shard(model) first, on all of it")
    mesh, (placement, *more) = parameter.device_mesh, parameter.placements
    if more or mesh.size() != processes() or not placement.is_shard(0):
        raise ValueError(
            f"shard: the weight of {name!r} lies as {tuple(parameter.placements)} on {mesh.size()} of {processes()} "
            "processes; q can follow fully_shard over all processes along the first axis, without other parallelism"
        )
    if whole.dim() != 2:
        raise ValueError(f"shard: {name!r} holds stacked replicas, which share one process; train them unsharded")
    count, size = parameter.to_local().shape[0], parameter.shape[0]
    start = min(mesh.get_local_rank() * -(-size // processes()), size)
    none = weight_of(layer, torch.empty(0, *parameter.shape[1:], device="meta"))
    axis = -2 if none.shape[-2] == 0 else -1
    return Piece(axis, start, count, (whole.shape[-2], whole.shape[-1]))
