"""Active learning: which inputs of a pool to label next.

    bald              I(y; W, xi) = H[mean over t of p_t] - mean over t of H[p_t]        where the networks disagree
    entropy           H[mean over t of p_t]                                              where the answer is open
    variation-ratio   1 - (passes that vote for the most voted class) / T                where the votes are split

p_t are the probabilities of pass t of T. For ``multilabel`` outputs a score is its sum over the labels.

The inputs with the k highest scores may be near copies of each other, all of the same doubt. With a power b the k are
drawn instead, without replacement, each with a probability proportional to score^b (Kirsch et al. 2021, arXiv
2106.12059). That is what the k highest values of

    b log(score) + g,        g independent, of the standard Gumbel distribution

are, so that one sort does for both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..methods import attached_to
from ..nn.posterior import Sampling
from .passes import DEFAULT_MEMORY, predict
from .prediction import Prediction

Score = Literal["bald", "entropy", "variation-ratio"]
SCORES = ("bald", "entropy", "variation-ratio")


def acquire(
    model: nn.Module,
    pool: Any,
    k: int,
    score: Score | Sequence[Score] = "bald",
    *,
    power: float | None = None,
    samples: int = 50,
    sampling: Sampling = "mask",
    batch_size: int | None = None,
    memory: int = DEFAULT_MEMORY,
    generator: torch.Generator | None = None,
    seeds: Sequence[int] | None = None,
) -> Tensor:
    """The k inputs of a pool that are most worth a label, by index, the most worthy first.

    Of inputs with equal scores the one that comes first in the pool is taken first. Scores are those of single inputs:
    near copies of each other are all chosen, unless a `power` leaves it to chance.

    Args:
        model: an attached model. A stacked one chooses for every replica apart.
        pool: inputs ``[N, ...]`` without labels, or a mapping of named ones, as `predict` takes them.
        k: how many, from 1 to N.
        score: ``bald``, ``entropy`` or ``variation-ratio``; of a stacked model also a list of them, one a replica.
        power: draw the k with probabilities proportional to score^power, in the order of the draws: the more diverse
            the lower, and above 0. Inputs of score 0 come last. None: the k highest scores.
        samples: T.
        sampling: as for `predict`; so are the arguments that follow.
        batch_size: inputs a chunk.
        memory: bytes that a chunk's activations may take together.
        generator: where the seed of the T networks comes from, and what a `power` leaves to chance; None: torch's
            default generator.
        seeds: of a stacked model, one a replica, for both.

    Returns:
        Indices into the pool, ``[k]``, or ``[R, k]`` for stacked replicas, on the model's device.
    """
    each: list[Any] = [score] if isinstance(score, str) else list(score)
    for one in each:
        if one not in SCORES:
            raise ValueError(f"acquire: score must be 'bald', 'entropy' or 'variation-ratio', got {one!r}")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"acquire: k must be a whole number, 1 or more, got {k!r}")
    if power is not None and not (math.isfinite(power) and power > 0):
        raise ValueError(f"acquire: power must be a number above 0, or None for the highest scores, got {power!r}")
    prediction = predict(
        model, pool, samples=samples, sampling=sampling, batch_size=batch_size, memory=memory, generator=generator,
        seeds=seeds,
    )  # fmt: skip
    replicas = _replicas(model)
    if isinstance(score, str):
        worth = scores(prediction, score)  # [*R, N]
    elif (len(each),) == tuple(replicas):
        every = {one: scores(prediction, one) for one in set(each)}
        worth = torch.stack([every[one][r] for r, one in enumerate(each)])
    else:
        raise ValueError(f"acquire: scores must be one a replica, {list(replicas)}, got {len(each)}")
    if worth.dim() != len(replicas) + 1:
        raise ValueError(
            f"acquire: expected one output an input, got scores of shape {tuple(worth.shape)}; choose by a score of "
            "your own from isf.predict"
        )
    if k > worth.shape[-1]:
        raise ValueError(f"acquire: k={k} is more than the pool has, {worth.shape[-1]} inputs")
    if not bool(worth.isfinite().all()):
        raise ValueError("acquire: some probabilities are NaN; look at the model's outputs for this pool")
    if power is not None:
        worth = power * worth.double().log() + _gumbel(worth, generator, seeds)
    return worth.sort(dim=-1, descending=True, stable=True).indices[..., :k]


def scores(prediction: Prediction, score: Score) -> Tensor:
    """How much a label of each input is worth, ``[...]``; higher is more."""
    if score == "variation-ratio":
        value = _variation_ratio(prediction)
    else:
        value = prediction.epistemic if score == "bald" else prediction.entropy
    return value.sum(-1) if prediction.per_label else value


def _variation_ratio(prediction: Prediction) -> Tensor:
    samples = prediction.samples  # [T, ..., C]
    if prediction.per_label:
        yes = (samples > 0.5).to(samples.dtype).mean(0)
        return torch.minimum(yes, 1 - yes)
    votes = F.one_hot(samples.argmax(-1), samples.shape[-1]).sum(0)  # [..., C]
    return 1 - votes.amax(-1).to(samples.dtype) / len(samples)


def _gumbel(worth: Tensor, generator: torch.Generator | None, seeds: Sequence[int] | None) -> Tensor:
    """Standard Gumbel numbers for the scores ``[*R, N]``; with seeds, a replica's come from its own."""
    if seeds is None:
        device = "cpu" if generator is None else generator.device
        waits = torch.empty(worth.shape, dtype=torch.float64, device=device).exponential_(generator=generator)
    else:
        waits = torch.empty(worth.shape, dtype=torch.float64)
        for own, seed in zip(waits, seeds, strict=True):
            own.exponential_(generator=torch.Generator().manual_seed(seed))
    return -waits.log().to(worth.device)


def _replicas(model: nn.Module) -> torch.Size:
    method = attached_to(model)
    assert method is not None, "predict has refused a model without a method"
    return next(iter(method.parts.posteriors.values())).drop.shape[:-2]
