"""Likelihoods: what a model's outputs say about its targets, and how sharply.

Every likelihood answers the same four questions about `outputs`: `nll`, `curvature`, `sample`, `probabilities`.
Choose one by name, `likelihood("softmax")`, or pass an object of your own with these functions.

Axes: ... examples (and replicas, tokens), C classes, K labels or regression outputs.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor


@runtime_checkable
class Likelihood(Protocol):
    """What the curvature estimators ask of a likelihood. A `generator` must live on the device of `outputs`."""

    @property
    def name(self) -> str:
        """The name by which `likelihood` finds it."""

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Negative log likelihood of every example, not reduced: [...]."""

    def curvature(self, outputs: Tensor) -> Tensor:
        """Diagonal of d2 nll / d outputs2, the shape of `outputs`; it does not depend on the targets."""

    def sample(self, outputs: Tensor, generator: Generator | None = None) -> Tensor:
        """Targets drawn from the model's own prediction (None: PyTorch's global generator)."""

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Probabilities of the classes or labels."""


@dataclass(frozen=True)
class Softmax:
    """One of C classes: nll = -log softmax(f)[y]. outputs [..., C], targets integers [...]."""

    name: ClassVar[str] = "softmax"

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """-log p[y], [...]."""
        _check_axes(self.name, outputs, "[..., C]")
        if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
            raise ValueError(f"softmax: targets are {targets.dtype}; expected integer class labels; use targets.long()")
        _check_shape(self.name, targets, outputs.shape[:-1])
        _check_values(self.name, targets, 0, outputs.shape[-1] - 1)
        return -outputs.log_softmax(-1).gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)

    def curvature(self, outputs: Tensor) -> Tensor:
        """The diagonal p (1 - p) of diag(p) - p p', [..., C]."""
        p = self.probabilities(outputs)
        return p * (1 - p)

    def sample(self, outputs: Tensor, generator: Generator | None = None) -> Tensor:
        """Class labels, int64 [...]."""
        p = self.probabilities(outputs.detach())
        return torch.multinomial(p.reshape(-1, p.shape[-1]), 1, generator=generator).view(p.shape[:-1])

    def probabilities(self, outputs: Tensor) -> Tensor:
        """softmax(f), [..., C]."""
        _check_axes(self.name, outputs, "[..., C]")
        return outputs.softmax(-1)


@dataclass(frozen=True)
class Binary:
    """Two classes by a single logit f = log odds of class 1: nll = log(1 + e^f) - y f.

    outputs [..., 1], or [...]: with two axes or more, a last axis of size 1 is the logit's own and not an example's.
    targets 0/1 of any dtype, [...] or the shape of outputs.
    """

    name: ClassVar[str] = "binary"

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """log(1 + e^f) - y f, [...]."""
        f = _logit(outputs)
        if targets.shape == outputs.shape:
            targets = targets.reshape(f.shape)
        _check_shape(self.name, targets, f.shape)
        _check_binary(self.name, targets)
        return F.binary_cross_entropy_with_logits(f, targets.to(f.dtype), reduction="none")

    def curvature(self, outputs: Tensor) -> Tensor:
        """Per logit p (1 - p), the shape of outputs."""
        return outputs.sigmoid() * (-outputs).sigmoid()

    def sample(self, outputs: Tensor, generator: Generator | None = None) -> Tensor:
        """0/1 labels in the dtype of outputs, [...]."""
        return torch.bernoulli(_logit(outputs).detach().sigmoid(), generator=generator)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """(1 - p, p), [..., 2]."""
        f = _logit(outputs)
        return torch.stack([(-f).sigmoid(), f.sigmoid()], dim=-1)


@dataclass(frozen=True)
class Multilabel:
    """K labels, each there or not: nll = sum over k of log(1 + e^f_k) - y_k f_k. outputs, targets (0/1) [..., K]."""

    name: ClassVar[str] = "multilabel"

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Sum over labels of log(1 + e^f) - y f, [...]."""
        _check_axes(self.name, outputs, "[..., K]")
        _check_shape(self.name, targets, outputs.shape)
        _check_binary(self.name, targets)
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype), reduction="none").sum(-1)

    def curvature(self, outputs: Tensor) -> Tensor:
        """Per label p (1 - p), [..., K]."""
        return outputs.sigmoid() * (-outputs).sigmoid()

    def sample(self, outputs: Tensor, generator: Generator | None = None) -> Tensor:
        """0/1 labels in the dtype of outputs, [..., K]."""
        return torch.bernoulli(self.probabilities(outputs.detach()), generator=generator)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Of every label by itself, [..., K]; they do not sum to 1."""
        _check_axes(self.name, outputs, "[..., K]")
        return outputs.sigmoid()


@dataclass(frozen=True)
class Gaussian:
    """Regression: nll = sum over k of (y_k - f_k)^2 / (2 variance) + log(2 pi variance) / 2. outputs, targets [..., K].

    The default variance 1/2 makes the nll the plain squared error plus a constant, and its curvature 2.
    """

    variance: float = 0.5
    name: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.variance) and self.variance > 0):
            raise ValueError(f"gaussian: variance is {self.variance}; expected a positive number; give the noise's own")

    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Sum over outputs of (y - f)^2 / (2 variance) + log(2 pi variance) / 2, [...]."""
        _check_axes(self.name, outputs, "[..., K]")
        _check_shape(self.name, targets, outputs.shape)
        if targets.is_complex() or targets.dtype == torch.bool:
            raise ValueError(f"gaussian: targets are {targets.dtype}; expected real numbers; use targets.float()")
        constant = 0.5 * math.log(2 * math.pi * self.variance)
        return ((targets - outputs).square() / (2 * self.variance) + constant).sum(-1)

    def curvature(self, outputs: Tensor) -> Tensor:
        """1 / variance, [..., K]."""
        return torch.full_like(outputs, 1 / self.variance)

    def sample(self, outputs: Tensor, generator: Generator | None = None) -> Tensor:
        """Targets y ~ N(f, variance), [..., K]."""
        noise = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype, device=outputs.device)
        return outputs.detach() + math.sqrt(self.variance) * noise

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Refused: a regression has no classes."""
        raise ValueError(
            f"gaussian: asked for the probabilities of {_shape(outputs)} outputs; a regression has none; "
            "use its outputs as the mean, or another likelihood"
        )


LIKELIHOODS: dict[str, Likelihood] = {one.name: one for one in (Softmax(), Binary(), Multilabel(), Gaussian())}


def likelihood(name_or_object: str | Likelihood) -> Likelihood:
    """The likelihood called softmax, binary, multilabel or gaussian; an object that already is one comes back."""
    if isinstance(name_or_object, str):
        if name_or_object in LIKELIHOODS:
            return LIKELIHOODS[name_or_object]
    elif isinstance(name_or_object, Likelihood) and not isinstance(name_or_object, type):
        return name_or_object
    raise ValueError(
        f"likelihood is {name_or_object!r}; expected one of {', '.join(LIKELIHOODS)}, or an object with "
        "name, nll, curvature, sample and probabilities"
    )


def _logit(outputs: Tensor) -> Tensor:
    """[..., 1] or [...] to [...]."""
    return outputs.squeeze(-1) if outputs.ndim >= 2 and outputs.shape[-1] == 1 else outputs


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


def _check_axes(name: str, outputs: Tensor, expected: str) -> None:
    if outputs.ndim == 0:
        raise ValueError(f"{name}: outputs are a single number; expected {expected}; keep the last axis")


def _check_shape(name: str, targets: Tensor, expected: torch.Size) -> None:
    # Broadcasting [N, 1] against [N] would give N x N likelihoods without a word.
    if targets.shape != expected:
        raise ValueError(
            f"{name}: targets have shape {_shape(targets)}; expected {list(expected)}, from the outputs; "
            "reshape the targets"
        )


def _check_values(name: str, targets: Tensor, low: int, high: int) -> None:
    # On an accelerator reading the values would stall the queue; there PyTorch's own kernels assert.
    if targets.device.type == "cpu" and targets.numel() and not torch.compiler.is_compiling():
        least, most = targets.min().item(), targets.max().item()
        if least < low or most > high:
            raise ValueError(f"{name}: targets run from {least} to {most}; expected {low} to {high}; check the labels")


def _check_binary(name: str, targets: Tensor) -> None:
    if targets.is_complex():
        raise ValueError(f"{name}: targets are {targets.dtype}; expected 0/1 labels; use real numbers")
    _check_values(name, targets.to(torch.uint8) if targets.dtype == torch.bool else targets, 0, 1)
