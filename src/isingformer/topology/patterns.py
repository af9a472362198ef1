"""Structures that are known without running a model: our `ViT`, plain stacks, the inside of `nn.MultiheadAttention`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from ..ising import Reading, Wiring, backward_order
from ..nn.layers import weight_of
from ..nn.multihead import PACKED, SEPARATE
from ..nn.vit import ViT

_BETWEEN = (
    nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Hardswish, nn.Mish,
    nn.LayerNorm, nn.BatchNorm1d, nn.RMSNorm, nn.Dropout, nn.AlphaDropout, nn.Identity,
)  # fmt: skip
"""Modules that keep node i node i."""


def of_vit(model: ViT) -> dict[str, tuple[Reading, ...]]:
    """Pre-norm blocks, as the table in the docs has it (`docs/method.md`, who reads whom)."""
    width, depth, hidden = model.width, len(model.blocks), model.mlp
    wiring: dict[str, tuple[Reading, ...]] = {}

    def read_by(rows: int, reader: str) -> tuple[Reading, ...]:
        return (Reading(slice(0, rows), (reader,), slice(0, rows)),)

    wiring["embed"] = read_by(width, "blocks.0.attn.qkv" if depth else "head")
    for i in range(depth):
        after = f"blocks.{i + 1}.attn.qkv" if i + 1 < depth else "head"
        at = f"blocks.{i}."
        wiring[at + "attn.qkv"] = _attention(width, width // model.heads, at + "attn.proj")
        wiring[at + "attn.proj"] = read_by(width, at + "mlp.fc1")
        wiring[at + "mlp.fc1"] = read_by(hidden, at + "mlp.fc2")
        wiring[at + "mlp.fc2"] = read_by(width, after)
    wiring["head"] = ()
    return wiring


def _attention(width: int, head_size: int, reader: str) -> tuple[Reading, ...]:
    """Stacked query, key and value rows: values by channel, the others by their head's value channels."""
    channels = slice(0, width)
    return (
        Reading(slice(0, width), (reader,), channels, head_size),
        Reading(slice(width, 2 * width), (reader,), channels, head_size),
        Reading(slice(2 * width, 3 * width), (reader,), channels),
    )


def of_attentions(model: nn.Module) -> dict[str, tuple[Reading, ...]]:
    """The input projections of every `nn.MultiheadAttention`, which its output projection reads."""
    wiring: dict[str, tuple[Reading, ...]] = {}
    for name, module in model.named_modules():
        if type(module) is not nn.MultiheadAttention:
            continue
        at = f"{name}." if name else ""
        readings = _attention(module.embed_dim, module.head_dim, at + "out_proj")
        if module._qkv_same_embed_dim:
            wiring[at + PACKED[0]] = readings
        else:
            own = slice(0, module.embed_dim)
            for part, each in zip(SEPARATE, readings, strict=True):
                wiring[at + part] = (Reading(own, each.readers, each.columns, each.head_size),)
    return wiring


def of_stack(model: nn.Module, layers: Mapping[str, nn.Module]) -> dict[str, tuple[Reading, ...]]:
    """The layers of a plain stack (`nn.Sequential` with activations, norms and dropouts) about which it is known."""
    return {
        name: whole(layers, name, [reader]) if reader else () for name, reader in _stack_readers(model, layers)
    }  # fmt: skip


def _leaves(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """A stack's modules in the order they run; a module with a forward of its own counts as one."""
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        yield prefix.removesuffix("."), model
        return
    for name, child in zip(model._modules, model, strict=True):  # named_children() leaves out a module's second place
        yield from _leaves(child, f"{prefix}{name}.")


def _stack_readers(model: nn.Module, layers: Mapping[str, nn.Module]) -> Iterator[tuple[str, str | None]]:
    """(layer, its reader); None for the stack's last."""
    if not isinstance(model, nn.Sequential) and model not in layers.values():
        return
    last: str | None = None
    for name, module in _leaves(model):
        if name in layers and not isinstance(module, nn.Conv2d):
            if last is not None and weight_of(layers[last]).shape[-2] == weight_of(module).shape[-1]:
                yield last, name
            last = name
        elif not isinstance(module, _BETWEEN):
            last = None
    if last is not None:
        yield last, None


def whole(layers: Mapping[str, nn.Module], name: str, readers: Sequence[str]) -> tuple[Reading, ...]:
    """All of a layer's rows read by the columns of the same number."""
    out = weight_of(layers[name]).shape[-2]
    for reader in readers:
        if reader not in layers:
            raise ValueError(
                f"readers: {name!r} is said to be read by {reader!r}; the linear layers are {list(layers)}"
            )
        columns = weight_of(layers[reader]).shape[-1]
        if columns != out:
            raise ValueError(
                f"readers: {name!r} writes {out} nodes but {reader!r} reads {columns}; "
                "a reader must have one column for every node"
            )
    return (Reading(slice(0, out), tuple(readers), slice(0, out)),) if readers else ()


def as_stated(layers: Mapping[str, nn.Module], readers: Mapping[str, Sequence[str]]) -> Wiring:
    """The wiring that a user has written down."""
    unknown = [name for name in readers if name not in layers]
    if unknown:
        raise ValueError(
            f"readers names {unknown}, which are not linear layers of the model; these are: {list(layers)}"
        )
    wiring = {name: whole(layers, name, list(readers.get(name, ()))) for name in layers}
    backward_order(wiring)
    return wiring
