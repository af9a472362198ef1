"""Labels: which nodes of which layers an entry of a tensor carries.

A node is a row of a layer. An entry's label names

    direct   the nodes whose value it is, up to activations, norms and sums: reading the entry is reading them
    mixed    the nodes that act on it through attention: queries and keys, by their head
    lost     the layers some of whose nodes reach it by a way that is not understood

Labels are numbered, and a tensor's labels are an integer tensor in its shape, of size 1 on axes along which they do not
change. Number 0 is the empty label.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Label(NamedTuple):
    """What an entry carries."""

    direct: frozenset[int] = frozenset()
    mixed: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()


class Labels:
    """The labels of one trace by number, and what operations make of them.

    Args:
        layer_of: the layer's number for every node.
    """

    def __init__(self, layer_of: list[int]) -> None:
        self.layer_of = layer_of
        self.read: set[int] = set()  # nodes whose readers are known: nothing more is asked of them
        self.known = [Label()]
        self.numbers = {Label(): 0}

    def number(self, label: Label) -> int:
        """The number of a label, old or new."""
        if label not in self.numbers:
            self.numbers[label] = len(self.known)
            self.known.append(label)
        return self.numbers[label]

    def fresh(self, first: int, count: int) -> Tensor:
        """Labels of the nodes first, first + 1 and so on, ``[count]``."""
        return torch.tensor([self.number(Label(frozenset([node]))) for node in range(first, first + count)])

    def merge(self, parts: list[Tensor]) -> Tensor:
        """Labels of a sum or product of tensors with these labels, whose shapes broadcast."""
        total = parts[0]
        for part in parts[1:]:
            total, part = torch.broadcast_tensors(total, part)
            codes, where = torch.unique(total * len(self.known) + part, return_inverse=True)
            pairs = [divmod(code, len(self.known)) for code in codes.tolist()]
            total = torch.tensor([self._union([one, other]) for one, other in pairs])[where]
        return total

    def _union(self, numbers: list[int]) -> int:
        found = [self.known[number] for number in set(numbers) if number]
        if len(found) < 2:
            return max(numbers)
        direct, mixed, lost = (frozenset().union(*sets) for sets in zip(*found, strict=True))
        return self.number(Label(direct - self.read, mixed - self.read, lost))

    def along(self, labels: Tensor, axis: int) -> Tensor | None:
        """The one label of every line along an axis, which stays with size 1; None where lines have several."""
        one = labels.amax(axis, keepdim=True)
        return one if bool(((labels == 0) | (labels == one)).all()) else None

    def mixed_along(self, labels: Tensor, axis: int) -> Tensor:
        """All nodes of every line along an axis, as mixed; the axis stays with size 1."""
        moved = labels.movedim(axis, -1)
        rows, which = torch.unique(moved.flatten(0, -2), dim=0, return_inverse=True)
        numbers = torch.tensor([self._as_mixed(row) for row in rows.tolist()])
        return numbers[which].view(moved.shape[:-1]).unsqueeze(axis)

    def _as_mixed(self, numbers: list[int]) -> int:
        found = [self.known[number] for number in set(numbers)]
        nodes = frozenset().union(*(label.direct | label.mixed for label in found)) - self.read
        return self.number(Label(mixed=nodes, lost=frozenset().union(*(label.lost for label in found))))

    def lost(self, parts: list[Tensor]) -> Tensor:
        """The one label of whatever was made of tensors with these labels in a way that is not understood."""
        found = [self.known[number] for part in parts for number in torch.unique(part).tolist()]
        layers = {self.layer_of[node] for label in found for node in (label.direct | label.mixed) - self.read}
        return torch.tensor(self.number(Label(lost=frozenset(layers).union(*(label.lost for label in found)))))


def squeezed(labels: Tensor) -> Tensor:
    """The same labels, of size 1 on axes along which they do not change."""
    for axis in range(labels.dim()):
        first = labels.narrow(axis, 0, 1)
        if labels.shape[axis] > 1 and bool((labels == first).all()):
            labels = first
    return labels
