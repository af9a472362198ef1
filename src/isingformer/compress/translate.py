"""A vision transformer of another library as a network of ours: the same function, with the posterior it has.

Its classes cannot hold uneven widths, so what `compress` makes of it is a `CompactViT`. The way there is a `CompactViT`
of all its widths, and from then on everything is as for our own. Query, key and value layers become one, row by row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..methods import attached_to
from ..methods.measure import model_outputs
from ..nn.layers import weight_of
from ..nn.masked import in_eval_mode
from ..topology import maskable_layers
from .carry import carry
from .compact import CompactViT, empty_compact, freeze
from .foreign import Foreign, read_foreign, refuse
from .selection import Selection

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}
"""How far two passes may be apart, in units of the largest output; in half precision 0.1."""


def ours(model: nn.Module) -> nn.Module:
    """The model itself, or where it is a known one of another library, a `CompactViT` that computes the same.

    The copy has the same method with the same q, noise and curvature attached, and is in the same mode.

    Raises:
        ValueError: it has something that a `CompactViT` has not, or layers that its method left out.
    """
    found = read_foreign(getattr(model, "_orig_mod", model))
    return model if found is None else _translated(getattr(model, "_orig_mod", model), found)


@torch.no_grad()
def _translated(model: nn.Module, found: Foreign) -> CompactViT:
    handle = attached_to(model)
    layers = maskable_layers(model) if handle is None else handle.parts.layers
    for names in found.layers.values():
        for name in names:
            if name not in layers:
                raise ValueError(
                    f"{name} carries no mask, since attach left it out, and all layers are ranked together; attach to "
                    "all of them"
                )
    first = weight_of(layers[found.layers["head"][0]])
    compact = empty_compact(found.shape, first)
    frozen = [name for name, theirs in found.others.items() if not model.get_parameter(theirs).requires_grad]
    state = {name: model.get_parameter(theirs).detach() for name, theirs in found.others.items()}
    for name, theirs in found.layers.items():
        parts = [layers[own] for own in theirs]
        state[f"{name}.weight"] = torch.cat([weight_of(part).detach() for part in parts])
        state[f"{name}.bias"] = torch.cat([_bias(part) for part in parts])
        for own in ("weight", "bias"):
            given = [getattr(part, own, None) for part in parts]
            if any(one is not None and not one.requires_grad for one in given):
                frozen.append(f"{name}.{own}")
    compact.load_state_dict(state)
    freeze(compact, frozen)
    compact.__dict__["origin"] = {name: " and ".join(theirs) for name, theirs in found.layers.items()}
    if handle is not None:
        carry(handle, compact, Selection.everything(found.shape), found.layers)
    _check_same(model, compact)
    return compact.train(model.training)


def _bias(layer: nn.Module) -> Tensor:
    bias, weight = getattr(layer, "bias", None), weight_of(layer)
    return weight.new_zeros(len(weight)) if bias is None else bias.detach()


def _check_same(model: nn.Module, compact: CompactViT) -> None:
    """Run both once: a variant that is read wrongly must not be compressed."""
    shape, like = compact.shape, compact.head.weight
    size = (2, shape.channels, shape.image_size, shape.image_size)
    images = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(like)
    with in_eval_mode(model), in_eval_mode(compact):
        before, after = model_outputs(model(images)), compact(images)
    off, scale = float((before - after).abs().max()), float(before.abs().max().clamp_min(1))
    if not off <= TOLERANCE.get(like.dtype, 0.1) * scale:
        raise refuse(model, f"something that is not in its list of layers (outputs are off by {off:.2g}),")
