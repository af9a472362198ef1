"""Temperature scaling: one number, fitted on held-out data, that makes a prediction as sure as it is right."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .prediction import Prediction, described

LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.05, 20.0


@torch.no_grad()
def fit_temperature(prediction: Prediction, targets: Tensor) -> float:
    """The temperature T that makes a prediction likeliest on held-out data, for `Prediction.tempered`.

        argmin over T of - mean over examples of log( mean over passes of p_T(y) ),        T in [0.05, 20]

    A mean over passes need not have a single minimum in T, so a grid in log T finds the best cell and golden-section
    search the minimum in it, to a relative 1e-6, in float64. 1 where no other temperature is better; an end of the
    range where the likelihood still grows there, as it does towards 0.05 when every example is right.

    Args:
        prediction: of held-out examples: not those of training, on which the model is too sure, nor those of the test.
        targets: true classes ``[...]``, the shape of `prediction.classes`; per label zeros and ones ``[..., C]``.
    """
    _check_held_out(prediction, targets)
    logits = prediction._logits(torch.float64)
    if not prediction.per_label:
        logits -= logits.amax(-1, keepdim=True)  # so that no pass over the data below has to guard its exp
    targets = targets.to(logits.device)

    def log_likelihood(z: Tensor) -> Tensor:  # [...] of one pass
        if prediction.per_label:
            return torch.nn.functional.logsigmoid(torch.where(targets.bool(), z, -z))
        return z.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1) - z.exp().sum(-1).log()

    def nll(log_t: float) -> float:
        log_p = torch.stack([log_likelihood(one / math.exp(log_t)) for one in logits])
        return -float((log_p.logsumexp(0) - math.log(len(log_p))).mean())

    ends = math.log(LEAST_TEMPERATURE), math.log(MOST_TEMPERATURE)
    grid = torch.linspace(*ends, 17, dtype=torch.float64).tolist()
    best = min(grid, key=nll)
    step = grid[1] - grid[0]
    best = min(best, _golden_section(nll, max(ends[0], best - step), min(ends[1], best + step)), key=nll)
    return math.exp(best) if nll(best) < nll(0.0) - 1e-12 else 1.0


def _golden_section(f: Callable[[float], float], low: float, high: float, width: float = 1e-6) -> float:
    """Where f is least in [low, high], if it falls and then rises there."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = f(left), f(right)
    while high - low > width:
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = f(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = f(right)
    return (low + high) / 2


def _check_held_out(prediction: Prediction, targets: Tensor) -> None:
    samples = prediction.samples
    shape = samples.shape[1:] if prediction.per_label else samples.shape[1:-1]
    if not isinstance(targets, Tensor) or targets.shape != shape or targets.numel() == 0:
        raise ValueError(f"fit_temperature: targets must have shape {tuple(shape)}, got {described(targets)}")
    if not bool(((samples >= 0) & (samples <= 1 + 1e-3)).all()):
        raise ValueError("fit_temperature: the prediction has values that are no probabilities; look for NaN in it")
    top = 1 if prediction.per_label else samples.shape[-1] - 1
    wrong = (targets < 0) | (targets > top) | (targets != targets.long())
    if bool(wrong.any()):
        raise ValueError(f"fit_temperature: targets must be whole numbers 0 ... {top}, got {targets[wrong][0].item()}")
