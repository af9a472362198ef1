"""Who reads whom, found by running a model once on an example and following every node it writes.

Layers are watched by hooks: what comes in is read, what goes out is labelled anew. Between them a dispatch mode sees
every operation and says what becomes of the labels (`rules.py`). The nodes of a residual stream are read by all later
layers; as the reader counts the first, with all others that read the very same tensor.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..nn.layers import weight_of
from ..nn.masked import in_eval_mode
from ..nn.multihead import PACKED, SEPARATE, Projection
from .labels import Labels
from .rules import labels_after

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Readers:
    """Who reads a layer's rows, as the trace saw it; columns are those of the reader's matrix."""

    direct: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    """Row to (reader, column)."""
    mixed: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    """Row to the (reader, column) on which it acts by attention."""
    lost: bool = False
    """Whether some of it was read by ways that are not understood."""
    called: bool = False
    """Whether the layer ran at all."""


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Where a tensor lies in memory, and how: the same place, the same values."""
    where = tensor.untyped_storage().data_ptr()
    return where, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


class Trace(TorchDispatchMode):
    """Follows the nodes of a model through one pass."""

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.names = list(layers)
        sizes = [weight_of(layer).shape[-2] for layer in layers.values()]
        self.first = dict(zip(layers, itertools.accumulate(sizes, initial=0), strict=False))
        self.labels = Labels([number for number, size in enumerate(sizes) for _ in range(size)])
        self.found = {name: Readers() for name in layers}
        self.paused = 0  # inside a layer, whose own operations are of no interest
        self._of: dict[tuple[Any, ...], Tensor] = {}
        self._alive: list[Tensor] = []  # or another tensor might come to lie in the same place
        self._read_at: dict[int, tuple[Any, ...]] = {}  # node: the tensor in which it was read first

    def of(self, tensor: Tensor) -> Tensor | None:
        """The labels of a tensor."""
        return self._of.get(_place(tensor)) if tensor.layout == torch.strided else None

    def put(self, tensor: Tensor, labels: Tensor) -> None:
        """Give a tensor its labels."""
        labels = labels.view(*(1 for _ in range(tensor.dim() - labels.dim())), *labels.shape)
        self._of[_place(tensor)] = labels
        self._alive.append(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The operation itself, and then what it does to labels."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self.paused:
            return out
        found = labels_after(self.labels, func, args, kwargs, self.of)
        if found is None:
            return out
        results = [out] if isinstance(out, Tensor) else list(out)
        if isinstance(found, Tensor):
            results, found = results[:1], [found]
        for result, its in zip(results, found, strict=True):
            if isinstance(result, Tensor):
                self.put(result, its)
        if func._schema.is_mutable and results[0].numel() * results[0].element_size() < _bytes(results[0]):
            self._lose(found)  # written into a part of a tensor, whose whole is not followed
        return out

    def _lose(self, parts: list[Tensor]) -> None:
        for number in torch.unique(self.labels.lost(parts)).tolist():
            for layer in self.labels.known[number].lost:
                self.found[self.names[layer]].lost = True

    def reads(self, name: str, tensor: Tensor, axis: int = -1, several: bool = False) -> None:
        """A layer reads a tensor, whose axis are the layer's columns (or `several` columns read each entry of it)."""
        self.found[name].called = True
        labels, place = self.of(tensor), _place(tensor)
        if labels is None:
            return
        if several or labels.shape[axis] != tensor.shape[axis]:  # every column reads the same
            return self._lose([labels])
        columns = torch.unique(labels.movedim(axis, 0).flatten(1), dim=1).tolist()
        carried = [[self.labels.known[number] for number in set(column)] for column in columns]
        for kind in ("direct", "mixed"):
            seen = set()
            for column, here in enumerate(carried):
                for node in frozenset().union(*(getattr(label, kind) for label in here)):
                    if self._read_at.setdefault(node, place) == place:
                        layer = self.names[self.labels.layer_of[node]]
                        rows = getattr(self.found[layer], kind)
                        rows.setdefault(node - self.first[layer], []).append((name, column))
                        seen.add(node)
            self.labels.read |= seen
        for layer in {layer for here in carried for label in here for layer in label.lost}:
            self.found[self.names[layer]].lost = True

    def writes(self, name: str, tensor: Tensor, axis: int = -1) -> None:
        """A layer has written a tensor, whose axis are the layer's rows."""
        rows = self.labels.fresh(self.first[name], tensor.shape[axis])
        self.put(tensor, rows.view(-1, *(1 for _ in range(-axis - 1))))


def _bytes(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().nbytes())


def trace(model: nn.Module, layers: Mapping[str, nn.Module], inputs: Inputs) -> dict[str, Readers]:
    """Who reads whom, by layer; whatever the model raises on these inputs is raised here too."""
    watcher = Trace(layers)
    with quiet(model), _watched(model, layers, watcher), watcher:
        model(*inputs[0], **inputs[1])
    return watcher.found


@contextlib.contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Inside, a pass leaves nothing behind and goes through every layer: no fused path, eval mode, no gradients."""
    devices = {p.device for p in model.parameters() if p.device.type == "cuda"}
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.random.fork_rng(devices=list(devices)), torch.no_grad(), in_eval_mode(model):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


@contextlib.contextmanager
def _watched(model: nn.Module, layers: Mapping[str, nn.Module], watcher: Trace) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, layer in layers.items():
            if not inside_attention(layer):
                stack.enter_context(_hooked(layer, _LayerWatch(watcher, name, layer)))
        for name, module in model.named_modules():
            if type(module) is nn.MultiheadAttention and _join(name, "out_proj") in layers:
                stack.enter_context(_hooked(module, _AttentionWatch(watcher, name, module)))
        yield


def _join(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def inside_attention(layer: nn.Module) -> bool:
    """Whether a layer is a projection of an `nn.MultiheadAttention`, which no one calls."""
    return isinstance(layer, (Projection, nn.modules.linear.NonDynamicallyQuantizableLinear))


@contextlib.contextmanager
def _hooked(module: nn.Module, watch: _LayerWatch | _AttentionWatch) -> Iterator[None]:
    before = module.register_forward_pre_hook(watch.before, with_kwargs=True)
    after = module.register_forward_hook(watch.after)
    try:
        yield
    finally:
        before.remove()
        after.remove()


class _LayerWatch:
    """Hooks of one layer."""

    def __init__(self, watcher: Trace, name: str, layer: nn.Module) -> None:
        self.watcher, self.name = watcher, name
        self.axis = -3 if isinstance(layer, nn.Conv2d) else -1
        self.patches = isinstance(layer, nn.Conv2d) and tuple(layer.kernel_size) != (1, 1)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.watcher.paused += 1
        read = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        self.watcher.reads(self.name, read, axis=self.axis, several=self.patches)

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        self.watcher.writes(self.name, output, axis=self.axis)
        self.watcher.paused -= 1


class _AttentionWatch:
    """Hooks of one `nn.MultiheadAttention`, whose inside is known."""

    def __init__(self, watcher: Trace, name: str, attention: nn.MultiheadAttention) -> None:
        self.watcher, self.name = watcher, name
        self.inputs = PACKED * 3 if attention._qkv_same_embed_dim else SEPARATE

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.watcher.paused += 1
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        reads = [(given[kind], own) for kind, own in zip(("query", "key", "value"), self.inputs, strict=True)]
        for read, own in {(id(read), own): (read, own) for read, own in reads}.values():
            self.watcher.reads(_join(self.name, own), read)

    def after(self, module: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        self.watcher.found[_join(self.name, "out_proj")].called = True
        self.watcher.writes(_join(self.name, "out_proj"), output[0])
        self.watcher.paused -= 1
