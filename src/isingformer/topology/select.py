"""Which layers of a model carry masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn

from ..nn.layers import maskable
from ..nn.multihead import projections


def maskable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The linear maps of a model by name, each once: layers, patch convolutions, the projections of attentions.

    The input projection of an `nn.MultiheadAttention` is no module of the model; it appears as ``in_proj`` of the
    attention (``q_proj``, ``k_proj`` and ``v_proj`` where keys or values have a width of their own).
    """
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if type(module) is nn.MultiheadAttention:
            inside = f"{name}." if name else ""
            found |= {inside + own: layer for own, layer in projections(module).items()}
        elif maskable(module):
            found[name] = module
    return found


def selected_layers(
    model: nn.Module,
    include: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    trainable_only: bool = False,
) -> dict[str, nn.Module]:
    """The layers that are to carry masks, by name.

    Args:
        model: any module.
        include: patterns of names, ``*`` for anything; None: all layers.
        exclude: patterns of names to leave out of those.
        trainable_only: leave out layers whose weight does not require gradients.
    """
    layers = maskable_layers(model)
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no linear layer to mask; expected at least one torch.nn.Linear. "
            "Attach to a model built of linear layers, before any other method replaces them"
        )
    chosen = layers if include is None else _matching(layers, include, "include")
    if exclude is not None:
        out = _matching(layers, exclude, "exclude")
        chosen = {name: layer for name, layer in chosen.items() if name not in out}
    if trainable_only:
        chosen = {name: layer for name, layer in chosen.items() if layer.get_parameter("weight").requires_grad}
    if not chosen:
        asked = f"include={include!r}, exclude={exclude!r}, trainable_only={trainable_only}"
        raise ValueError(f"{asked} leaves no layer to mask; the layers are {', '.join(layers)}")
    return chosen


def _matching(layers: Mapping[str, nn.Module], patterns: str | Sequence[str], what: str) -> dict[str, nn.Module]:
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in layers):
            raise ValueError(f"{what}: no layer matches {pattern!r}; the layers are {', '.join(layers)}")
    return {name: layer for name, layer in layers.items() if any(fnmatchcase(name, each) for each in patterns)}
