"""What stays of a network: its nodes of every kind, and with them the rows and columns of every layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .shape import RESIDUAL, BlockShape, Shape

Node = tuple[str, int]
"""A node by its kind (see `Shape.nodes`) and its number."""


def by_head(channels: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
    """What belongs to each head, as views of ``[channels]``; nothing where there are no heads."""
    return channels.split(list(widths)) if widths else ()


@dataclass(frozen=True)
class Selection:
    """The nodes that stay.

    A query and a key channel of one number are one node: they go together, since only then what they add to a score is
    a constant. A head whose value channels are all gone is gone, with its query-key channels.
    """

    shape: Shape
    """Of the network before."""
    keep: Mapping[str, Tensor]
    """By kind of nodes, whether each stays: bool ``[nodes]``, on the CPU."""

    def __post_init__(self) -> None:
        """Check the shapes; drop the query-key channels of heads without values."""
        keep = {kind: torch.as_tensor(self.keep[kind], dtype=torch.bool).clone() for kind in self.shape.nodes()}
        for kind, size in self.shape.nodes().items():
            if keep[kind].shape != (size,):
                raise ValueError(f"selection of {kind!r} has shape {list(keep[kind].shape)}; expected [{size}]")
        if not keep[RESIDUAL].any():
            raise ValueError("selection keeps no residual channel; expected at least one, since all layers read them")
        for i, block in enumerate(self.shape.blocks):
            qk, value = by_head(keep[f"blocks.{i}.qk"], block.qk), by_head(keep[f"blocks.{i}.value"], block.value)
            for own_qk, own_value in zip(qk, value, strict=True):
                if not own_value.any():
                    own_qk.fill_(False)
        object.__setattr__(self, "keep", keep)

    @classmethod
    def everything(cls, shape: Shape) -> Selection:
        """All nodes stay."""
        return cls(shape, {kind: torch.ones(size, dtype=torch.bool) for kind, size in shape.nodes().items()})

    def without(self, nodes: Iterable[Node]) -> Selection:
        """The selection less these nodes."""
        keep = {kind: kept.clone() for kind, kept in self.keep.items()}
        gone: dict[str, list[int]] = {}
        for kind, number in nodes:
            gone.setdefault(kind, []).append(number)
        for kind, numbers in gone.items():
            keep[kind][torch.tensor(numbers)] = False
        return Selection(self.shape, keep)

    def result(self) -> Shape:
        """The shape of what stays."""
        blocks = []
        for i, block in enumerate(self.shape.blocks):
            qk = [int(kept.sum()) for kept in by_head(self.keep[f"blocks.{i}.qk"], block.qk)]
            value = [int(kept.sum()) for kept in by_head(self.keep[f"blocks.{i}.value"], block.value)]
            heads = [h for h, channels in enumerate(value) if channels]
            mlp = int(self.keep[f"blocks.{i}.mlp"].sum())
            blocks.append(BlockShape(tuple(qk[h] for h in heads), tuple(value[h] for h in heads), mlp))
        width = int(self.keep[RESIDUAL].sum())
        return dataclasses.replace(self.shape.compact(), width=width, blocks=tuple(blocks))

    def rows(self, layer: str) -> Tensor:
        """Whether each row of a layer stays, bool ``[out]``."""
        kinds, _ = self.shape.wiring()[layer]
        if layer == "head":
            return torch.ones(self.shape.classes, dtype=torch.bool)
        return torch.cat([self.keep[kind] for kind in kinds])

    def columns(self, layer: str) -> Tensor:
        """Whether each column of a layer stays, bool ``[in]``."""
        kind = self.shape.wiring()[layer][1]
        return self.keep[kind] if kind else torch.ones(self.shape.layers()[layer][1], dtype=torch.bool)

    def emptied(self) -> list[str]:
        """The attentions and MLPs of which nothing stays, though something was there: ``blocks.0.attn`` and so on."""
        found = []
        for i, (before, after) in enumerate(zip(self.shape.blocks, self.result().blocks, strict=True)):
            found += [f"blocks.{i}.attn"] if before.value and not after.value else []
            found += [f"blocks.{i}.mlp"] if before.mlp and not after.mlp else []
        return found


def by_node(weights: Mapping[str, Tensor], shape: Shape) -> dict[str, Tensor]:
    """What the weights of every layer add up to at the nodes they write and read, by kind of nodes, ``[nodes]``.

    Args:
        weights: a number for every weight by layer, ``[out, in]``.
        shape: of the network.
    """
    nodes, total = shape.nodes(), {}
    for kind, size in nodes.items():
        total[kind] = torch.zeros(size, dtype=torch.float64)
    for layer, (rows, columns) in shape.wiring().items():
        matrix = weights[layer].detach().double().cpu()
        if layer != "head":
            for kind, part in zip(rows, matrix.sum(1).split([nodes[kind] for kind in rows]), strict=True):
                total[kind] += part
        if columns:
            total[columns] += matrix.sum(0)
    return total
