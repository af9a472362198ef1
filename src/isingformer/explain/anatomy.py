"""Where the parts of a vision transformer are: all that this room knows of a model's own code.

Everything else here reads a model through its `Anatomy`, so that another kind of ViT needs one more function like those
in `KINDS`, and nothing else. What they have in common: patches by a linear layer or a convolution, a class token before
them, pre-norm blocks of plain softmax attention and an MLP, a last norm, one linear classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from ..nn.layers import weight_of
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
    for known, read in KINDS.items():
        if any(f"{kind.__module__.split('.')[0]}.{kind.__qualname__}" == known for kind in type(model).__mro__):
            return read(model)
    raise TypeError(
        "explain: expected a vision transformer that it can read, which are isf.ViT, ViTForImageClassification of "
        f"transformers and VisionTransformer of torchvision, got {type(model).__name__}"
    )


def matrix_of(model: nn.Module, layer: str) -> Tensor:
    """A layer's weight as a matrix ``[out, in]``, whether or not the layer carries a posterior."""
    owner, _, own = layer.rpartition(".")
    if own in model.get_submodule(owner)._modules:
        return weight_of(model.get_submodule(layer)).detach()
    return model.get_submodule(owner).get_parameter(f"{own}_weight").detach()  # inside an nn.MultiheadAttention


def _of_ours(model: nn.Module) -> Anatomy:
    assert isinstance(model, ViT)
    if model.replicas is not None:
        raise ValueError(
            f"explain: expected a single network, got {model.replicas} stacked ones; explain one by itself"
        )
    _at_least_one(model.blocks)
    width, side = model.width, int(str(model.config["image_size"])) // model.patch
    blocks = tuple(
        Block(
            *_thirds(f"blocks.{i}.attn.qkv", width), proj=f"blocks.{i}.attn.proj", first=f"blocks.{i}.norm1",
            middle=f"blocks.{i}.norm2", fc1=f"blocks.{i}.mlp.fc1", fc2=f"blocks.{i}.mlp.fc2",
        )
        for i in range(len(model.blocks))
    )  # fmt: skip
    return Anatomy(
        heads=model.heads, width=width, hidden=model.mlp, channels=int(str(model.config["channels"])),
        patch=model.patch, grid=(side, side), embed="embed", blocks=blocks, norm="norm", classifier="head",
        pool=model.pool,
    )  # fmt: skip


def _of_transformers(model: Any) -> Anatomy:
    """By order rather than by name: names have changed between versions, the order of a block's layers has not."""
    config = model.config
    (conv,) = _names(model, nn.Conv2d)
    layers, found = next((name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList))
    _at_least_one(found)
    blocks = []
    for i, block in enumerate(found):
        q, k, v, proj, fc1, fc2 = (f"{layers}.{i}.{name}" for name in _names(block, nn.Linear))
        first, middle = (f"{layers}.{i}.{name}" for name in _names(block, nn.LayerNorm))
        query, key, value = (Rows(name, slice(None)) for name in (q, k, v))
        blocks.append(Block(query, key, value, proj=proj, first=first, middle=middle, fc1=fc1, fc2=fc2))
    (norm,) = (name for name in _names(model, nn.LayerNorm) if not name.startswith(f"{layers}."))
    if not isinstance(model.classifier, nn.Linear):
        raise ValueError(f"explain: expected a model with a classifier, got num_labels {config.num_labels}")
    return _with_convolution(
        model, conv, _pair(config.image_size), heads=config.num_attention_heads, hidden=config.intermediate_size,
        blocks=blocks, norm=norm, classifier="classifier",
    )  # fmt: skip


def _of_torchvision(model: Any) -> Anatomy:
    blocks = []
    found = dict(model.encoder.layers.named_children())
    _at_least_one(list(found))
    for name, block in found.items():
        at = f"encoder.layers.{name}."
        fc1, fc2 = (f"{at}mlp.{inner}" for inner in _names(block.mlp, nn.Linear))
        blocks.append(
            Block(
                *_thirds(f"{at}self_attention.in_proj", block.hidden_dim), proj=f"{at}self_attention.out_proj",
                first=f"{at}ln_1", middle=f"{at}ln_2", fc1=fc1, fc2=fc2,
            )
        )  # fmt: skip
    heads = _names(model.heads, nn.Linear)
    if len(heads) != 1:
        raise ValueError(f"explain: expected one linear layer after the blocks, got {len(heads)} in heads")
    return _with_convolution(
        model, "conv_proj", _pair(model.image_size), heads=block.num_heads, hidden=model.mlp_dim, blocks=blocks,
        norm="encoder.ln", classifier=f"heads.{heads[0]}",
    )  # fmt: skip


KINDS: dict[str, Callable[[nn.Module], Anatomy]] = {
    "isingformer.ViT": _of_ours,
    "transformers.ViTForImageClassification": _of_transformers,
    "torchvision.VisionTransformer": _of_torchvision,
}
"""How a model is read, by its library and class. The libraries need not be there."""


def _with_convolution(
    model: nn.Module, embed: str, size: tuple[int, int], *, heads: int, hidden: int, blocks: Sequence[Block],
    norm: str, classifier: str,
) -> Anatomy:  # fmt: skip
    conv = model.get_submodule(embed)
    assert isinstance(conv, nn.Conv2d)
    (patch, across), (rows, columns) = _pair(conv.kernel_size), size
    if patch != across or rows % patch or columns % patch:
        raise ValueError(f"explain: expected square patches that fill the image, got {patch} x {across} of {size}")
    return Anatomy(
        heads=heads, width=conv.out_channels, hidden=hidden, channels=conv.in_channels, patch=patch,
        grid=(rows // patch, columns // patch), embed=embed, blocks=tuple(blocks), norm=norm, classifier=classifier,
        pool="class",
    )  # fmt: skip


def _at_least_one(blocks: Sequence[object] | nn.ModuleList) -> None:
    if not len(blocks):
        raise ValueError("explain: expected a vision transformer with at least one block, got depth 0")


def _thirds(layer: str, width: int) -> tuple[Rows, Rows, Rows]:
    """Query, key and value rows of a layer that computes all three."""
    query, key, value = (Rows(layer, slice(k * width, (k + 1) * width)) for k in range(3))
    return query, key, value


def _names(module: nn.Module, kind: type[nn.Module]) -> list[str]:
    return [name for name, inner in module.named_modules() if isinstance(inner, kind)]


def _pair(side: int | Sequence[int]) -> tuple[int, int]:
    return (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))
