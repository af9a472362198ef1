"""T passes of an attached model, each a network drawn anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..methods import Attached, attached_to
from ..methods.measure import model_outputs
from ..nn.masked import drawing, in_eval_mode, node_masks, posteriors
from ..nn.noise import KeyedNoise
from ..nn.posterior import Sampling
from .prediction import Prediction, described

DEFAULT_MEMORY = 1 << 30


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
    seeds: Sequence[int] | None = None,
) -> Prediction:
    """The predictive distribution of an attached model, from T passes that each draw a network anew.

    All inputs of a call see the same T networks, however they are cut into chunks. The model's mode does not matter and
    is left as it was; other stochastic modules (an `nn.Dropout`) are off.

    Args:
        model: an attached model.
        x: inputs ``[N, ...]``, as the model takes them; or a mapping of named ones, such as a tokeniser returns, all
            with their N examples first.
        samples: T.
        weight_draws: draw that many weights under each of T / weight_draws masks, so that `epistemic` can be split into
            `architecture` and `weights`; must divide T.
        sampling: ``mask``, or ``local`` to draw fresh noise for every example and token (not draws of a network).
        batch_size: inputs a chunk; None: as many as `memory` allows.
        memory: bytes that a chunk's activations may take together.
        generator: where the seed of the T networks comes from; None: torch's default generator.
        seeds: of a stacked model, the seed of each replica's T networks, instead of a generator.

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
    parts = _tensors(x)
    if not parts or any(part.dim() == 0 or len(part) != len(parts[0]) or not len(part) for part in parts):
        raise ValueError(
            f"predict: x must be a tensor with at least one input, got {described(x)}; a mapping of such tensors, of "
            "one length, will do too"
        )
    noise = _streams(method, generator, seeds)
    drawn = _stochastic(model)  # else one pass is all of them
    axis = _batch_axis(method, parts[0])
    with in_eval_mode(model), drawing(model, sampling, noise):
        if batch_size is None:
            batch_size = max(1, memory // max(1, activation_bytes(model, _split(x, 1, axis)[0])))
        chunks = _split(x, batch_size, axis)
        passes: list[Tensor] = []
        for t in range(samples):
            if passes and not drawn:
                passes.append(passes[0])
                continue
            noise.set(masks=t // weight_draws, weights=t)
            passes.append(torch.cat([model_outputs(_run(model, chunk)) for chunk in chunks], dim=_replica_axes(method)))
    _check_passes_differ(passes, model, sampling)
    kind = method.parts.likelihood
    probs = torch.stack([kind.probabilities(wide(outputs)) for outputs in passes])
    return Prediction(probs, weight_draws, per_label=kind.name == "multilabel")


def wide(outputs: Tensor) -> Tensor:
    """float32 at least: epistemic uncertainty is a small difference of entropies, less than a step of bfloat16."""
    return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


def _tensors(x: Any) -> list[Tensor]:
    """The tensors of the inputs; none where they are nothing of that kind."""
    parts = list(x.values()) if isinstance(x, Mapping) else [x]
    return parts if all(isinstance(part, Tensor) for part in parts) else []


def _split(x: Any, size: int, axis: int) -> list[Any]:
    """The inputs in chunks of so many examples."""
    if isinstance(x, Tensor):
        return list(x.split(size, dim=axis))
    pieces = [part.split(size, dim=axis) for part in x.values()]
    return [dict(zip(x, chunk, strict=True)) for chunk in zip(*pieces, strict=True)]


def _run(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def activation_bytes(model: nn.Module, one: Any) -> int:
    """An upper bound for what one input's activations take: the outputs of all layers, as if all were kept at once."""
    total = 0

    def count(module: nn.Module, args: Any, output: Any) -> None:
        nonlocal total
        if isinstance(output, Tensor):
            total += output.numel() * output.element_size()

    hooks = [module.register_forward_hook(count) for module in model.modules()]
    try:
        _run(model, one)
    finally:
        for hook in hooks:
            hook.remove()
    return total


def _streams(method: Attached, generator: torch.Generator | None, seeds: Sequence[int] | None) -> KeyedNoise:
    """One noise stream a replica, on the model's device."""
    q = next(iter(method.parts.posteriors.values())).drop
    if seeds is not None:
        if (len(seeds),) != tuple(q.shape[:-2]):
            raise ValueError(f"predict: seeds must be one a replica, {list(q.shape[:-2])}, got {len(seeds)}")
        return KeyedNoise(torch.tensor(list(seeds), device=q.device))
    device = "cpu" if generator is None else generator.device
    return KeyedNoise(torch.randint(2**62, q.shape[:-2], generator=generator, device=device).to(q.device))


def _replica_axes(method: Attached) -> int:
    return next(iter(method.parts.posteriors.values())).drop.dim() - 2


def _batch_axis(method: Attached, x: Tensor) -> int:
    """Where the examples are: after the replicas, unless all replicas share the inputs."""
    return x.dim() - 4 if _replica_axes(method) else 0


def _check_passes_differ(passes: Sequence[Tensor], model: nn.Module, sampling: str) -> None:
    if len(passes) < 2 or any(bool((outputs != passes[0]).any()) for outputs in passes[1:]):
        return
    if _stochastic(model):
        raise RuntimeError(
            f"predict: {len(passes)} passes with {sampling!r} sampling gave identical outputs although the posterior "
            "is not a point: the model computes around its masked layers (a fused attention path, a cached result)"
        )


def _stochastic(model: nn.Module) -> bool:
    weights, nodes = posteriors(model).values(), node_masks(model).values()
    return any(part.stochastic() for part in weights) or any(mask.stochastic() for mask in nodes)
