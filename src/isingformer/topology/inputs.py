"""Inputs to trace a model with: the user's example, or a guess from what the model is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..nn.layers import is_conv1d
from ..nn.vit import ViT
from .trace import Inputs

_SIZES = (224, 32, 28, 64, 96, 128, 256, 384, 16, 8)
"""Sides of images, the usual ones first."""
_TOKENS = 5


def as_inputs(example: Any) -> Inputs:
    """What a user gave as an example, as arguments: a tensor, a tuple of arguments, or a mapping of named ones."""
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example), {}) if isinstance(example, (tuple, list)) else ((example,), {})


def one_and_two(inputs: Inputs) -> tuple[Inputs, Inputs]:
    """The first example alone, and twice; tensors of another length than the first one's are left as they are."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    examples = len(tensors[0]) if tensors else 0

    def taken(times: int) -> Inputs:
        def take(leaf: Any) -> Any:
            whole = not isinstance(leaf, Tensor) or not leaf.dim() or len(leaf) != examples or not examples
            return leaf if whole else torch.cat([leaf[:1]] * times)

        return tree_map(take, inputs)

    return taken(1), taken(2)


def guesses(model: nn.Module) -> Iterator[Inputs]:
    """Inputs of one example that the model might take, likely ones first."""
    name = getattr(model, "main_input_name", None)  # of a transformers model
    config: Any = getattr(model, "config", None)
    if isinstance(model, ViT) and model.replicas is None:
        yield (_zeros(model, 1, config["channels"], config["image_size"], config["image_size"]),), {}
        return
    if name == "pixel_values":
        side = getattr(config, "image_size", 224)
        height, width = (side, side) if isinstance(side, int) else side
        yield (), {name: _zeros(model, 1, getattr(config, "num_channels", 3), height, width)}
    elif name == "input_ids":
        yield (), {name: torch.ones(1, _TOKENS, dtype=torch.int64, device=_first(model).device)}
    first = next((module for module in model.modules() if _takes_inputs(module)), None)
    if isinstance(first, nn.Embedding):
        yield (torch.zeros(1, _TOKENS, dtype=torch.int64, device=_first(model).device),), {}
    elif isinstance(first, nn.Conv2d):
        stated = [getattr(model, "image_size", None), (getattr(model, "default_cfg", None) or {}).get("input_size")]
        sides = [side if isinstance(side, int) else side[-1] for side in stated if side]
        for side in (*sides, *_SIZES):
            yield (_zeros(model, 1, first.in_channels, side, side),), {}
    elif first is not None:
        width = _width(first)
        yield (_zeros(model, 1, _TOKENS, width),), {}
        yield (_zeros(model, 1, width),), {}


def _takes_inputs(module: nn.Module) -> bool:
    kinds = (nn.Embedding, nn.Linear, nn.Conv2d, nn.MultiheadAttention)
    return isinstance(module, kinds) or is_conv1d(type(module))


def _width(module: nn.Module) -> int:
    if isinstance(module, nn.MultiheadAttention):
        return module.embed_dim
    return int(module.in_features) if isinstance(module, nn.Linear) else int(module.get_parameter("weight").shape[0])


def _first(model: nn.Module) -> Tensor:
    return next(parameter for parameter in model.parameters() if parameter.is_floating_point())


def _zeros(model: nn.Module, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=_first(model).dtype, device=_first(model).device)
