"""Who reads whom: for every masked layer, the layers whose input columns are the nodes it writes.

Known: our `ViT`, and plain stacks (`nn.Sequential` of linear layers with activations, norms and dropouts between).
    For any other model say it yourself (``readers={"fc1": ["fc2"]}``); a layer about which nothing is known gets no
    neighbours' term.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from .ising import Reading, Wiring, backward_order
from .nn.masked import maskable
from .nn.vit import ViT

_BETWEEN = (
    nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Hardswish, nn.Mish,
    nn.LayerNorm, nn.BatchNorm1d, nn.RMSNorm, nn.Dropout, nn.AlphaDropout, nn.Identity,
)  # fmt: skip
"""Modules that keep node i node i."""


@dataclass(frozen=True)
class Topology:
    """What a method needs to know of a model's structure."""

    layers: tuple[str, ...]
    """The layers that carry masks, in the model's order."""
    wiring: Wiring
    """Who reads each of them; an empty tuple where nobody does or nothing is known."""
    node_layers: tuple[str, ...]
    """The layers whose inputs node dropout masks: in a ViT, those of attention and MLP."""
    embeddings: Mapping[str, tuple[str, ...]]
    """Modules through which the embedded tokens pass, each with the parameters that scale what passes."""


def maskable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The linear layers of a model by name, each once."""
    return {name: module for name, module in model.named_modules() if maskable(module)}


def find_topology(model: nn.Module, readers: Mapping[str, Sequence[str]] | None = None) -> Topology:
    """The topology of a model, as known, found or stated.

    Args:
        model: our ViT, a plain stack, or anything with linear layers.
        readers: for a model of your own, the layers that read each layer's output nodes, in order of nodes. Layers left
            out are read by nobody, like a classifier's head.
    """
    layers = maskable_layers(model)
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no linear layer to mask; expected at least one torch.nn.Linear. "
            "Attach to a model built of linear layers, before any other method replaces them"
        )
    if readers is not None:
        return Topology(tuple(layers), _stated(layers, readers), tuple(layers), {})
    if isinstance(model, ViT):
        return _of_vit(model, tuple(layers))
    wiring = {name: _whole(layers, name, [reader]) if reader else () for name, reader in _of_stack(model, layers)}
    missing = [name for name in layers if name not in wiring]
    if missing:
        warnings.warn(
            f"who reads {', '.join(missing)} in {type(model).__name__} is not known: these layers get no neighbours' "
            "term (coupling has no effect on them). State it with readers={layer: [layers that read it]}",
            stacklevel=3,
        )
    return Topology(tuple(layers), {name: wiring.get(name, ()) for name in layers}, tuple(layers), {})


def _width(layer: nn.Module, which: str) -> int:
    return int(getattr(layer, which))


def _whole(layers: Mapping[str, nn.Module], name: str, readers: Sequence[str]) -> tuple[Reading, ...]:
    """All of a layer's rows read by the columns of the same number."""
    out = _width(layers[name], "out_features")
    for reader in readers:
        if reader not in layers:
            raise ValueError(
                f"readers: {name!r} is said to be read by {reader!r}; the linear layers are {list(layers)}"
            )
        if _width(layers[reader], "in_features") != out:
            raise ValueError(
                f"readers: {name!r} writes {out} nodes but {reader!r} reads {_width(layers[reader], 'in_features')}; "
                "a reader must have one column for every node"
            )
    return (Reading(slice(0, out), tuple(readers), slice(0, out)),) if readers else ()


def _stated(layers: Mapping[str, nn.Module], readers: Mapping[str, Sequence[str]]) -> Wiring:
    unknown = [name for name in readers if name not in layers]
    if unknown:
        raise ValueError(
            f"readers names {unknown}, which are not linear layers of the model; these are: {list(layers)}"
        )
    wiring = {name: _whole(layers, name, list(readers.get(name, ()))) for name in layers}
    backward_order(wiring)
    return wiring


def _of_vit(model: ViT, layers: tuple[str, ...]) -> Topology:
    """Pre-norm blocks, as the table in the docs has it (`docs/method.md`, who reads whom)."""
    width, depth, hidden = model.width, len(model.blocks), model.mlp
    head_size = width // model.heads
    wiring: dict[str, tuple[Reading, ...]] = {}

    def read_by(rows: int, reader: str) -> tuple[Reading, ...]:
        return (Reading(slice(0, rows), (reader,), slice(0, rows)),)

    wiring["embed"] = read_by(width, "blocks.0.attn.qkv" if depth else "head")
    for i in range(depth):
        after = f"blocks.{i + 1}.attn.qkv" if i + 1 < depth else "head"
        at = f"blocks.{i}."
        channels, proj = slice(0, width), (at + "attn.proj",)
        wiring[at + "attn.qkv"] = (
            Reading(slice(0, width), proj, channels, head_size),
            Reading(slice(width, 2 * width), proj, channels, head_size),
            Reading(slice(2 * width, 3 * width), proj, channels),
        )
        wiring[at + "attn.proj"] = read_by(width, at + "mlp.fc1")
        wiring[at + "mlp.fc1"] = read_by(hidden, at + "mlp.fc2")
        wiring[at + "mlp.fc2"] = read_by(width, after)
    wiring["head"] = ()
    inside = tuple(name for name in layers if name.startswith("blocks."))
    return Topology(layers, wiring, inside, {"embedded": ("embed.weight", "embed.bias", "class_token", "position")})


def _leaves(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """A stack's modules in the order they run; a module with a forward of its own counts as one."""
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        yield prefix.removesuffix("."), model
        return
    for name, child in zip(model._modules, model, strict=True):  # named_children() leaves out a module's second place
        yield from _leaves(child, f"{prefix}{name}.")


def _of_stack(model: nn.Module, layers: Mapping[str, nn.Module]) -> Iterator[tuple[str, str | None]]:
    """(layer, its reader) for every layer of a plain stack about which it is known; None for the stack's last."""
    if not isinstance(model, (nn.Sequential, *(type(layer) for layer in layers.values()))):
        return
    last: str | None = None
    for name, module in _leaves(model):
        if name in layers:
            if last is not None and _width(layers[last], "out_features") == _width(module, "in_features"):
                yield last, name
            last = name
        elif not isinstance(module, _BETWEEN):
            last = None
    if last is not None:
        yield last, None
