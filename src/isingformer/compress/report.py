"""Before and after, side by side: what a network costs and what it scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..curvature.likelihood import Likelihood
from ..curvature.likelihood import likelihood as find_likelihood
from ..methods import attached_to
from ..metrics import accuracy, ece, nll
from ..nn.masked import in_eval_mode
from ..predict import predict
from ..predict.passes import wide
from .compact import CompactNorm
from .constants import norm_names
from .latency import latency_ms
from .remove import expected_state
from .shape import count_macs, count_weights
from .sparse import plain_copy
from .translate import ours

CHUNK = 512


@dataclass(frozen=True)
class Standing:
    """One network: what it costs, and what it scores on images."""

    weights: int
    parameters: int
    """All trained numbers: the weights, biases, norms, class token and positions."""
    macs: int
    passes: int
    """Passes a prediction takes: 1 for a deterministic network."""
    accuracy: float
    nll: float
    ece: float
    latency_ms: float | None = None
    """Median time of one pass of the expected network; None: not measured."""


@dataclass(frozen=True)
class CompressionReport:
    """A network before and after compression; prints as a table."""

    before: Standing
    after: Standing
    images: int
    norms: dict[str, tuple[float, float]]
    """By norm, how far its standard deviation is from the one before: (without compensation, as it is); see
    `norm_changes`. Empty where no residual channel was removed."""
    latency_batch: int | None = None
    """Images a timed pass; None: nothing was timed."""

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        norms = {name: list(pair) for name, pair in self.norms.items()}
        return {
            "before": vars(self.before), "after": vars(self.after), "images": self.images, "norms": norms,
            "latency_batch": self.latency_batch,
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{'':<16} {'before':>12} {'after':>12} {'':>8}"]
        for name in ("weights", "parameters", "macs", "passes"):
            one, other = getattr(self.before, name), getattr(self.after, name)
            title = "multiply-adds" if name == "macs" else name
            lines.append(f"{title:<16} {one:>12,} {other:>12,} {other / one:>8.1%}")
        was, now = self.before.latency_ms, self.after.latency_ms
        if was is not None and now is not None:
            title = f"ms, {self.latency_batch} image{'' if self.latency_batch == 1 else 's'}"
            lines.append(f"{title:<16} {was:>12.3g} {now:>12.3g} {now / was:>8.1%}")
        for name in ("accuracy", "nll", "ece"):
            one, other = getattr(self.before, name), getattr(self.after, name)
            lines.append(f"{name:<16} {one:>12.4f} {other:>12.4f} {other - one:>+8.4f}")
        lines.append(f"on {self.images} images")
        if self.norms:
            plain, mended = (sum(pair[i] for pair in self.norms.values()) / len(self.norms) for i in (0, 1))
            lines.append(f"norms' sd off by {mended:.1%} on average ({plain:.1%} without compensation)")
        return "\n".join(lines)


def compression_report(
    before: nn.Module, after: nn.Module, images: Tensor, labels: Tensor, *, samples: int = 50, seed: int = 0,
    likelihood: str | Likelihood | None = None, latency_batch: int | None = None,
) -> CompressionReport:  # fmt: skip
    """What two networks cost and score on the same images.

    Args:
        before: usually the full model with its method.
        after: what `compress` gave, with a method or without.
        images: ``[N, C, H, W]`` as both read them.
        labels: ``[N]``.
        samples: passes of a network with a method, each drawn anew; one without is passed once.
        seed: of the drawn networks.
        likelihood: what the outputs of a network without a method mean; None: what those of `before` mean, ``softmax``
            where that has no method either.
        latency_batch: time a pass of so many images too, of the expected network where there is a posterior.
    """
    if images.dim() != 4 or labels.shape != images.shape[:1] or not len(images):
        raise ValueError(
            f"compression_report: images have shape {list(images.shape)} and labels {list(labels.shape)}; expected "
            "[N, C, H, W] and [N], with N above 0"
        )
    given = [sum(parameter.numel() for parameter in model.parameters()) for model in (before, after)]
    before, after = ours(before), ours(after)  # which has biases of zeros where theirs has none
    handle = attached_to(before)
    kind = likelihood or (handle.parts.likelihood if handle is not None else "softmax")
    standings = [
        _standing(model, images, labels, samples, seed, kind, parameters)
        for model, parameters in zip((before, after), given, strict=True)
    ]
    if latency_batch is not None:
        times = [latency_ms(_deterministic(model), batch=latency_batch) for model in (before, after)]
        standings = [dataclasses.replace(one, latency_ms=ms) for one, ms in zip(standings, times, strict=True)]
    norms = norm_changes(before, after, images) if any(isinstance(m, CompactNorm) for m in after.modules()) else {}
    return CompressionReport(standings[0], standings[1], len(images), norms, latency_batch)


def _deterministic(model: nn.Module) -> nn.Module:
    handle = attached_to(model)
    return model if handle is None else plain_copy(handle.model, expected_state(handle))


def _standing(
    model: nn.Module, x: Tensor, y: Tensor, samples: int, seed: int, kind: str | Likelihood, parameters: int
) -> Standing:  # fmt: skip
    if attached_to(model) is None:
        passes, probs = 1, class_probabilities(model, x, kind)
    else:
        passes = samples
        probs = predict(model, x, samples=samples, generator=torch.Generator().manual_seed(seed)).probs
    return Standing(
        count_weights(model), parameters, count_macs(model), passes,
        accuracy(probs, y), nll(probs, y), ece(probs, y),
    )  # fmt: skip


@torch.no_grad()
def class_probabilities(model: nn.Module, images: Tensor, likelihood: str | Likelihood = "softmax") -> Tensor:
    """What a network says in one pass in eval mode, ``[N, classes]``; as in `predict`, float32 at least."""
    kind = find_likelihood(likelihood)
    with in_eval_mode(model):
        return torch.cat([kind.probabilities(wide(model(chunk))) for chunk in images.split(CHUNK)])


@torch.no_grad()
def norm_changes(before: nn.Module, after: nn.Module, images: Tensor) -> dict[str, tuple[float, float]]:
    """By how much removed residual channels move the norms' standard deviations, by norm.

        mean over images and tokens of |sd after / sd before - 1|

    with sd after once over the channels that are left alone, as a layer norm would have it, and once as `CompactNorm`
    computes it. What the norms read has changed too, so neither is 0 where anything before them was removed. The first
    512 images are looked at.

    Args:
        before: the network with all channels.
        after: the network without.
        images: ``[N, C, H, W]``.
    """
    names = [name for name in norm_names(after) if name in norm_names(before)]
    old, new = _norm_inputs(before, images, names), _norm_inputs(after, images, names)
    found = {}
    for name in names:
        tokens = new[name].shape[1]  # fewer than before where only those are read
        norm, was = after.get_submodule(name), _sd(before.get_submodule(name), old[name][:, :tokens])
        plain = new[name].var(-1, correction=0, keepdim=True).sqrt()
        changes = [(sd / was - 1).abs().mean() for sd in (plain, _sd(norm, new[name]))]
        found[name] = (float(changes[0]), float(changes[1]))
    return found


def _sd(norm: nn.Module, x: Tensor) -> Tensor:
    if isinstance(norm, CompactNorm):
        return norm.statistics(x)[1].sqrt()
    return x.var(-1, correction=0, keepdim=True).sqrt()


def _norm_inputs(model: nn.Module, images: Tensor, names: list[str]) -> dict[str, Tensor]:
    seen: dict[str, Tensor] = {}

    def hook_for(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda module, args: seen.update({name: args[0]})

    hooks = [model.get_submodule(name).register_forward_pre_hook(hook_for(name)) for name in names]
    try:
        with in_eval_mode(model):
            model(images[:CHUNK])
    finally:
        for hook in hooks:
            hook.remove()
    return {name: x if x.dim() > 2 else x.unsqueeze(1) for name, x in seen.items()}  # the class token alone
