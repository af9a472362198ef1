"""Putting a method on a model."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..curvature.likelihood import Likelihood
from ..curvature.likelihood import likelihood as find_likelihood
from ..nn.masked import drawing, posteriors, put_on, rerouted_around, take_off, weight_of
from ..nn.noise import KeyedNoise, Noise, TorchNoise
from ..nn.posterior import NodeMask, Posterior, Sampling
from ..topology import Topology, find_topology, maskable_layers
from .attached import Attached, attached_to
from .distributed import RankNoise, is_sharded, processes, rank
from .method import Method, Parts


def attach(
    model: nn.Module,
    method: Method,
    *,
    examples: float,
    steps: int | None = None,
    likelihood: str | Likelihood = "softmax",
    readers: Mapping[str, Sequence[str]] | None = None,
    seeds: int | Sequence[int] | None = None,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    trainable_only: bool = False,
    example: Any = None,
    together: bool = True,
) -> Attached:
    """Put a method on the linear layers of a model; the training loop stays yours.

    The model keeps its parameters and `state_dict` keys. In training mode every pass is drawn from the posterior; in
    eval mode the model is its expected network.

    Layers are `nn.Linear`, the Conv1D of `transformers`, an `nn.Conv2d` whose kernel is as large as its stride, and the
    projections of `nn.MultiheadAttention`, whose packed input projection is called ``in_proj``. Who reads whom is known
    for our `ViT` and plain stacks; any other model is run once, in eval mode, and watched.

    Args:
        model: our `ViT` or any module with linear layers.
        method: `Ising`, `DropConnect` or `Dropout`.
        examples: N, how many examples the training set has (terms of the likelihood: tokens, for a language model).
        steps: how many training steps are planned, for a warm-up and a ramp given as shares, as they are by default.
        likelihood: what the outputs mean: ``softmax``, ``binary``, ``multilabel``, ``gaussian`` or an object of your
            own. Used by the extra-pass curvatures and by `predict`.
        readers: who reads whom, instead of finding it: the layers that read each layer's nodes.
        seeds: a noise stream of its own, one seed a replica of a stacked model. None: torch's default generator; for a
            stacked model, seeds drawn from it; for one of several processes, keys drawn from it and the rank. Seeds
            that all processes share give all the same masks.
        include: names of the layers that carry masks, ``*`` for anything, one pattern or several; None: all of them.
        exclude: names to leave out of those, likewise.
        trainable_only: leave out layers whose weight does not require gradients, such as a frozen base.
        example: inputs to watch the model on, where a guess of what it takes does not fit: a tensor, a tuple of
            arguments, or a mapping of named ones, examples on the first axis.
        together: where `torch.distributed` has several processes, they train one model: `step()` adds up their
            curvature at a refresh, so that all have the same q. False: this process's model is its own.

    Returns:
        The handle with `kl`, `step`, `drop_probability`, `detach` and the rest.
    """
    model = getattr(model, "_orig_mod", model)
    examples = _plain(examples)
    _check(model, method, examples, steps)
    kind = find_likelihood(likelihood)
    topology = find_topology(
        model, readers, example=example, include=include, exclude=exclude, trainable_only=trainable_only
    )
    return attach_as(
        model, method, topology, examples=examples, steps=steps, likelihood=kind, readers=readers, seeds=seeds,
        together=together,
    )  # fmt: skip


def _check(model: nn.Module, method: Method, examples: float, steps: int | None) -> None:
    if not isinstance(method, Method):
        raise TypeError(f"attach: expected a method such as Ising(delta=0.1), got {type(method).__name__}")
    if not math.isfinite(examples) or examples <= 0:
        raise ValueError(f"attach: examples must be the number of training examples, above 0, got {examples}")
    if steps is not None and steps <= 0:
        raise ValueError(f"attach: steps must be the number of training steps, above 0, or None, got {steps}")
    if attached_to(model) is not None or posteriors(model):
        raise ValueError(f"attach: this {type(model).__name__} already carries a method; call its detach() first")
    sharded = [name for name, parameter in model.named_parameters() if is_sharded(parameter)]
    if sharded:
        raise ValueError(
            f"attach: {sharded[0]!r} is sharded over processes (fully_shard) already; attach first, then "
            "fully_shard(model), then method.shard()"
        )
    method.check_plan(steps)


def _plain(examples: float) -> float:
    """A number of Python's own, which can be saved: it may be one of numpy, or a tensor."""
    number = float(examples)
    return int(number) if number.is_integer() else number


def attach_as(
    model: nn.Module,
    method: Method,
    topology: Topology,
    *,
    examples: float,
    steps: int | None,
    likelihood: Likelihood,
    readers: Mapping[str, Sequence[str]] | None,
    seeds: int | Sequence[int] | None,
    together: bool = True,
) -> Attached:
    """Put a method on a model whose topology is known; the other arguments are those of `attach`."""
    method = method.settled(examples)
    every = maskable_layers(model)
    layers = {name: every[name] for name in topology.layers}
    noise = _noise(next(iter(layers.values())), seeds, together)
    parts = Parts(model, layers, {}, {}, topology, likelihood)
    for number, (name, layer) in enumerate(layers.items()):
        weight = weight_of(layer)
        parts.posteriors[name] = Posterior(
            weight, noise_sd=method.noise_sd(weight.shape[-1]), sampling=method.sampling, noise=noise, layer=number,
            tied=method.node_dropout(name, topology), node_rate=method.shared_rate(weight.shape[-1]),
            by_example=method.by_example, own_variance=method.own_variance,
        )  # fmt: skip
    rate = method.embedding_drop()
    if rate is not None:
        for number, name in enumerate(topology.embeddings, start=len(layers)):
            parts.node_masks[name] = _node_mask(parts, name, rate, method.sampling, noise, number)
    worn: list[nn.Module] = []
    try:
        for name, posterior in parts.posteriors.items():
            put_on(layers[name], posterior, rerouted_around(model, name), topology.example_axes.get(name, 0))
            worn.append(layers[name])
        for name, mask in parts.node_masks.items():
            put_on(model.get_submodule(name), mask)
            worn.append(model.get_submodule(name))
        attached = Attached(parts, method, examples=examples, steps=steps, noise=noise, readers=readers)
        attached.rule.together = together
        return attached
    except BaseException:
        for layer in worn:
            take_off(layer)
        raise


def _node_mask(parts: Parts, name: str, rate: float, sampling: Sampling, noise: Noise, number: int) -> NodeMask:
    """The mask of the nodes that pass through an embedding module, ``[*R, width]``."""
    like = parts.model.get_parameter(parts.topology.embeddings[name][-1])
    replicas = like.shape[: weight_of(next(iter(parts.layers.values()))).dim() - 2]
    dtype = torch.promote_types(like.dtype, torch.float32)
    q = torch.full((*replicas, like.shape[-1]), rate, dtype=dtype, device=like.device)
    return NodeMask(q, sampling=sampling, noise=noise, layer=number)


def _noise(layer: nn.Module, seeds: int | Sequence[int] | None, together: bool) -> Noise:
    weight = weight_of(layer)
    replicas = weight.shape[0] if weight.dim() == 3 else None
    if seeds is None and together and processes() > 1:
        return RankNoise(weight, rank())
    if seeds is None:
        return TorchNoise() if replicas is None else KeyedNoise(torch.randint(2**62, (replicas,)).to(weight.device))
    keys = torch.tensor(seeds, dtype=torch.int64, device=weight.device)
    expected = () if replicas is None else (replicas,)
    if tuple(keys.shape) != expected:
        what = "one int" if replicas is None else f"{replicas} ints, one a replica"
        raise ValueError(f"attach: seeds must be {what}, got {seeds!r}")
    return KeyedNoise(keys)


@contextlib.contextmanager
def sampled(model: nn.Module, sampling: Sampling = "mask") -> Iterator[None]:
    """Inside, every pass of the model is drawn from the posterior, in any mode; undone on leaving, whatever happens.

    The draws come from the noise that the model was attached with: torch's default generator, or its own seeds.

    Args:
        model: an attached model.
        sampling: ``mask``, one network a pass; ``local``, fresh noise for every example and token.
    """
    if attached_to(model) is None:
        raise ValueError(f"sampled: this {type(model).__name__} carries no method; attach one first")
    with drawing(model, sampling):
        yield
