"""The reference vision transformer, on one page.

Axes: images ``[*R, B, C, H, W]``, tokens ``[*R, B, T, D]``: R is a leading replica axis (``replicas=10``) or none, B
    images, T = 1 class token + patches, D width. With replicas every parameter has the leading axis too, so that they
    train as one batched program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import attention
from .stacked import layer_norm, linear_layer


class Attention(nn.Module):
    """Multi-head self-attention; the rows of `qkv` are [query, key, value] x [head] x [channel]."""

    def __init__(self, width: int, heads: int, replicas: int | None) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = linear_layer(width, 3 * width, replicas)
        self.proj = linear_layer(width, width, replicas)

    def forward(self, x: Tensor, queries: int | None = None) -> Tensor:  # [*R, B, T, D]
        """Tokens to tokens; of the first `queries` alone where that is given."""
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))  # [*R, B, T, 3, heads, channels]
        return self.proj(attention(qkv.flatten(0, -5), queries).reshape(*x.shape[:-2], -1, x.shape[-1]))


class MLP(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, width: int, hidden: int, replicas: int | None) -> None:
        super().__init__()
        self.fc1 = linear_layer(width, hidden, replicas)
        self.fc2 = linear_layer(hidden, width, replicas)

    def forward(self, x: Tensor) -> Tensor:  # [*R, B, T, D]
        """Tokens to tokens."""
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int, mlp: int, replicas: int | None) -> None:
        super().__init__()
        self.norm1 = layer_norm(width, replicas)
        self.attn = Attention(width, heads, replicas)
        self.norm2 = layer_norm(width, replicas)
        self.mlp = MLP(width, mlp, replicas)

    def forward(self, x: Tensor, queries: int | None = None) -> Tensor:  # [*R, B, T, D]
        """Tokens to tokens; of the first `queries` alone where that is given."""
        x = x[..., :queries, :] + self.attn(self.norm1(x), queries)
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """A small vision transformer: linear patches, learned positions, pre-norm blocks, a linear head.

    Args:
        image_size: height and width in pixels, a multiple of `patch`.
        channels: 1 for grey, 3 for colour.
        patch: side of a square patch.
        width, depth, heads, mlp: of the transformer; `mlp` is the hidden width.
        classes: outputs of the head.
        pool: what the head reads: the class token, or the mean over tokens.
        replicas: how many networks to stack on a leading axis; None for one network.
    """

    def __init__(
        self,
        *,
        image_size: int,
        channels: int,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        mlp: int,
        classes: int,
        pool: Literal["class", "mean"] = "class",
        replicas: int | None = None,
    ) -> None:
        super().__init__()
        if image_size % patch:
            raise ValueError(
                f"image_size {image_size} is not a multiple of patch {patch}; choose a patch that divides it"
            )
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of heads {heads}; choose heads that divide it")
        if pool not in ("class", "mean"):
            raise ValueError(f"pool must be 'class' or 'mean', got {pool!r}")
        self.config = {
            "image_size": image_size, "channels": channels, "patch": patch, "width": width, "depth": depth,
            "heads": heads, "mlp": mlp, "classes": classes, "pool": pool, "replicas": replicas,
        }  # fmt: skip
        self.patch, self.width, self.heads, self.mlp = patch, width, heads, mlp
        self.pool, self.replicas = pool, replicas
        self.frugal = False
        """Whether the last block computes the class token alone where the head reads no other: same logits, less work.
        Off for whoever looks at the other tokens."""
        lead = () if replicas is None else (replicas,)
        tokens = 1 + (image_size // patch) ** 2
        self.embed = linear_layer(channels * patch**2, width, replicas)
        self.class_token = nn.Parameter(torch.randn(*lead, 1, 1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(*lead, 1, tokens, width) * 0.02)
        self.embedded = nn.Identity()  # tokens with their positions: where Dropout masks nodes
        self.blocks = nn.ModuleList(Block(width, heads, mlp, replicas) for _ in range(depth))
        self.norm = layer_norm(width, replicas)
        self.head = linear_layer(width, classes, replicas)

    def forward(self, images: Tensor) -> Tensor:  # [*R, B, C, H, W]; with replicas also [B, C, H, W], shared by all
        """Logits, ``[*R, B, classes]``."""
        x = self.embeddings(images)  # [*R, B, T, D]
        last = len(self.blocks) - 1 if self.frugal and self.pool == "class" else None
        for number, block in enumerate(self.blocks):
            x = block(x, queries=1) if number == last else block(x)
        return self.read_out(x)

    def embeddings(self, images: Tensor) -> Tensor:
        """Tokens with their positions, the class token first, ``[*R, B, T, D]``."""
        if self.replicas is not None and images.dim() == 4:
            images = images.expand(self.replicas, *images.shape)
        x = self.embed(patches(images, self.patch))  # [*R, B, T - 1, D]
        first = self.class_token.expand(*x.shape[:-2], 1, -1)
        return self.embedded(torch.cat([first, x], dim=-2) + self.position)

    def read_out(self, x: Tensor) -> Tensor:
        """Logits from the tokens of the last block, ``[*R, B, classes]``."""
        x = x[..., 0, :] if self.pool == "class" else x
        x = self.norm(x)
        return self.head(x if self.pool == "class" else x.mean(-2))

    def compile_parts(self) -> None:
        """Compile embeddings, blocks and read-out in place, each on its own: blocks share one program a shape."""
        self.embeddings = torch.compile(self.embeddings, dynamic=False)  # type: ignore[method-assign]
        self.read_out = torch.compile(self.read_out, dynamic=False)  # type: ignore[method-assign]
        for block in self.blocks:
            block.compile(dynamic=False)


def patches(images: Tensor, side: int) -> Tensor:
    """Square patches in reading order, each flattened: ``[..., C, H, W]`` to ``[..., patches, C * side^2]``."""
    grid = images.unflatten(-2, (-1, side)).unflatten(-1, (-1, side))  # [..., C, rows, side, columns, side]
    grid = grid.movedim((-4, -2, -5, -3, -1), (-5, -4, -3, -2, -1))  # [..., rows, columns, C, side, side]
    return grid.flatten(-3).flatten(-3, -2)


def stack(models: Sequence[ViT]) -> ViT:
    """Several networks of one shape as one stacked network, replica r being ``models[r]``."""
    configs = [model.config for model in models]
    if not models or any(config != configs[0] or config["replicas"] is not None for config in configs):
        raise ValueError(f"stack needs at least one ViT, all of one shape and unstacked, got {configs}")
    first = next(models[0].parameters())
    with torch.random.fork_rng(devices=[]):  # its initial weights are not used, so no one's generator is moved
        stacked = ViT(**{**configs[0], "replicas": len(models)}).to(first.device, first.dtype)  # type: ignore[arg-type]
    states = [model.state_dict() for model in models]
    stacked.load_state_dict({key: torch.stack([state[key] for state in states]) for key in states[0]})
    return stacked.train(models[0].training)


def unstack(model: ViT, replica: int) -> ViT:
    """One replica of a stacked network as a network of its own."""
    if model.replicas is None or not -model.replicas <= replica < model.replicas:
        raise ValueError(f"replica {replica} of a ViT with replicas={model.replicas}: there is none of that number")
    first = next(model.parameters())
    with torch.random.fork_rng(devices=[]):
        single = ViT(**{**model.config, "replicas": None}).to(first.device, first.dtype)  # type: ignore[arg-type]
    single.load_state_dict({key: value[replica] for key, value in model.state_dict().items()})
    return single.train(model.training)
