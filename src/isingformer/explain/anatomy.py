"""Where the parts of a vision transformer are: all that this room knows of a model's own code.

Everything else here reads a model through its `Anatomy`, so that another kind of ViT needs one more function like
`_of_vit`, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ..nn.vit import ViT


@dataclass(frozen=True)
class Rows:
    """Rows of a linear layer: where the queries, keys or values of a block are computed."""

    layer: str
    rows: slice


@dataclass(frozen=True)
class Block:
    """The modules of one pre-norm block, by name."""

    query: Rows
    key: Rows
    value: Rows
    proj: str
    """Reads the heads' outputs, head after head."""
    first: str
    """The module whose input is the residual stream before attention: the first norm."""
    middle: str
    """The module whose input is the residual stream between attention and MLP: the second norm."""
    fc1: str
    fc2: str


@dataclass(frozen=True)
class Anatomy:
    """A vision transformer by its parts. Tokens are the class token and then the patches in reading order."""

    heads: int
    width: int
    hidden: int
    """Units of an MLP."""
    channels: int
    patch: int
    """Side of a patch in pixels."""
    grid: tuple[int, int]
    """Rows and columns of patches."""
    embed: str
    blocks: tuple[Block, ...]
    norm: str
    """The last norm, whose output the classifier reads."""
    classifier: str
    pool: Literal["class", "mean"]

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        """Patches and the class token."""
        return 1 + self.patches

    @property
    def layers(self) -> tuple[str, ...]:
        """The linear layers from the input to the classes, each once."""
        inner = [
            name for b in self.blocks for name in (b.query.layer, b.key.layer, b.value.layer, b.proj, b.fc1, b.fc2)
        ]
        return tuple(dict.fromkeys([self.embed, *inner, self.classifier]))

    def tokens_through(self, layer: str) -> int:
        """How many tokens of an image a layer is applied to."""
        if layer == self.embed:
            return self.patches
        return 1 if layer == self.classifier else self.tokens

    def by_head(self, x: Tensor) -> Tensor:
        """``[N, tokens, width]`` as ``[N, H, tokens, C]``, C channels of a head."""
        return x.unflatten(-1, (self.heads, -1)).transpose(-2, -3)

    def token_name(self, token: int) -> str:
        """What a token is called: ``class``, or its patch's row and column from 1."""
        if token == 0:
            return "class"
        row, column = divmod(token - 1, self.grid[1])
        return f"({row + 1}, {column + 1})"


def anatomy(model: nn.Module) -> Anatomy:
    """The anatomy of a model of a known kind, also of one that is compiled."""
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, ViT):
        raise TypeError(f"explain: expected a vision transformer such as isf.ViT, got {type(model).__name__}")
    if model.replicas is not None:
        raise ValueError(
            f"explain: expected a single network, got {model.replicas} stacked ones; explain one by itself"
        )
    if not len(model.blocks):
        raise ValueError("explain: expected a vision transformer with at least one block, got depth 0")
    return _of_vit(model)


def _of_vit(model: ViT) -> Anatomy:
    width, side = model.width, int(str(model.config["image_size"])) // model.patch
    blocks = []
    for i in range(len(model.blocks)):
        at = f"blocks.{i}."
        query, key, value = (Rows(at + "attn.qkv", slice(k * width, (k + 1) * width)) for k in range(3))
        blocks.append(
            Block(
                query, key, value, proj=at + "attn.proj", first=at + "norm1", middle=at + "norm2", fc1=at + "mlp.fc1",
                fc2=at + "mlp.fc2",
            )
        )  # fmt: skip
    return Anatomy(
        heads=model.heads, width=width, hidden=model.mlp, channels=int(str(model.config["channels"])),
        patch=model.patch, grid=(side, side), embed="embed", blocks=tuple(blocks), norm="norm", classifier="head",
        pool=model.pool,
    )  # fmt: skip
