"""Where a model's layers have their examples, found by comparing a pass of one example with a pass of two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from .trace import Inputs, inside_attention, quiet


@dataclass
class Examples:
    """What is not as usual: usually the first axis of every layer's input counts examples."""

    axes: dict[str, int] = field(default_factory=dict)
    """Layers with another axis, and which."""
    flat: list[str] = field(default_factory=list)
    """Layers whose examples share an axis with their tokens."""
    crossed: list[str] = field(default_factory=list)
    """Attentions whose tokens are the examples."""


def find_examples(model: nn.Module, layers: Mapping[str, nn.Module], one: Inputs, two: Inputs) -> Examples:
    """Where the examples are in the input of every layer and every `nn.MultiheadAttention`.

    Args:
        model: the model.
        layers: its layers by name.
        one: inputs of one example.
        two: inputs of two.
    """
    attentions = {name: m for name, m in model.named_modules() if type(m) is nn.MultiheadAttention}
    watched = {name: layer for name, layer in layers.items() if not inside_attention(layer)} | attentions
    first, second = (_shapes(model, watched, inputs) for inputs in (one, two))
    found = Examples()
    for name in watched:
        pairs = zip(first.get(name, ()), second.get(name, ()), strict=False)
        moved = [(axis, before) for axis, (before, after) in enumerate(pairs) if before != after]
        if not moved:
            continue
        axis, before = moved[0]
        if name in attentions:
            if axis != (0 if attentions[name].batch_first else 1):
                found.crossed.append(name)
        elif before != 1:
            found.flat.append(name)
        elif axis:
            found.axes[name] = axis
    return found


def _shapes(model: nn.Module, watched: Mapping[str, nn.Module], inputs: Inputs) -> dict[str, tuple[int, ...]]:
    """The shape of what each module gets first in a pass."""
    shapes: dict[str, tuple[int, ...]] = {}

    def noting(name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            read = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
            shapes.setdefault(name, tuple(read.shape))

        return note

    hooks = [module.register_forward_pre_hook(noting(name), with_kwargs=True) for name, module in watched.items()]
    try:
        with quiet(model):
            model(*inputs[0], **inputs[1])
    finally:
        for hook in hooks:
            hook.remove()
    return shapes
