"""The widths of a vision transformer, even or not, and what they cost: weights and multiply-adds.

Names: T tokens, D residual channels. A head has query-key channels, which make its scores, and value channels, which it
    passes on; in a `ViT` there are D / heads of each, in a `CompactViT` any number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..nn.vit import ViT

RESIDUAL = "residual"
"""The nodes of the residual stream, by name; those of block i are ``blocks.i.mlp``, ``.qk`` and ``.value``."""


@dataclass(frozen=True)
class BlockShape:
    """The widths of a block. No heads: its attention is a constant. No hidden units: its MLP is one."""

    qk: tuple[int, ...]
    """Query-key channels of every head; 0: it attends to all tokens alike."""
    value: tuple[int, ...]
    """Value channels of every head, at least 1."""
    mlp: int
    """Hidden units."""


@dataclass(frozen=True)
class Shape:
    """All widths of a network."""

    image_size: int
    channels: int
    patch: int
    width: int
    """D."""
    classes: int
    pool: str
    full_width: int
    """How many residual channels the norms count: D, and those that were removed."""
    head_size: int
    """Scores are divided by its root, whatever channels were removed."""
    blocks: tuple[BlockShape, ...]
    every_token: bool = False
    """Whether the last block works on all tokens although the head reads the class token alone, as a `ViT` does."""
    eps: float = 1e-5
    """What the norms add to a variance."""
    folded: bool = False
    """Whether what is left of an attention or MLP that is gone is in the bias before it, and not added by itself."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Shape:
        """From plain values, as `config` gives them."""
        blocks = [BlockShape(tuple(b["qk"]), tuple(b["value"]), b["mlp"]) for b in config["blocks"]]
        return cls(**{**config, "blocks": tuple(blocks)})

    def config(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        blocks = [{"qk": list(b.qk), "value": list(b.value), "mlp": b.mlp} for b in self.blocks]
        return {**vars(self), "blocks": blocks}

    @property
    def tokens(self) -> int:
        """T: the class token and the patches."""
        return 1 + (self.image_size // self.patch) ** 2

    def nodes(self) -> dict[str, int]:
        """How many nodes of every kind there are, by name."""
        found = {RESIDUAL: self.width}
        for i, block in enumerate(self.blocks):
            found |= {f"blocks.{i}.mlp": block.mlp, f"blocks.{i}.qk": sum(block.qk)}
            found[f"blocks.{i}.value"] = sum(block.value)
        return found

    def wiring(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """For every linear layer the kinds of nodes that its rows write, in order, and that its columns read.

        ``""`` are pixels and classes, which are never removed.
        """
        found: dict[str, tuple[tuple[str, ...], str]] = {"embed": ((RESIDUAL,), "")}
        for i, block in enumerate(self.blocks):
            at = f"blocks.{i}."
            if block.value:
                found[at + "attn.qkv"] = ((at + "qk", at + "qk", at + "value"), RESIDUAL)
                found[at + "attn.proj"] = ((RESIDUAL,), at + "value")
            if block.mlp:
                found[at + "mlp.fc1"] = ((at + "mlp",), RESIDUAL)
                found[at + "mlp.fc2"] = ((RESIDUAL,), at + "mlp")
        return {**found, "head": (("",), RESIDUAL)}

    def layers(self) -> dict[str, tuple[int, int]]:
        """(rows, columns) of every linear layer."""
        nodes = self.nodes()
        found = {
            name: (sum(nodes.get(kind, 0) for kind in rows), nodes.get(columns, 0))
            for name, (rows, columns) in self.wiring().items()
        }
        found["embed"] = (self.width, self.channels * self.patch**2)
        found["head"] = (self.classes, self.width)
        return found

    def read(self, block: int) -> int:
        """How many tokens of a block's output are read: T, or 1 of the last block where the head reads that one."""
        last = block == len(self.blocks) - 1
        return 1 if last and self.pool == "class" and not self.every_token else self.tokens

    def compact(self) -> Shape:
        """The same widths in a `CompactViT`."""
        return dataclasses.replace(self, every_token=False)

    def uses(self, layer: str) -> tuple[int, ...]:
        """How often a pass of one image multiplies by a layer's rows, by the kinds of rows that `wiring` gives.

        T, but patches alone are embedded, the head reads once, and what only unread tokens would need is left out: of
        the last block all queries but one, and with them `proj` and the MLP.
        """
        if not layer.startswith("blocks."):
            return ({"embed": self.tokens - 1, "head": 1}[layer],)
        read = self.read(int(layer.split(".")[1]))
        return (read, self.tokens, self.tokens) if layer.endswith("qkv") else (read,)

    def weights(self) -> int:
        """Entries of the linear layers' matrices: what carries masks, without biases, norms and positions."""
        return sum(rows * columns for rows, columns in self.layers().values())

    def macs(self) -> int:
        """Multiply-adds of one image: uses x rows x columns of every layer, and what the heads mix.

        That is T x tokens read x (query-key + value channels) a head. One without query-key channels only adds up its
        values. Norms, activations and softmax are not counted.
        """
        nodes, total = {**self.nodes(), "": self.classes}, 0
        for layer, (kinds, _) in self.wiring().items():
            columns = self.layers()[layer][1]
            total += sum(n * nodes[kind] * columns for n, kind in zip(self.uses(layer), kinds, strict=True))
        for i, block in enumerate(self.blocks):
            heads = zip(block.qk, block.value, strict=True)
            total += self.tokens * self.read(i) * sum(qk + value for qk, value in heads if qk)
        return total


def shape_of(model: nn.Module) -> Shape:
    """The shape of a `ViT`, a `CompactViT` or a vision transformer of another library that `foreign.py` knows."""
    from .foreign import read_foreign  # which needs this file

    model = getattr(model, "_orig_mod", model)
    own = getattr(model, "shape", None)
    if isinstance(own, Shape):
        return own
    if not isinstance(model, ViT):
        found = read_foreign(model)
        if found is None:
            raise ValueError(
                f"expected a ViT or a CompactViT, got {type(model).__name__}; give one of these, or a ViT of "
                "transformers, torchvision or timm"
            )
        return found.shape
    if model.replicas is not None:
        raise ValueError(f"expected a single ViT, got a stack of {model.replicas}; take one out with unstack first")
    config: Mapping[str, Any] = model.config
    size = config["width"] // config["heads"]
    block = BlockShape((size,) * config["heads"], (size,) * config["heads"], config["mlp"])
    same = {name: config[name] for name in ("image_size", "channels", "patch", "width", "classes", "pool")}
    return Shape(
        **same, full_width=config["width"], head_size=size, blocks=(block,) * config["depth"], every_token=True
    )


def count_weights(model: nn.Module) -> int:
    """How many entries the matrices of a `ViT`'s or `CompactViT`'s linear layers have."""
    return shape_of(model).weights()


def count_macs(model: nn.Module) -> int:
    """How many multiply-adds one image costs in a `ViT` or `CompactViT`; see `Shape.macs`."""
    return shape_of(model).macs()
