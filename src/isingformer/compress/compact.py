"""A vision transformer with uneven widths: what is left when structure has been removed, on one page.

Axes: images ``[B, C, H, W]``, tokens ``[B, T, D]`` as in `nn/vit.py`; D are the residual channels that are left.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nn.vit import MLP, patches
from .shape import BlockShape, Shape


class Constant(nn.Module):
    """What stays of an attention or an MLP of which all is removed: a constant that every token gets."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D]
        """The constant, ``[D]``, to be added to all tokens."""
        return self.bias


class CompactNorm(nn.Module):
    """A layer norm that counts removed channels as if they were there, constant over images.

        a   = (1 - g) mean(x) + g mean'            g: share of the channels that are gone
        var = (1 - g) mean((x - a)^2) + g (var' + (mean' - a)^2)
        out = weight (x - a) / sqrt(var + eps) + bias

    mean' and var', of the removed channels at each token, are buffers: they are saved with the model and not trained.

    Args:
        width: channels that are left.
        full: channels there were.
        tokens: T, or 1 where only the class token passes.
    """

    gone_mean: Tensor
    gone_var: Tensor

    def __init__(self, width: int, full: int, tokens: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.gone, self.eps = 1 - width / full, eps
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))
        self.register_buffer("gone_mean", torch.zeros(tokens, 1))
        self.register_buffer("gone_var", torch.zeros(tokens, 1))

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D]
        """Tokens to tokens."""
        a, var = self.statistics(x)
        return (x - a) * torch.rsqrt(var + self.eps) * self.weight + self.bias

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(a, var) of every token, each ``[B, T, 1]``."""
        left = 1 - self.gone
        a = left * x.mean(-1, keepdim=True) + self.gone * self.gone_mean
        spread = self.gone_var + (self.gone_mean - a).square()
        return a, left * (x - a).square().mean(-1, keepdim=True) + self.gone * spread


class CompactAttention(nn.Module):
    """Self-attention with heads of any widths; the rows of `qkv` are all queries, all keys, all values, by head."""

    def __init__(self, width: int, block: BlockShape, head_size: int) -> None:
        super().__init__()
        self.qk, self.value, self.scale = list(block.qk), list(block.value), head_size**-0.5
        self.even = len({*self.qk, *self.value}) == 1
        self.qkv = nn.Linear(width, 2 * sum(self.qk) + sum(self.value))
        self.proj = nn.Linear(sum(self.value), width)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D]
        """Tokens to tokens."""
        qkv = self.qkv(x)
        if self.even:
            q, k, v = qkv.unflatten(-1, (3, len(self.value), -1)).movedim(-3, 0).transpose(-2, -3)  # [B, heads, T, C]
            mixed = F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(-2, -3).flatten(-2)
            return self.proj(mixed)
        widths = [*self.qk, *self.qk, *self.value]
        parts, heads = qkv.split(widths, dim=-1), len(self.value)
        # One head after the other: torch's fused attention wants heads of one width, and padding costs more.
        return self.proj(torch.cat([self._head(*parts[h::heads]) for h in range(heads)], dim=-1))

    def _head(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # [B, T, channels]
        if not q.shape[-1]:
            return v.mean(-2, keepdim=True).expand_as(v)  # all scores are the same
        return torch.softmax((q * self.scale) @ k.mT, dim=-1) @ v


class CompactBlock(nn.Module):
    """A pre-norm transformer block; a constant needs no norm before it."""

    def __init__(self, shape: Shape, block: BlockShape) -> None:
        super().__init__()
        self.norm1 = _norm(shape, shape.tokens) if block.value else nn.Identity()
        self.attn = CompactAttention(shape.width, block, shape.head_size) if block.value else Constant(shape.width)
        self.norm2 = _norm(shape, shape.tokens) if block.mlp else nn.Identity()
        self.mlp = MLP(shape.width, block.mlp, None) if block.mlp else Constant(shape.width)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D]
        """Tokens to tokens."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class CompactViT(nn.Module):
    """A `ViT` of which structure was removed. `compress` makes it; ``CompactViT(**other.config)`` builds it again.

    Args:
        config: `Shape.config()`: what `ViT` takes, with the widths of every block by themselves.
    """

    def __init__(self, **config: Any) -> None:
        super().__init__()
        shape = Shape.from_config(config)
        self.shape, self.config = shape, shape.config()
        self.embed = nn.Linear(shape.channels * shape.patch**2, shape.width)
        self.class_token = nn.Parameter(torch.zeros(1, 1, shape.width))
        self.position = nn.Parameter(torch.zeros(1, shape.tokens, shape.width))
        self.embedded = nn.Identity()  # where Dropout masks nodes
        self.blocks = nn.ModuleList(CompactBlock(shape, block) for block in shape.blocks)
        self.norm = _norm(shape, 1 if shape.pool == "class" else shape.tokens)
        self.head = nn.Linear(shape.width, shape.classes)

    def forward(self, images: Tensor) -> Tensor:  # [B, C, H, W]
        """Logits, ``[B, classes]``."""
        x = self.embed(patches(images, self.shape.patch))  # [B, T - 1, D]
        first = self.class_token.expand(x.shape[0], 1, -1)
        x = self.embedded(torch.cat([first, x], dim=-2) + self.position)
        for block in self.blocks:
            x = block(x)
        if self.shape.pool == "class":
            return self.head(self.norm(x[:, 0]))
        return self.head(self.norm(x).mean(-2))

    def extra_repr(self) -> str:
        """What it costs."""
        return f"weights={self.shape.weights():,}, multiply-adds={self.shape.macs():,}"


def _norm(shape: Shape, tokens: int) -> nn.Module:
    if shape.width == shape.full_width:
        return nn.LayerNorm(shape.width)
    return CompactNorm(shape.width, shape.full_width, tokens)


def empty_compact(shape: Shape, like: Tensor) -> CompactViT:
    """A `CompactViT` whose numbers are still to be filled in, of the device and type of `like`."""
    with torch.random.fork_rng(devices=[]):  # its initial weights are not used, so no one's generator is moved
        return CompactViT(**shape.config()).to(like.device, like.dtype)
