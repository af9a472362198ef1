"""The strongest paths from a class back to the patches, block by block, and how surely they exist.

Axes: T networks, N images, L blocks, M moves (one a head, then the skip), Q tokens above a block, K tokens below it.

In every block a token above got what it holds from tokens below, through a head or by the skip. A move's share is the
positive part of its relevance (`relevance.py`), divided by the sum of those of all moves into the token:

    move[m, i, j] = max(0, edge[m, i, j]) / sum over m, j of max(0, edge[m, i, j])
    end[j]        = what token j has from its pixels rather than from its place, likewise
    path          = share of its first token * product over blocks of the share of its move * end of its last token

A path's share is how much of the positive relevance goes along it. The MLPs keep every token in its place, so they are
not on the way; `RelevanceSpread.units` says which of their units matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .relevance import edge_relevance, patch_relevance, skip_relevance
from .spread import Spread
from .traces import Trace

CANDIDATES = 8
"""Paths that are looked at for each that is asked for."""


@dataclass(frozen=True)
class Path:
    """One way from what the classifier reads to a patch."""

    tokens: tuple[int, ...]
    """From the one that the classifier reads to the patch: L + 1 numbers; 0 is the class token, p + 1 patch p."""
    moves: tuple[int, ...]
    """By which head it went through each block, the last block first: L numbers; H, one past the heads, is the skip."""
    share: float
    """Of the positive relevance, the mean over networks."""
    low: float
    high: float
    """Credible interval of the share."""
    survival: float
    """Share of the networks in which every move of it speaks for the class."""


@dataclass(frozen=True)
class Shares:
    """Of one image's or several images' ways, under one network or several: leading axes ``...``."""

    starts: Tensor
    """Of the tokens that the classifier reads, ``[..., Q]``."""
    moves: Tensor
    """``[..., L, M, Q, K]``."""
    ends: Tensor
    """Of the pixels in what each embedded token says, ``[..., K]``; 0 for the class token, which has none."""


def shares_of(found: Trace, x: Tensor, side: int, baseline: float | Tensor = 0.0) -> Shares:
    """The shares of one traced pass, with leading axis N."""
    pulls = found.pulls
    assert pulls is not None, "a trace without a class has no gradients"
    heads = edge_relevance(found.attention, found.values, pulls.mixed)
    skip = torch.diag_embed(skip_relevance(found.stream, pulls.middle)).unsqueeze(2)
    seen = torch.nn.functional.pad(patch_relevance(x, pulls.here, side, baseline), (1, 0))  # [N, K]
    ends = _shares(torch.stack([seen, pulls.embedded - seen]), (0,))[0]
    return Shares(_shares(pulls.read, (-1,)), _shares(torch.cat([heads, skip], 2), (2, 4)), ends)


def _shares(relevance: Tensor, over: tuple[int, ...]) -> Tensor:
    """Positive parts divided by their sum; 0 where nothing is positive."""
    positive = relevance.clamp_min(0)
    total = positive.sum(over, keepdim=True)
    return torch.where(total > 0, positive / total.clamp_min(torch.finfo(total.dtype).tiny), 0.0)


def strongest_paths(shares: Shares, *, count: int = 5, level: float = 0.9) -> list[Path]:
    """The paths of one image from a class to a patch with the largest shares, best first.

    Candidates are found with the mean shares of every move, several times as many as asked for. Which are the strongest
    is then told by their own shares under each network, as are interval and survival.

    Args:
        shares: with the leading axis T.
        count: how many; fewer where fewer carry anything.
        level: of the intervals.
    """
    paths = []
    for tokens, by in _best(shares.starts.mean(0), shares.moves.mean(0), shares.ends.mean(0), CANDIDATES * count):
        share = shares.starts[:, tokens[0]] * shares.ends[:, tokens[-1]]
        for step, move in enumerate(by):
            share = share * shares.moves[:, len(by) - 1 - step, move, tokens[step], tokens[step + 1]]
        low, high = Spread(share).interval(level)
        survival = float((share > 0).double().mean())
        paths.append(Path(tokens, by, float(share.mean()), float(low), float(high), survival))
    return sorted((path for path in paths if path.share > 0), key=lambda path: -path.share)[:count]


def _best(start: Tensor, moves: Tensor, end: Tensor, count: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The paths with the largest products: for every token below a block, the best ways to it so far.

    A product only falls along the way, so the best ways to a token are made of best ways to the tokens above it.
    """
    depth, ways, _, _ = moves.shape
    value = start[:, None]  # [tokens, best so far]
    back: list[tuple[Tensor, Tensor, Tensor]] = []  # for every token and rank: the token above, its rank, the move
    for block in reversed(range(depth)):
        ranks = value.shape[1]
        reached = torch.einsum("qr,mqk->kqrm", value, moves[block]).flatten(1)  # [K, Q * ranks * M]
        value, at = reached.topk(min(count, reached.shape[1]), dim=1)
        back.append((at // (ranks * ways), at // ways % ranks, at % ways))
    value = value * end[:, None]
    best, places = value.flatten().topk(min(count, value.numel()))
    paths = []
    for place in places[best > 0].tolist():
        token, rank = divmod(place, value.shape[1])
        way, by = [token], []
        for above, above_rank, move in reversed(back):
            by.append(int(move[token, rank]))
            token, rank = int(above[token, rank]), int(above_rank[token, rank])
            way.append(token)
        paths.append((tuple(reversed(way)), tuple(reversed(by))))
    return paths
