"""Attention of an input under T drawn networks: by head, and rolled out from what the classifier reads to the patches.

Axes: ``...`` any leading axes (T networks, N images), L blocks, H heads, Q query and K key tokens, P patches. Tokens
    are the class token and then the patches.

    rollout = A_L ... A_2 A_1,    A_l = (mean over heads of attention in block l + identity) / 2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .spread import Spread

Pool = Literal["class", "mean"]


@dataclass(frozen=True)
class AttentionSpread:
    """Attention under T networks; `mean`, `sd`, `interval` and `against` of each are those of `Spread`."""

    heads: Spread
    """From what the classifier reads to the patches, by head: shares that sum to 1 over P, ``[T, N, L, H, P]``."""
    rollout: Spread
    """Likewise through all blocks, ``[T, N, P]``."""
    raw: Spread
    """Likewise of the last block alone, the mean over its heads, ``[T, N, P]``."""
    entropy: Spread
    """Of each head's attention, the mean over queries, in nats, ``[T, N, L, H]``; at most log(tokens)."""

    @property
    def uniform(self) -> float:
        """1 / P, the share of a patch where attention is the same everywhere."""
        return 1 / self.rollout.samples.shape[-1]

    def regions(self, level: float = 0.9) -> Tensor:
        """Stable and unstable regions of the rollout, int8 ``[N, P]``.

        1: more than the uniform share under nearly every network; -1: less; 0: the networks differ, the interval holds
        the uniform share.
        """
        return self.rollout.against(self.uniform, level)


def rollout(attention: Tensor) -> Tensor:
    """Attention through all blocks, ``[..., L, H, Q, K]`` to ``[..., Q, K]``; rows sum to 1."""
    mixed = attention.mean(-3)  # [..., L, Q, K]
    steps = (mixed + torch.eye(mixed.shape[-1], dtype=mixed.dtype, device=mixed.device)) / 2
    total = steps[..., 0, :, :]
    for block in range(1, steps.shape[-3]):
        total = steps[..., block, :, :] @ total
    return total


def to_patches(attention: Tensor, pool: Pool) -> Tensor:
    """Attention from what the classifier reads to the patches, ``[..., Q, K]`` to ``[..., P]``, summing to 1.

    The classifier reads the class token's row, or the mean of all rows. What goes to the class token itself is left
    out; where all of it does, the patches share evenly.
    """
    row = attention[..., 0, :] if pool == "class" else attention.mean(-2)
    shares, total = row[..., 1:], row[..., 1:].sum(-1, keepdim=True)
    return torch.where(total > 0, shares / total.clamp_min(torch.finfo(row.dtype).tiny), 1 / shares.shape[-1])


def head_entropy(attention: Tensor) -> Tensor:
    """mean over queries of - sum over keys of a log a, ``[..., Q, K]`` to ``[...]``, in nats."""
    return torch.special.entr(attention).sum(-1).mean(-1)


def attention_of(attention: Tensor, pool: Pool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The figures of one pass, in the order of `AttentionSpread`: heads, rollout, raw, entropy.

    Args:
        attention: ``[N, L, H, Q, K]``.
        pool: what the classifier reads.
    """
    return (
        to_patches(attention, pool),
        to_patches(rollout(attention), pool),
        to_patches(attention[:, -1].mean(1), pool),
        head_entropy(attention),
    )


def attention_spread(passes: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> AttentionSpread:
    """What `attention_of` gave for each of T networks."""
    return AttentionSpread(*(Spread(torch.stack(parts)) for parts in zip(*passes, strict=True)))
