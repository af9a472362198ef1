"""A posterior for a model that is trained already: curvature over a loader, one sweep, and no weight touched.

With h the mean over all of the loader's examples, measured where the model stands (nothing dropped, no noise),

    q = sigmoid(coupling * (neighbours - delta) + pull of the evidence + logit(delta))

as in training. The base rate and the evidence weight can be chosen by the likelihood of data held out from both:

    log p(y | x) = log of the mean over passes t of exp(-nll_t),  summed over the validation examples.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..curvature.likelihood import Likelihood
from ..curvature.linear import mean_of_squares
from ..nn.masked import drawing, in_eval_mode, measured_at_expected
from ..nn.noise import KeyedNoise
from .attach import attach, attach_as
from .attached import Attached
from .ising import Ising
from .ising_rule import RIDERS, IsingRule
from .measure import measure, model_outputs

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def fit_posterior(
    model: nn.Module,
    loader: Iterable[Any],
    method: Ising,
    *,
    examples: float | None = None,
    validation: Iterable[Any] | None = None,
    deltas: Sequence[float] | None = None,
    evidence_weights: Sequence[float] | None = None,
    samples: int = 20,
    likelihood: str | Likelihood = "softmax",
    readers: Mapping[str, Sequence[str]] | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    trainable_only: bool = False,
    example: Any = None,
) -> Attached:
    """Give a trained model its q; its weights stay as they are, and it can be predicted with at once.

    A model that fits its training labels has small gradients on them: ``curvature="mc-fisher"``, which draws labels
    from the model itself, says more about such a model than the default ``fisher``.

    Args:
        model: a trained model without a method.
        loader: batches of training data: ``(inputs, targets)``, or a mapping with ``labels`` besides the model's named
            inputs. On the model's device. It is gone through once.
        method: `Ising(...)`; it has no warm-up and no ramp here, and ``curvature="expand"`` is measured as ``fisher``.
        examples: N; None: as many terms of the likelihood as the loader gives, tokens of a language model.
        validation: batches that were held out, to choose by.
        deltas: base rates to choose from; None: the method's.
        evidence_weights: evidence weights to choose from; None: the method's.
        samples: how many networks are drawn for each choice, the same noise for all of them.
        likelihood: as for `attach`, and so are the others.
        readers: who reads whom.
        include: which layers carry masks.
        exclude: which do not.
        trainable_only: only those whose weight requires gradients.
        example: inputs to watch the model on.

    Returns:
        The handle, as `attach` gives it; what was chosen is in its ``method``.
    """
    if not isinstance(method, Ising):
        raise TypeError(f"fit_posterior: expected Ising(...), which learns its q, got {type(method).__name__}")
    choices = _choices(method, deltas, evidence_weights)
    if len(choices) > 1 and validation is None:
        raise ValueError(f"fit_posterior: {len(choices)} settings to choose from but no validation data; give a loader")
    if samples < 1:
        raise ValueError(f"fit_posterior: samples must be 1 or more, got {samples}")
    held_out = list(validation or ())
    if len(choices) > 1 and not held_out:
        raise ValueError(
            "fit_posterior: validation gave no batches to choose by; give some, or an iterator not yet used"
        )
    handle = attach(
        model, choices[0], examples=1 if examples is None else examples, likelihood=likelihood, readers=readers,
        include=include, exclude=exclude, trainable_only=trainable_only, example=example,
    )  # fmt: skip
    try:
        terms = _measure_all(handle, method, loader)
        number, state = terms if examples is None else examples, handle.state_dict()
        scores = []
        for choice in choices if len(choices) > 1 else ():
            handle = _again(handle, choice, state, number)
            scores.append(_log_likelihood(handle, held_out, samples))
        best = choices[max(range(len(scores)), key=scores.__getitem__)] if scores else choices[0]
        return _again(handle, best, state, number)
    except BaseException:
        if handle.attached:
            handle.detach()
        raise


def _choices(method: Ising, deltas: Sequence[float] | None, weights: Sequence[float] | None) -> list[Ising]:
    for name, given in (("deltas", deltas), ("evidence_weights", weights)):
        if given is not None and not given:
            raise ValueError(f"fit_posterior: {name} is empty; expected at least one value, or None for the method's")
    if weights and method.contrast:
        raise ValueError("fit_posterior: contrast takes the place of evidence_weights; leave one of them out")
    rates: Sequence[Any] = deltas or [method.delta]
    strengths: Sequence[Any] = weights or [method.evidence_weight]
    pairs = itertools.product(rates, strengths)
    fixed = dataclasses.replace(method, warmup=0, ramp=0, learn_delta=0.0)  # it is these that are chosen from
    return [dataclasses.replace(fixed, delta=delta, evidence_weight=weight) for delta, weight in pairs]


def _split(batch: Any) -> tuple[Inputs, Tensor]:
    """(the model's arguments, the targets) of a batch."""
    if isinstance(batch, Mapping):
        if "labels" not in batch:
            raise ValueError(f"fit_posterior: a batch has {', '.join(batch)}; expected labels among them")
        return ((), {name: value for name, value in batch.items() if name != "labels"}), batch["labels"]
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise ValueError(f"fit_posterior: expected batches (inputs, targets) or mappings, got {type(batch).__name__}")
    inputs, targets = batch
    return (((), dict(inputs)) if isinstance(inputs, Mapping) else ((inputs,), {})), targets


def _rule(handle: Attached) -> IsingRule:
    assert isinstance(handle.rule, IsingRule)
    return handle.rule


def _measure_all(handle: Attached, method: Ising, loader: Iterable[Any]) -> int:
    """Take in the curvature of all batches as one fold, at the network as it is trained; how many terms they have."""
    for part in handle.parts.posteriors.values():
        part.drop.zero_()
    total, h = 0, dict[str, Tensor]()
    for inputs, targets in map(_split, loader):
        if method.evidence == "none":
            terms = len(targets)
        elif method.curvature in RIDERS:
            h, terms = _fisher(handle.model, inputs, targets, handle.parts.likelihood)
        else:
            h, terms = measure(
                method.curvature, handle.model, inputs, handle.parts.likelihood, replica_axes=0, targets=targets
            )
        for name, value in h.items():
            if not bool(value.isfinite().all()):
                raise FloatingPointError(
                    f"fit_posterior: the curvature of {name!r} is NaN or infinite; look at the data and the weights"
                )
            _rule(handle).average.add(name, value, terms)
        total += terms
    if not total:
        raise ValueError("fit_posterior: the loader gave no examples; give one that does, not an iterator already used")
    _rule(handle).average.fold()
    return total


def _fisher(model: nn.Module, inputs: Inputs, targets: Tensor, kind: Likelihood) -> tuple[dict[str, Tensor], int]:
    """(mean squared gradients by layer, number of terms) for the labels as they are."""
    with torch.enable_grad(), measured_at_expected(model) as parts:
        nll = kind.nll(model_outputs(model(*inputs[0], **inputs[1])), targets)
        companions = {name: part.companion for name, part in parts.items() if part.companion is not None}
        filled = torch.autograd.grad(nll.mean(), list(companions.values()), allow_unused=True, materialize_grads=True)
    squares, terms = zip(companions, filled, strict=True), nll.numel()
    return {name: mean_of_squares(each, parts[name].drop.shape, terms) for name, each in squares}, terms


def _again(handle: Attached, method: Ising, state: Mapping[str, Tensor], examples: float) -> Attached:
    """The same model with other settings and the curvature that was measured, swept."""
    parts, readers = handle.parts, handle.readers
    handle.detach()
    fresh = attach_as(
        parts.model, method, parts.topology, examples=examples, steps=None, likelihood=parts.likelihood,
        readers=readers, seeds=None,
    )  # fmt: skip
    fresh.load_state_dict(state)
    _rule(fresh).sweep()
    return fresh


@torch.no_grad()
def _log_likelihood(handle: Attached, batches: list[Any], samples: int) -> float:
    """The predictive log likelihood of all batches, by networks whose noise is the same at every call."""
    q = next(iter(handle.parts.posteriors.values())).drop
    noise = KeyedNoise(torch.zeros((), dtype=torch.int64, device=q.device))
    total = 0.0
    with in_eval_mode(handle.model), drawing(handle.model, "mask", noise):
        for inputs, targets in map(_split, batches):
            nll = torch.stack(list(_passes(handle, noise, inputs, targets, samples)))  # [T, ...]
            total += float((torch.logsumexp(-nll, 0) - math.log(samples)).sum())
    return total


def _passes(handle: Attached, noise: KeyedNoise, inputs: Inputs, targets: Tensor, samples: int) -> Iterator[Tensor]:
    for t in range(samples):
        noise.set(masks=t, weights=t)
        yield handle.parts.likelihood.nll(model_outputs(handle.model(*inputs[0], **inputs[1])), targets)
