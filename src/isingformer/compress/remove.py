"""Taking nodes out of a network for good: smaller matrices, constants folded into biases.

Axes: a weight is ``[out, in]``; a kept layer is its kept rows and columns, and its bias

    b + W[:, gone] constant[gone]

with the constants of `constants.py`. An attention or MLP of which nothing is left gives its bias to every token. No one
reads the residual stream between it and the last layer that wrote there, so its bias is added to that one's, or to the
positions where there is none: the same, for no call at all. Where masks are drawn on the positions, as `Dropout` with
its posterior does, the bias stays by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..methods import Attached
from ..nn.masked import node_masks
from .carry import carry
from .checks import checked_handle
from .compact import CompactNorm, CompactViT, empty_compact, freeze, frozen_names
from .constants import Constants, masked_constants, measured_constants, norm_names
from .selection import Selection
from .shape import RESIDUAL, Shape, shape_of

_EMBEDDINGS = ("embed.weight", "embed.bias", "class_token", "position")


@torch.no_grad()
def remove(
    model: nn.Module, selection: Selection, *, images: Tensor | None = None, bayesian: bool = False
) -> CompactViT:
    """A network of the selected nodes alone; the model stays as it is.

    Without images it equals, in eval mode and to float precision, the model with the weights of all removed nodes
    masked (q = 1): the incoming weights of hidden units, value channels and query-key channels, and all weights that
    write or read a residual channel.

    Args:
        model: a `ViT`, or a `CompactViT`, with its method.
        selection: which nodes stay.
        images: put the nodes' means over these images in their place, instead of what the masks leave; see
            `constants.py`.
        bayesian: keep the posterior of what remains: m as its mean, q, the prior and the noise, with the same method
            attached. False: a deterministic network of the expected weights m (1 - q), the network of eval mode.

    Returns:
        The network, in the mode that the model is in. What is frozen in the model (requires_grad=False) is so in it.
    """
    handle = checked_handle("remove", model)
    model = handle.model
    if selection.shape != shape_of(model):
        raise ValueError("remove: the selection was made for a network of another shape; make one for this model")
    expected, means = expected_state(handle), dict(model.state_dict())
    names = norm_names(model)
    if images is None:
        constants = masked_constants(expected, selection, names)
    else:
        constants = measured_constants(model, images, selection, names)
    folded = not (bayesian and handle.parts.node_masks)
    left = dataclasses.replace(selection.result(), folded=folded)
    compact = empty_compact(left, model.get_parameter("head.weight"))
    state = _layers(expected, means if bayesian else expected, selection, constants)
    state |= _stream(means if bayesian else expected, selection, set(compact.state_dict()))
    state |= _gone(model, compact, constants, selection)
    if folded:
        _fold(state, left)
    compact.load_state_dict(state)
    freeze(compact, frozen_names(model))
    if bayesian:
        carry(handle, compact, selection)
    return compact.train(model.training)


def expected_state(handle: Attached) -> dict[str, Tensor]:
    """The tensors of the expected network under the names of the model's: W = m (1 - q), embeddings scaled."""
    state = {name: tensor.detach().clone() for name, tensor in handle.model.state_dict().items()}
    for name, part in handle.parts.posteriors.items():
        state[f"{name}.weight"] = part.expected(state[f"{name}.weight"])
    for mask in node_masks(handle.model).values():
        kept = (1 - mask.drop).to(state["position"].dtype)  # [D]
        for name in _EMBEDDINGS:
            state[name] = state[name] * (kept.unsqueeze(-1) if name == "embed.weight" else kept)
    return state


def _layers(
    expected: Mapping[str, Tensor], stored: Mapping[str, Tensor], selection: Selection, constants: Constants
) -> dict[str, Tensor]:
    """Weights and biases of what stays of the linear layers, by name."""
    left, found = selection.result().layers(), {}
    for layer in selection.shape.wiring():
        weight, bias = stored[f"{layer}.weight"], stored[f"{layer}.bias"]
        rows, columns = selection.rows(layer).to(weight.device), selection.columns(layer).to(weight.device)
        if layer in constants.reads:
            gone = constants.reads[layer].to(weight.dtype) * ~columns
            bias = bias + expected[f"{layer}.weight"] @ gone
        if layer in left:
            found[f"{layer}.weight"], found[f"{layer}.bias"] = weight[rows][:, columns], bias[rows]
        elif layer.endswith(("proj", "fc2")):  # nothing is left to read: a constant
            found[f"{layer.rpartition('.')[0]}.bias"] = bias[rows]
    return found


def _stream(stored: Mapping[str, Tensor], selection: Selection, wanted: set[str]) -> dict[str, Tensor]:
    """Whatever is laid along the residual stream: class token, positions, norms, constants of before."""
    kept, inside = selection.keep[RESIDUAL].to(stored["position"].device), set(selection.shape.wiring())
    found = {}
    constants = {f"blocks.{i}.{name}.bias" for i in range(len(selection.shape.blocks)) for name in ("attn", "mlp")}
    for name in (wanted | constants) & set(stored):
        if name.rpartition(".")[0] not in inside and "gone_" not in name:
            found[name] = stored[name][..., kept]
    return found


def _fold(state: dict[str, Tensor], shape: Shape) -> None:
    """Add what attentions and MLPs that are gone give to the bias of whatever wrote before them."""
    before = "position"
    for i in range(len(shape.blocks)):
        for name, last in (("attn", "proj"), ("mlp", "fc2")):
            layer = f"blocks.{i}.{name}.{last}"
            if layer in shape.wiring():
                before = f"{layer}.bias"
            elif f"blocks.{i}.{name}.bias" in state:
                state[before] = state[before] + state.pop(f"blocks.{i}.{name}.bias")


def _gone(model: nn.Module, compact: CompactViT, constants: Constants, selection: Selection) -> dict[str, Tensor]:
    """The statistics of all channels that the norms miss: those removed now, and those removed before."""
    found = {}
    for name, norm in compact.named_modules():
        if not isinstance(norm, CompactNorm):
            continue
        before, tokens = model.get_submodule(name), len(norm.gone_mean)  # a `ViT` has more where one is read
        parts = [(before.gone_mean[:tokens], before.gone_var[:tokens])] if isinstance(before, CompactNorm) else []
        counts = [selection.shape.full_width - selection.shape.width] if parts else []
        if name in constants.norms:
            parts.append((constants.norms[name][0][:tokens], constants.norms[name][1][:tokens]))
            counts.append(selection.shape.width - compact.shape.width)
        share = [count / sum(counts) for count in counts]
        mean = sum((s * part[0] for s, part in zip(share, parts, strict=True)), torch.zeros_like(parts[0][0]))
        var = sum(
            (s * (part[1] + (part[0] - mean).square()) for s, part in zip(share, parts, strict=True)),
            torch.zeros_like(mean),
        )
        found[f"{name}.gone_mean"], found[f"{name}.gone_var"] = mean, var
    return found
