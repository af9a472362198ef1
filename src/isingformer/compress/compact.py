"""A vision transformer with uneven widths: what is left when structure has been removed, on one page.

Axes: images ``[B, C, H, W]``, tokens ``[B, T, D]`` as in `nn/vit.py`; D are the residual channels that are left.

Where the head reads the class token alone, the last block computes that token alone, from the keys and values of all:
the same answer for less work.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
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

    def __init__(self, width: int, block: BlockShape, head_size: int, first: bool = False) -> None:
        super().__init__()
        self.qk, self.value, self.scale, self.first = list(block.qk), list(block.value), head_size**-0.5, first
        self.even = len({*self.qk}) == 1 and len({*self.value}) == 1 and self.qk[0] > 0
        self.qkv = nn.Linear(width, 2 * sum(self.qk) + sum(self.value))
        self.proj = nn.Linear(sum(self.value), width)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D]
        """Tokens to tokens, or to the first of them."""
        if self.even:
            return self.proj(self._mixed(*self._by_head(x)).transpose(1, 2).flatten(2))
        parts = self._projected(x)
        heads = zip(*(part.split(n, -1) for part, n in zip(parts, self._widths(), strict=True)), strict=True)
        # One head after the other: torch's fused attention wants heads of one width, and padding costs more.
        return self.proj(torch.cat([self._head(*head) for head in heads], dim=-1))

    def _by_head(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of heads of one width, each ``[B, heads, T, channels]``.

        In few calls: for one image they cost more than the products. Torch's fused attention wants one width, and zeros
        cost less than doing without it.
        """
        images, tokens, heads, lack = x.shape[0], x.shape[1], len(self.value), self.value[0] - self.qk[0]
        if self.first:
            q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in self._projected(x))
            q, k = (F.pad(part, (0, lack)) for part in (q, k)) if lack > 0 else (q, k)
        elif lack:
            qk, v = self.qkv(x).split((2 * sum(self.qk), sum(self.value)), -1)
            qk, v = qk.view(images, tokens, 2, heads, -1), v.view(images, tokens, heads, -1).transpose(1, 2)
            q, k = (F.pad(qk, (0, lack)) if lack > 0 else qk).permute(2, 0, 3, 1, 4).unbind()
        else:
            q, k, v = self.qkv(x).view(images, tokens, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind()
        return q, k, F.pad(v, (0, -lack)) if lack < 0 else v

    def _mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q k' scale) v."""
        mixed = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return mixed if v.shape[-1] == self.value[0] else mixed[..., : self.value[0]]

    def _widths(self) -> tuple[list[int], list[int], list[int]]:
        return self.qk, self.qk, self.value

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all heads, each ``[B, T, channels]``; where one token is asked for, its query."""
        layer, queries, sizes = self.qkv, sum(self.qk), [sum(widths) for widths in self._widths()]
        packed = isinstance(layer.weight, torch.sparse.SparseSemiStructuredTensor)
        if not self.first or packed or type(layer) is not nn.Linear:  # a posterior belongs to the matrix as a whole
            q, k, v = layer(x).split(sizes, -1)
            return q[..., :1, :] if self.first else q, k, v
        q = F.linear(x[..., :1, :], layer.weight[:queries], layer.bias[:queries])
        weight, bias = layer.weight[queries:], layer.bias[queries:]
        # On a GPU cuBLAS takes for granted that a bias begins at a multiple of 16 bytes, which this one need not.
        both = _plus(F.linear(x, weight), bias) if x.is_cuda else F.linear(x, weight, bias)
        k, v = both.split(sizes[1:], -1)
        return q, k, v

    def _head(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # [B, T, channels]
        if not q.shape[-1]:
            return v.mean(-2, keepdim=True).expand(*q.shape[:-1], -1)  # all scores are the same
        return torch.softmax((q * self.scale) @ k.mT, dim=-1) @ v


def _plus(y: Tensor, bias: Tensor) -> Tensor:
    return y + bias.to(y.dtype)  # autocast leaves sums alone


class CompactBlock(nn.Module):
    """A pre-norm transformer block; of an attention or MLP that is gone, nothing is called.

    A constant is added in its place, or was already to what comes before; see `remove.py`.
    """

    def __init__(self, shape: Shape, number: int) -> None:
        super().__init__()
        block, read = shape.blocks[number], shape.read(number)
        self.first = read == 1
        self.norm1 = _norm(shape, shape.tokens) if block.value else nn.Identity()
        gone = nn.Identity if shape.folded else partial(Constant, shape.width)
        attention = CompactAttention(shape.width, block, shape.head_size, self.first) if block.value else None
        self.attn = attention or gone()
        self.norm2 = _norm(shape, read) if block.mlp else nn.Identity()
        self.mlp = MLP(shape.width, block.mlp, None) if block.mlp else gone()

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D]
        """Tokens to tokens, or to the first of them."""
        read = x[..., :1, :] if self.first else x
        if isinstance(self.attn, CompactAttention):
            read = read + self.attn(self.norm1(x))
        elif isinstance(self.attn, Constant):
            read = read + self.attn.bias
        if isinstance(self.mlp, MLP):
            return read + self.mlp(self.norm2(read))
        return read + self.mlp.bias if isinstance(self.mlp, Constant) else read


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
        self.blocks = nn.ModuleList(CompactBlock(shape, number) for number in range(len(shape.blocks)))
        self.norm = _norm(shape, 1 if shape.pool == "class" else shape.tokens)
        self.head = nn.Linear(shape.width, shape.classes)

    def forward(self, images: Tensor) -> Tensor:  # [B, C, H, W]
        """Logits, ``[B, classes]``."""
        x = self.embed(patches(images, self.shape.patch))  # [B, T - 1, D]
        first = self.class_token.expand(*x.shape[:-2], 1, -1)
        x = self.embedded(torch.cat([first, x], dim=-2) + self.position)
        for block in self.blocks:
            x = block(x)
        if self.shape.pool == "class":
            return self.head(self.norm(x[..., :1, :]).squeeze(-2))
        return self.head(self.norm(x).mean(-2))

    def extra_repr(self) -> str:
        """What it costs."""
        return f"weights={self.shape.weights():,}, multiply-adds={self.shape.macs():,}"


def _norm(shape: Shape, tokens: int) -> nn.Module:
    if shape.width == shape.full_width:
        return nn.LayerNorm(shape.width, eps=shape.eps)
    return CompactNorm(shape.width, shape.full_width, tokens, eps=shape.eps)


def empty_compact(shape: Shape, like: Tensor) -> CompactViT:
    """A `CompactViT` whose numbers are still to be filled in, of the device and type of `like`."""
    with torch.random.fork_rng(devices=[]):  # its initial weights are not used, so no one's generator is moved
        return CompactViT(**shape.config()).to(like.device, like.dtype)


def frozen_names(model: nn.Module) -> list[str]:
    """The parameters that no training moves (requires_grad=False)."""
    return [name for name, parameter in model.named_parameters() if not parameter.requires_grad]


def freeze(network: nn.Module, names: Iterable[str]) -> None:
    """Freeze the parameters of these names, as far as they are there."""
    parameters = dict(network.named_parameters())
    for name in names:
        if name in parameters:
            parameters[name].requires_grad_(False)
