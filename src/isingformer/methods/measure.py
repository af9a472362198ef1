"""Curvature by an extra pass at the expected network: h of every masked layer, averaged over a batch's examples."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..curvature.hutchinson import hutchinson_diagonal
from ..curvature.likelihood import Likelihood
from ..curvature.linear import mean_of_squares
from ..curvature.lm import lm_diagonal
from ..nn.masked import expected_network, measured_at_expected
from ..nn.noise import KeyedNoise
from ..nn.posterior import Posterior


def model_outputs(result: Any) -> Tensor:
    """The logits in what a model returns: a tensor, an object with `.logits`, or a sequence that begins with one."""
    if isinstance(result, Tensor):
        return result
    logits = getattr(result, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(result, (tuple, list)) and result and isinstance(result[0], Tensor):
        return result[0]
    raise TypeError(f"expected the model to return a tensor, or something with .logits, got {type(result).__name__}")


def call_to_repeat(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with which an extra pass repeats a training pass.

    It wants outputs, not the loss that a model makes of its labels where it is given some; and it runs in the precision
    of the weights, which inputs in half of it met by autocast.
    """
    takes = inspect.signature(model.forward).parameters.get("labels")
    optional = takes is not None and takes.default is None
    like = next(model.parameters())

    def in_full(value: Any) -> Any:
        halved = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
        return value.to(like.dtype) if halved and torch.is_autocast_enabled(like.device.type) else value

    named = {name: in_full(value) for name, value in kwargs.items() if not (optional and name == "labels")}
    return tuple(map(in_full, args)), named


def measure(
    kind: str,
    model: nn.Module,
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]],
    likelihood: Likelihood,
    *,
    replica_axes: int,
    targets: Tensor | None = None,
) -> tuple[dict[str, Tensor], int]:
    """(h by layer, averaged over the terms of the likelihood; number of terms) of one batch.

    A term is an example, or a token where the model has outputs for every token.

    Args:
        kind: ``lm``, ``mc-fisher`` or ``hutchinson``.
        model: an attached model.
        inputs: the arguments of its forward, positional and by name.
        likelihood: what the outputs mean.
        replica_axes: how many leading axes of the outputs are replicas.
        targets: labels; ``hutchinson`` needs them, the others do not look.
    """
    args, kwargs = inputs
    terms: list[int] = []

    def outputs_of() -> Tensor:
        return model_outputs(model(*args, **kwargs))

    def mean_nll(outputs: Tensor, labels: Tensor) -> Tensor:
        nll = likelihood.nll(outputs, labels).flatten(replica_axes)
        terms.append(nll.shape[-1])
        return nll.mean(-1)

    with torch.enable_grad(), _uncompiled(model):
        if kind == "mc-fisher":
            return _mc_fisher(outputs_of, mean_nll, model, likelihood, replica_axes, terms)
        with expected_network(model) as leaves:
            if kind == "lm":

                def counted() -> Tensor:
                    outputs = outputs_of()
                    terms.append(_terms(likelihood, tuple(outputs.shape[replica_axes:])))
                    return outputs

                h = lm_diagonal(counted, leaves, likelihood, replica_axes=replica_axes, examples=1)
                return {name: value / terms[0] for name, value in h.items()}, terms[0]
            if targets is None:
                raise ValueError("curvature 'hutchinson' needs the labels of the batch: call method.step(targets=y)")

            def loss_of() -> Tensor:
                outputs = outputs_of()
                return mean_nll(outputs, targets.expand(*outputs.shape[:replica_axes], *targets.shape))

            return hutchinson_diagonal(loss_of, leaves), terms[0]


def _terms(likelihood: Likelihood, shape: tuple[int, ...]) -> int:
    """How many terms the likelihood of outputs of this shape has: tried out on zeros, away from any GPU."""
    outputs = torch.zeros(shape)
    return likelihood.nll(outputs, likelihood.sample(outputs, torch.Generator().manual_seed(0))).numel()


def _uncompiled(model: nn.Module) -> contextlib.AbstractContextManager[object]:
    """Inside, compiled parts of a model run as they were written: these passes look inside, and are rare."""
    compiled = any(module._compiled_call_impl is not None for module in model.modules())
    return torch.compiler.set_stance("force_eager") if compiled else contextlib.nullcontext()


def _mc_fisher(
    outputs_of: Callable[[], Tensor],
    mean_nll: Callable[[Tensor, Tensor], Tensor],
    model: nn.Module,
    likelihood: Likelihood,
    replica_axes: int,
    terms: list[int],
) -> tuple[dict[str, Tensor], int]:
    """Squared per-example gradients for labels drawn from the model: an unbiased diagonal Gauss-Newton."""
    with measured_at_expected(model) as parts:
        outputs = outputs_of()
        loss = mean_nll(outputs, _drawn_labels(outputs.detach(), likelihood, parts, replica_axes)).sum()
        companions = {name: part.companion for name, part in parts.items() if part.companion is not None}
        filled = torch.autograd.grad(loss, list(companions.values()), allow_unused=True, materialize_grads=True)
    h = {
        name: mean_of_squares(sums, parts[name].drop.shape, terms[0])
        for name, sums in zip(companions, filled, strict=True)
    }
    return h, terms[0]


def _drawn_labels(outputs: Tensor, likelihood: Likelihood, parts: Mapping[str, Posterior], replica_axes: int) -> Tensor:
    """Labels from the model's own prediction; each replica's from its own stream, whoever else is in the stack."""
    noise = next(iter(parts.values())).noise
    if not replica_axes or not isinstance(noise, KeyedNoise):
        return likelihood.sample(outputs)
    generator = torch.Generator(outputs.device)
    keys = noise.mask_key.tolist()
    return torch.stack(
        [likelihood.sample(own, generator.manual_seed(key)) for own, key in zip(outputs, keys, strict=True)]
    )


def check_finite(h: Mapping[str, Tensor], curvature: str) -> None:
    """Raise where a measured h is NaN or infinite, on a CPU.

    A GPU would have to be waited for: there what is not finite stays NaN, as does the loss, which whoever trains looks
    at.
    """
    for name, value in h.items():
        if value.device.type == "cpu" and not bool(value.sum().isfinite()):
            raise FloatingPointError(
                f"curvature {curvature!r} of layer {name!r} is NaN or infinite; q is as it was. Look at the learning "
                "rate, the inputs and the loss"
            )
