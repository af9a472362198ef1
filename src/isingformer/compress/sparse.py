"""Zeros instead of smaller matrices: unstructured, and two of every four for GPUs that skip them.

Axes: weights and masks ``[out, in]`` by layer; a mask is True where the weight stays.

    probable     q <= 1/2                    what is more likely kept than dropped
    a share      the best by a score: over all layers (`keep`, `evidence`, `both`, `magnitude`, `taylor`, `random`), or
                 in every row by itself (`wanda`: |w_ij| ||x_j||, ||x_j|| the norm of input j over images and tokens)
    2:4          the best two of every four weights in a row, by the same scores

The weights that stay are those of the expected network, m (1 - q), as in `remove`: a network that was trained with its
weights partly there would be too loud with m alone. `method.detach(weights="probable")` is the other choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from ..methods import Attached
from ..nn.masked import in_eval_mode
from ..nn.vit import ViT
from .checks import check_not_frozen, check_posterior_speaks, checked_handle
from .compact import CompactViT, empty_compact, freeze, frozen_names
from .constants import CHUNK
from .remove import expected_state
from .scores import weight_scores
from .shape import shape_of

SparseScore = Literal["keep", "evidence", "both", "magnitude", "wanda", "taylor", "random"]
Masks = dict[str, Tensor]


def probable_masks(model: nn.Module) -> Masks:
    """True where a weight is at least as likely kept as dropped, q <= 1/2, by layer."""
    handle = checked_handle("sparsify", model)
    check_posterior_speaks("sparsify", handle, "the most probable network")
    return {name: part.drop <= 0.5 for name, part in handle.parts.posteriors.items()}


def share_masks(
    model: nn.Module, share: float, *, score: SparseScore = "both", images: Tensor | None = None,
    labels: Tensor | None = None, generator: torch.Generator | None = None,
) -> Masks:  # fmt: skip
    """True on that share of the weights, the best by a score, by layer.

    Args:
        model: with its method.
        share: of the weights to keep, in (0, 1); at least one stays, for ``wanda`` one a row.
        score: see the top of this file.
        images: ``[N, C, H, W]`` as the model reads them, for ``wanda`` and ``taylor``.
        labels: ``[N]``, for ``taylor``.
        generator: where ``random`` draws from, on the CPU.
    """
    if not 0 < share < 1:
        raise ValueError(f"sparsify: share must be the share of weights to keep, in (0, 1), got {share}")
    worth = _worth(checked_handle("sparsify", model), score, images, labels, generator)
    if score == "wanda":
        return {name: _best(part, max(1, round(share * part.shape[1]))) for name, part in worth.items()}
    flat = torch.cat([part.flatten() for part in worth.values()])
    mask = _best(flat.unsqueeze(0), max(1, round(share * len(flat))))[0]
    parts = mask.split([part.numel() for part in worth.values()])
    return {name: own.view_as(part) for own, (name, part) in zip(parts, worth.items(), strict=True)}


def two_of_four_masks(
    model: nn.Module, *, score: SparseScore = "keep", images: Tensor | None = None, labels: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Masks:  # fmt: skip
    """True on the best two of every four neighbours in a row, by layer; layers whose columns are no fours stay out.

    Args:
        model: with its method.
        score: as `share_masks` takes it, with the other arguments.
        images: likewise.
        labels: likewise.
        generator: likewise.
    """
    worth = _worth(checked_handle("sparsify", model), score, images, labels, generator)
    fours = {name: part.unflatten(1, (-1, 4)) for name, part in worth.items() if part.shape[1] % 4 == 0}
    if not fours:
        raise ValueError("sparsify: 2:4 needs layers with a multiple of 4 inputs, and there is none; choose a share")
    return {name: _best(part.flatten(0, 1), 2).view_as(part).flatten(1) for name, part in fours.items()}


@torch.no_grad()
def sparsify(model: nn.Module, masks: Mapping[str, Tensor]) -> ViT | CompactViT:
    """A plain copy of the expected network with zeros where a mask is False; the model stays as it is.

    Args:
        model: with its method.
        masks: by layer, from one of the functions above; layers that are not named keep all weights.
    """
    handle = checked_handle("sparsify", model)
    model, state = handle.model, expected_state(handle)
    shape = shape_of(model)
    for name, mask in masks.items():
        weight = state.get(f"{name}.weight")
        if name not in handle.parts.posteriors or weight is None or mask.shape != weight.shape:
            raise ValueError(f"sparsify: a mask of shape {list(mask.shape)} for {name!r} fits no layer of this model")
        state[f"{name}.weight"] = weight * mask.to(weight.device)
    check_not_frozen("sparsify", model, shape, shape.nodes())
    return plain_copy(model, state)


@torch.no_grad()
def plain_copy(model: nn.Module, state: Mapping[str, Tensor]) -> ViT | CompactViT:
    """A network of the same class and widths without a method, with other numbers.

    Args:
        model: a `ViT` or `CompactViT`.
        state: its numbers, such as `expected_state`.
    """
    like = model.get_parameter("head.weight")
    if isinstance(model, CompactViT):
        copied: ViT | CompactViT = empty_compact(model.shape, like)
    else:
        assert isinstance(model, ViT)  # `shape_of` takes no other
        with torch.random.fork_rng(devices=[]):
            copied = ViT(**model.config).to(like.device, like.dtype)  # type: ignore[arg-type]
    copied.load_state_dict(state)
    freeze(copied, frozen_names(model))
    return copied.train(model.training)


@torch.no_grad()
def to_semi_structured(model: nn.Module) -> nn.Module:
    """Store every 2:4 weight of a network in place as torch's semi-structured tensors, which a GPU multiplies faster.

    Args:
        model: from `sparsify` with `two_of_four_masks`, without a method, in half precision on a CUDA device.
    """
    layers = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Linear}
    like = next(iter(layers.values())).weight if layers else torch.empty(0)
    if like.device.type != "cuda" or like.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(
            f"to_semi_structured: the weights are {str(like.dtype).removeprefix('torch.')} on {like.device.type}; 2:4 "
            "products exist on CUDA devices alone, in float16 or bfloat16: model.to('cuda', torch.bfloat16)"
        )
    for layer in layers.values():
        if is_two_of_four(layer.weight) and layer.in_features % 64 == 0 and layer.out_features % 32 == 0:
            packed = torch.sparse.to_sparse_semi_structured(layer.weight.detach())
            layer.weight = nn.Parameter(packed, requires_grad=False)
    return model


def is_two_of_four(weight: Tensor) -> bool:
    """Whether at most two of every four neighbours in a row differ from 0."""
    return weight.shape[1] % 4 == 0 and bool(((weight != 0).unflatten(1, (-1, 4)).sum(-1) <= 2).all())


def _best(worth: Tensor, count: int) -> Tensor:
    """True on the `count` largest entries of every row, the first of equals."""
    order = worth.argsort(dim=1, descending=True, stable=True)
    return torch.zeros_like(worth, dtype=torch.bool).scatter_(1, order[:, :count], True)


def _worth(
    handle: Attached, score: str, images: Tensor | None, labels: Tensor | None, generator: torch.Generator | None
) -> dict[str, Tensor]:
    if score == "random":
        parts = handle.parts.posteriors.items()
        return {name: torch.rand(part.drop.shape, generator=generator).to(part.drop.device) for name, part in parts}
    if score != "wanda":
        return weight_scores(handle, score, images=images, labels=labels)
    if images is None:
        raise ValueError("sparsify: score='wanda' needs images to measure the inputs of layers on; give some")
    norms = _input_norms(handle, images)
    means = {name: handle.parts.posteriors[name].expected(handle.parts.mean(name)) for name in norms}
    return {name: means[name].abs() * norms[name] for name in means}


@torch.no_grad()
def _input_norms(handle: Attached, images: Tensor) -> dict[str, Tensor]:
    """||x_j|| of every input of every layer over images and tokens, in eval mode, ``[in]`` by layer."""
    squares: dict[str, Tensor] = {}

    def watch(name: str, layer: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            squares[name] = squares.get(name, torch.zeros(())) + args[0].flatten(0, -2).square().sum(0)

        return layer.register_forward_pre_hook(hook)

    hooks = [watch(name, handle.model.get_submodule(name)) for name in handle.parts.posteriors]
    try:
        with in_eval_mode(handle.model):
            for chunk in images.split(CHUNK):
                handle.model(chunk)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: total.sqrt() for name, total in squares.items()}
