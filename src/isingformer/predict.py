"""T passes of an attached model to a predictive distribution with its uncertainty.

Axes: T passes, then whatever the model returns: ``[*R, N, C]`` probabilities, C last. For ``multilabel`` outputs C is
    the labels, and uncertainties are per label.

    total H[E p] = aleatoric E H[p] + epistemic I(y; W, xi)
    epistemic    = architecture I(y; xi) + weights E I(y; W | xi)            on request, by nested sampling
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .methods import Attached, attached_to
from .methods.measure import model_outputs
from .nn.masked import drawing, in_eval_mode, node_masks, posteriors
from .nn.noise import KeyedNoise
from .nn.posterior import Sampling

DEFAULT_MEMORY = 1 << 30
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.05, 20.0


@dataclass(frozen=True)
class Prediction:
    """The predictive distribution of T passes. Every field is a tensor; entropies are in nats."""

    samples: Tensor
    """Probabilities of each pass, ``[T, ..., C]``; with weight draws, pass t has architecture t // weight_draws."""
    weight_draws: int = 1
    """How many passes share an architecture."""
    per_label: bool = False
    """Whether C counts labels, each yes or no, instead of classes that exclude each other."""

    @property
    def probs(self) -> Tensor:
        """The predictive distribution: the mean over passes, ``[..., C]``."""
        return self.samples.mean(0)

    @property
    def classes(self) -> Tensor:
        """The most probable class, ``[...]``."""
        if self.per_label:
            raise ValueError("classes: multilabel outputs have no single class; threshold probs instead")
        return self.probs.argmax(-1)

    @property
    def entropy(self) -> Tensor:
        """Total uncertainty, H of the mean, ``[...]`` (per label ``[..., C]``)."""
        return self._entropy(self.probs)

    @property
    def aleatoric(self) -> Tensor:
        """The mean entropy of the passes: what stays when the network is known."""
        return self._entropy(self.samples).mean(0)

    @property
    def epistemic(self) -> Tensor:
        """Mutual information between label and network: entropy - aleatoric."""
        return (self.entropy - self.aleatoric).clamp_min(0)

    @property
    def architecture(self) -> Tensor:
        """I(y; xi), the part of `epistemic` that is about which connections exist."""
        return (self.entropy - self._entropy(self._by_architecture()).mean(0)).clamp_min(0)

    @property
    def weights(self) -> Tensor:
        """E I(y; W | xi), the part of `epistemic` that is about the weights of a given architecture."""
        return (self._entropy(self._by_architecture()).mean(0) - self.aleatoric).clamp_min(0)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Central credible interval of every probability over the passes: (low, high), each ``[..., C]``."""
        if not 0 < level < 1:
            raise ValueError(f"interval: level must be in (0, 1), got {level}")
        # torch.quantile would do, but refuses more than 2^24 numbers.
        ordered, last = self.samples.sort(0).values, len(self.samples) - 1
        low, high = (last * (1 - level) / 2, last * (1 + level) / 2)
        return _between(ordered, low), _between(ordered, high)

    def tempered(self, temperature: float) -> Prediction:
        """The same passes with their logits divided by a temperature: above 1 less sure, below 1 surer.

            p^(1/T) / sum over classes of p^(1/T),        per label  odds^(1/T) / (1 + odds^(1/T)),        T temperature

        Every pass is tempered by itself, so the intervals and the split of the uncertainty follow. A probability that
        is stored as exactly 0 (in float32 a logit 103 below the highest, or 87 on some devices) has lost its logit and
        counts as the smallest positive number its dtype can hold; so does 1 - p per label, whose smallest is 6e-8.
        """
        if not (temperature > 0 and math.isfinite(temperature)):
            raise ValueError(f"tempered: temperature must be positive and finite, got {temperature}")
        if temperature == 1:
            return self  # exactly, and zeros stay zeros
        logits = self._logits(torch.promote_types(self.samples.dtype, torch.float32)) / temperature
        samples = logits.sigmoid() if self.per_label else logits.softmax(-1)
        return dataclasses.replace(self, samples=samples.to(self.samples.dtype))

    def to(self, device: torch.device | str) -> Prediction:
        """The same on another device."""
        return dataclasses.replace(self, samples=self.samples.to(device))

    def _by_architecture(self) -> Tensor:
        if self.weight_draws < 2:
            raise ValueError(
                "the split into architecture and weights needs nested sampling: predict(..., weight_draws=5)"
            )
        return self.samples.unflatten(0, (-1, self.weight_draws)).mean(1)

    def _logits(self, dtype: torch.dtype) -> Tensor:
        """log p, per label log(p / (1 - p)), ``[T, ..., C]``; finite whatever p is."""
        finfo = torch.finfo(self.samples.dtype)
        probs = self.samples.to(dtype)
        log_p = probs.log().clamp_min(math.log(finfo.tiny) + math.log(finfo.eps))  # their product, the least above 0
        if not self.per_label:
            return log_p
        return log_p - (-probs).log1p().clamp_min(math.log(finfo.eps / 2))  # the step of the dtype just below 1

    def _entropy(self, probs: Tensor) -> Tensor:
        if self.per_label:
            return torch.special.entr(probs) + torch.special.entr(1 - probs)
        return torch.special.entr(probs).sum(-1)


@torch.no_grad()
def predict(
    model: nn.Module,
    x: Any,
    *,
    samples: int = 50,
    weight_draws: int = 1,
    sampling: Sampling = "mask",
    batch_size: int | None = None,
    memory: int = DEFAULT_MEMORY,
    generator: torch.Generator | None = None,
) -> Prediction:
    """The predictive distribution of an attached model, from T passes that each draw a network anew.

    All inputs of a call see the same T networks, however they are cut into chunks. The model's mode does not matter and
    is left as it was; other stochastic modules (an `nn.Dropout`) are off.

    Args:
        model: an attached model.
        x: inputs ``[N, ...]``, as the model takes them.
        samples: T.
        weight_draws: draw that many weights under each of T / weight_draws masks, so that `epistemic` can be split into
            `architecture` and `weights`; must divide T.
        sampling: ``mask``, or ``local`` to draw fresh noise for every example and token (not draws of a network).
        batch_size: inputs a chunk; None: as many as `memory` allows.
        memory: bytes that a chunk's activations may take together.
        generator: where the seed of the T networks comes from; None: torch's default generator.

    Raises:
        RuntimeError: the T passes came out identical though the method is stochastic, so some layer ignores its
            posterior.
    """
    method = attached_to(model)
    if method is None:
        raise ValueError(
            f"predict: this {type(model).__name__} carries no method; attach one first, or load a saved model"
        )
    if samples < 1 or weight_draws < 1 or samples % weight_draws:
        raise ValueError(f"predict: samples={samples} must be a positive multiple of weight_draws={weight_draws}")
    if not isinstance(x, Tensor) or x.dim() == 0 or len(x) == 0:
        raise ValueError(f"predict: x must be a tensor with at least one input, got {_described(x)}")
    noise = _streams(method, generator)
    drawn = _stochastic(model)  # else one pass is all of them
    axis = _batch_axis(method, x)
    with in_eval_mode(model), drawing(model, sampling, noise):
        if batch_size is None:
            batch_size = max(1, memory // max(1, activation_bytes(model, x.narrow(axis, 0, 1))))
        chunks = x.split(batch_size, dim=axis)
        passes: list[Tensor] = []
        for t in range(samples):
            if passes and not drawn:
                passes.append(passes[0])
                continue
            noise.set(masks=t // weight_draws, weights=t)
            passes.append(torch.cat([model_outputs(model(chunk)) for chunk in chunks], dim=_replica_axes(method)))
    outputs = torch.stack(passes)
    _check_passes_differ(outputs, model, sampling)
    kind = method.parts.likelihood
    return Prediction(kind.probabilities(outputs), weight_draws, per_label=kind.name == "multilabel")


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
        raise ValueError(f"fit_temperature: targets must have shape {tuple(shape)}, got {_described(targets)}")
    if not bool(((samples >= 0) & (samples <= 1 + 1e-3)).all()):
        raise ValueError("fit_temperature: the prediction has values that are no probabilities; look for NaN in it")
    top = 1 if prediction.per_label else samples.shape[-1] - 1
    wrong = (targets < 0) | (targets > top) | (targets != targets.long())
    if bool(wrong.any()):
        raise ValueError(f"fit_temperature: targets must be whole numbers 0 ... {top}, got {targets[wrong][0].item()}")


def activation_bytes(model: nn.Module, one: Tensor) -> int:
    """An upper bound for what one input's activations take: the outputs of all layers, as if all were kept at once."""
    total = 0

    def count(module: nn.Module, args: Any, output: Any) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            total += output.numel() * output.element_size()

    hooks = [module.register_forward_hook(count) for module in model.modules()]
    try:
        model(one)
    finally:
        for hook in hooks:
            hook.remove()
    return total


def _streams(method: Attached, generator: torch.Generator | None) -> KeyedNoise:
    """One noise stream a replica, on the model's device."""
    q = next(iter(method.parts.posteriors.values())).drop
    device = "cpu" if generator is None else generator.device
    return KeyedNoise(torch.randint(2**62, q.shape[:-2], generator=generator, device=device).to(q.device))


def _replica_axes(method: Attached) -> int:
    return next(iter(method.parts.posteriors.values())).drop.dim() - 2


def _batch_axis(method: Attached, x: Tensor) -> int:
    """Where the examples are: after the replicas, unless all replicas share the inputs."""
    return x.dim() - 4 if _replica_axes(method) else 0


def _check_passes_differ(outputs: Tensor, model: nn.Module, sampling: str) -> None:
    if len(outputs) < 2 or bool((outputs[1:] != outputs[:1]).any()):
        return
    if _stochastic(model):
        raise RuntimeError(
            f"predict: {len(outputs)} passes with {sampling!r} sampling gave identical outputs although the posterior "
            "is not a point: the model computes around its masked layers (a fused attention path, a cached result)"
        )


def _stochastic(model: nn.Module) -> bool:
    weights, nodes = posteriors(model).values(), node_masks(model).values()
    return any(part.stochastic() for part in weights) or any(mask.stochastic() for mask in nodes)


def _between(ordered: Tensor, place: float) -> Tensor:
    """The value at a place between two rows of a sorted tensor, linearly."""
    below = min(int(place), len(ordered) - 1)
    return torch.lerp(ordered[below], ordered[min(below + 1, len(ordered) - 1)], place - below)


def _described(x: Any) -> str:
    return f"a tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
