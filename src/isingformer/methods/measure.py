"""Curvature by an extra pass at the expected network: h of every masked layer, averaged over a batch's examples."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..curvature.hutchinson import hutchinson_diagonal
from ..curvature.likelihood import Likelihood
from ..curvature.lm import lm_diagonal
from ..nn.masked import expected_network, measured_at_expected


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


def measure(
    kind: str,
    model: nn.Module,
    inputs: tuple[tuple[Any, ...], Mapping[str, Any]],
    likelihood: Likelihood,
    *,
    replica_axes: int,
    targets: Tensor | None = None,
) -> tuple[dict[str, Tensor], int]:
    """(h by layer, number of examples) of one batch.

    Args:
        kind: ``lm``, ``mc-fisher`` or ``hutchinson``.
        model: an attached model.
        inputs: the arguments of its forward, positional and by name.
        likelihood: what the outputs mean.
        replica_axes: how many leading axes of the outputs are replicas.
        targets: labels; ``hutchinson`` needs them, the others do not look.
    """
    args, kwargs = inputs

    def outputs_of() -> Tensor:
        return model_outputs(model(*args, **kwargs))

    with torch.enable_grad(), contextlib.ExitStack() as stack:
        if kind == "mc-fisher":
            return _mc_fisher(outputs_of, model, likelihood, replica_axes)
        leaves = stack.enter_context(expected_network(model))
        shape: list[torch.Size] = []
        if kind == "lm":

            def watched() -> Tensor:
                outputs = outputs_of()
                shape.append(outputs.shape)
                return outputs

            h = lm_diagonal(watched, leaves, likelihood, replica_axes=replica_axes)
            return h, shape[0][replica_axes]
        if targets is None:
            raise ValueError("curvature 'hutchinson' needs the labels of the batch: call method.step(targets=y)")

        def loss_of() -> Tensor:
            outputs = outputs_of()
            shape.append(outputs.shape)
            expanded = targets.expand(*outputs.shape[:replica_axes], *targets.shape) if replica_axes else targets
            return likelihood.nll(outputs, expanded).flatten(replica_axes).mean(-1)

        h = hutchinson_diagonal(loss_of, leaves)
        return h, shape[0][replica_axes]


def _mc_fisher(
    outputs_of: Any, model: nn.Module, likelihood: Likelihood, replica_axes: int
) -> tuple[dict[str, Tensor], int]:
    """Squared per-example gradients for labels drawn from the model: an unbiased diagonal Gauss-Newton."""
    with measured_at_expected(model) as parts:
        outputs = outputs_of()
        labels = likelihood.sample(outputs.detach())
        loss = likelihood.nll(outputs, labels).flatten(replica_axes).mean(-1).sum()
        companions = {name: part.companion for name, part in parts.items() if part.companion is not None}
        wanted = [companion.squares for companion in companions.values()]
        sums = torch.autograd.grad(loss, wanted, allow_unused=True)
    examples = outputs.shape[replica_axes]
    h = {
        name: torch.zeros_like(companion.squares) if total is None else total / examples
        for (name, companion), total in zip(companions.items(), sums, strict=True)
    }
    return h, examples
