"""Active learning: which inputs of a pool to label next.

    bald              I(y; W, xi) = H[mean over t of p_t] - mean over t of H[p_t]        where the networks disagree
    entropy           H[mean over t of p_t]                                              where the answer is open
    variation-ratio   1 - (passes that vote for the most voted class) / T                where the votes are split

p_t are the probabilities of pass t of T. For ``multilabel`` outputs a score is its sum over the labels.
"""

from __future__ import annotations

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


def acquire(
    model: nn.Module,
    pool: Any,
    k: int,
    score: Score = "bald",
    *,
    samples: int = 50,
    sampling: Sampling = "mask",
    batch_size: int | None = None,
    memory: int = DEFAULT_MEMORY,
    generator: torch.Generator | None = None,
    seeds: Sequence[int] | None = None,
) -> Tensor:
    """The k inputs of a pool that are most worth a label, by index, the most worthy first.

    Of inputs with equal scores the one that comes first in the pool is taken first. Scores are those of single inputs:
    near copies of each other are all chosen.

    Args:
        model: an attached model. A stacked one chooses for every replica apart.
        pool: inputs ``[N, ...]`` without labels, or a mapping of named ones, as `predict` takes them.
        k: how many, from 1 to N.
        score: ``bald``, ``entropy`` or ``variation-ratio``.
        samples: T.
        sampling: as for `predict`; so are the arguments that follow.
        batch_size: inputs a chunk.
        memory: bytes that a chunk's activations may take together.
        generator: where the seed of the T networks comes from; None: torch's default generator.
        seeds: of a stacked model, one a replica.

    Returns:
        Indices into the pool, ``[k]``, or ``[R, k]`` for stacked replicas, on the model's device.
    """
    if score not in ("bald", "entropy", "variation-ratio"):
        raise ValueError(f"acquire: score must be 'bald', 'entropy' or 'variation-ratio', got {score!r}")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"acquire: k must be a whole number, 1 or more, got {k!r}")
    prediction = predict(
        model, pool, samples=samples, sampling=sampling, batch_size=batch_size, memory=memory, generator=generator,
        seeds=seeds,
    )  # fmt: skip
    worth = scores(prediction, score)  # [*R, N]
    replicas = _replicas(model)
    if worth.dim() != len(replicas) + 1:
        raise ValueError(
            f"acquire: expected one output an input, got scores of shape {tuple(worth.shape)}; choose by a score of "
            "your own from isf.predict"
        )
    if k > worth.shape[-1]:
        raise ValueError(f"acquire: k={k} is more than the pool has, {worth.shape[-1]} inputs")
    if not bool(worth.isfinite().all()):
        raise ValueError("acquire: some probabilities are NaN; look at the model's outputs for this pool")
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


def _replicas(model: nn.Module) -> torch.Size:
    method = attached_to(model)
    assert method is not None, "predict has refused a model without a method"
    return next(iter(method.parts.posteriors.values())).drop.shape[:-2]
