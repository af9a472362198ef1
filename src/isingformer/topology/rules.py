"""What each operation does to labels: PyTorch's own core operations, as a dispatch mode sees them.

A rule takes the operation's arguments with labels in place of tensors (None for a tensor that has none) beside the real
ones, and returns labels for its first result, or for each of a list of results. An operation without a rule loses the
nodes that go in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .labels import Labels, squeezed

SAME = frozenset({
    "clone", "_to_copy", "detach", "alias", "contiguous", "lift_fresh", "native_dropout",
    "native_layer_norm", "native_group_norm", "native_batch_norm", "cudnn_batch_norm", "_fused_rms_norm",
    "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "_batch_norm_with_update",
})  # fmt: skip
"""The first result carries what the first argument carries. Norms mix channels, but node i stays node i."""
MOVES = frozenset({
    "cat", "stack", "index", "index_select", "gather", "repeat", "flip", "roll", "_unsafe_view", "constant_pad_nd",
    "tril", "triu",
})  # fmt: skip
"""Besides views: entries are moved, copied or left out. They do to labels what they do to values."""
RESHAPED = frozenset({"view", "_unsafe_view", "_reshape_alias"})
IN_MEMORY = (torch.ops.aten.as_strided.default, torch.ops.aten.view.dtype)
"""Views of the memory and not of the entries, which are not followed."""
ALONG = frozenset({"_softmax", "_log_softmax", "_safe_softmax", "cumsum"})
REDUCTIONS = frozenset({"mean", "sum", "amax", "amin", "logsumexp"})
PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}


def labels_after(
    labels: Labels, operation: Any, args: Sequence[Any], kwargs: dict[str, Any], of: Callable[[Tensor], Tensor | None]
) -> Tensor | list[Tensor] | None:
    """Labels of an operation's first result, or of each of its results where it returns a list; None: no labels.

    Args:
        labels: the trace's labels.
        operation: an overload such as ``torch.ops.aten.add.Tensor``.
        args: what it was called with.
        kwargs: likewise, by name.
        of: the labels of a tensor, or None.
    """
    name = operation.overloadpacket.__name__
    given = [found for found in map(of, _tensors((args, kwargs))) if found is not None]
    if not given or name.endswith("_like") or name.startswith("new_"):
        return None
    if name in SAME:
        return of(args[0])
    if name == "copy_":
        return of(args[1])
    if "scaled_dot_product" in name:
        return _attention(labels, given, [of(part) for part in args[:3]])
    if name in PRODUCTS:
        return _product(labels, *(of(args[at]) for at in PRODUCTS[name]))
    if name in ALONG:
        return given[0] if labels.along(given[0], args[1]) is not None else labels.lost(given)
    if name in REDUCTIONS:
        return _reduction(labels, given[0], args, kwargs)
    if (operation.is_view or name in MOVES) and operation not in IN_MEMORY:
        return _moved(operation, args, kwargs, of)
    if name == "glu":
        axis = args[1] if len(args) > 1 else -1
        return squeezed(labels.merge(list(given[0].expand(args[0].shape).chunk(2, axis))))
    if torch.Tag.pointwise in operation.tags:
        return labels.merge(given)
    return labels.lost(given)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _moved(operation: Any, args: Any, kwargs: Any, of: Callable[[Tensor], Tensor | None]) -> Tensor | list[Tensor]:
    def as_labels(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or of(leaf) is not None):
            return leaf  # an index stays an index
        own = of(leaf)
        return torch.zeros(leaf.shape, dtype=torch.int64) if own is None else own.expand(leaf.shape)

    name = operation.overloadpacket.__name__
    args, kwargs = tree_map(as_labels, (tuple(args), kwargs))
    if name == "constant_pad_nd":
        args = (*args[:2], 0)
    # Labels lie in memory in a way of their own, so that a view of them may need a copy.
    moved = args[0].reshape(args[1]) if name in RESHAPED else operation(*args, **kwargs)
    return squeezed(moved) if isinstance(moved, Tensor) else [squeezed(part) for part in moved]


def _reduction(labels: Labels, given: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> Tensor:
    axes = args[1] if len(args) > 1 else kwargs.get("dim")
    axes = range(given.dim()) if axes is None or axes == [] else [axes] if isinstance(axes, int) else axes
    keep = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    axes = sorted((axis % given.dim() for axis in axes), reverse=True)
    left: Tensor | None = given
    for axis in axes:
        left = None if left is None else labels.along(left, axis)
    if left is None:
        return labels.lost([given])
    for axis in axes if not keep else ():
        left = left.squeeze(axis)
    return left


def _product(labels: Labels, left: Tensor | None, right: Tensor | None) -> Tensor:
    """Labels of A B, ``[..., i, k] [..., k, j]``.

    A factor that is the same along k carries its nodes through: tokens are mixed, not nodes (values, by the weights of
    attention). Two factors that both change along k are scores: what queries and keys say to each other.
    """
    carried = [
        None if factor is None else labels.along(factor, axis) for factor, axis in ((left, -1), (right, -2))
    ]  # fmt: skip
    if left is None or right is None:
        through = carried[0] if right is None else carried[1]
        return through if through is not None else labels.lost([part for part in (left, right) if part is not None])
    if carried[0] is None and carried[1] is None:
        return labels.merge([labels.mixed_along(left, -1), labels.mixed_along(right, -2)])
    if carried[1] is not None:
        through = labels.mixed_along(carried[0], -1) if carried[0] is not None else labels.lost([left])
        return labels.merge([through, carried[1]])
    return labels.merge([labels.lost([right]), *(part for part in carried if part is not None)])


def _attention(labels: Labels, given: list[Tensor], parts: list[Tensor | None]) -> Tensor:
    """Values as they are; queries and keys, ``[N, head, token, channel]``, through their head."""
    query, key, value = parts
    through = None if value is None else labels.along(value, -2)
    if through is None:
        return labels.lost(given)
    scores = [labels.along(part, -2) for part in (query, key) if part is not None]
    mixed = [labels.mixed_along(part, -1) for part in scores if part is not None]
    heads = {part.shape[1] for part in (*mixed, through)} - {1}
    if len(mixed) != len(scores) or len(heads) > 1:
        return labels.lost(given)
    return labels.merge([through, *mixed])
