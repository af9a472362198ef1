"""The evidence of whole nodes: what the log-likelihood loses when a node becomes a constant.

Summed over its weights, the evidence of a node leaves out how they act together. Here a gate z multiplies what varies
of the node, c + z (x - c), c its mean over images, and the gate gets the evidence that a weight gets (m = 1):

    N h / 2,    h = mean over images n of sum over classes y of p(y | n) (d log p(y | n) / dz)^2
    d log p / dz = sum over tokens t of (x[n, t] - c) d log p / dx[n, t]

at the expected network, with the expectation over labels taken exactly, one backward pass a class. Nodes are gated
where layers read them, residual channels everywhere at once; query-key channels by their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..methods import Attached
from ..nn.masked import in_eval_mode
from ..predict.passes import wide
from .selection import Node
from .shape import Shape

OF_CLASSES = ("softmax", "binary")
"""Likelihoods whose labels can be summed over."""
IMAGES, CHUNK = 1024, 128
"""How many images are looked at, at most, and how many at once."""


@dataclass(frozen=True)
class Gates:
    """What the log-likelihood loses when gates close."""

    alone: Mapping[str, Tensor]
    """N h / 2 of every node's own gate, float64 ``[nodes]`` by kind."""
    pairs: Mapping[str, Tensor]
    """For the channels of attention, of which several close together, of every pair of them, ``[nodes, nodes]``."""

    def together(self, nodes: Sequence[Node]) -> float:
        """N h / 2 of one gate on several nodes; what is between nodes of different kinds is left out.

        Where all go that a head passes on, its queries and keys have nothing left to say, so that they do not count.
        """
        kinds: dict[str, list[int]] = {}
        for kind, number in nodes:
            kinds.setdefault(kind, []).append(number)
        total = 0.0
        for kind, numbers in kinds.items():
            if kind.endswith(".qk") and kind.removesuffix("qk") + "value" in kinds:
                continue
            pairs = self.pairs.get(kind)
            own = self.alone[kind][numbers] if pairs is None else pairs[numbers][:, numbers]
            total += float(own.sum())
        return total


def gate_evidence(handle: Attached, shape: Shape, images: Tensor) -> Gates:
    """N h / 2 of every gate.

    Args:
        handle: on the model; its likelihood must be over classes.
        shape: of the model.
        images: ``[N, C, H, W]`` as the model reads them; the first 1,024 count.
    """
    kind = handle.parts.likelihood
    if kind.name not in OF_CLASSES:
        raise ValueError(f"compress: score='gate' sums over classes, and {kind.name!r} has none; use score='both'")
    images = images[:IMAGES]
    alone = {name: torch.zeros(size, dtype=torch.float64) for name, size in shape.nodes().items()}
    pairs = {
        name: torch.zeros(size, size, dtype=torch.float64)
        for name, size in shape.nodes().items()
        if name.endswith((".qk", ".value"))
    }
    with _Watched(handle.model, shape) as watched, in_eval_mode(handle.model):
        centres = watched.means(images)
        for chunk in images.split(CHUNK):
            with torch.enable_grad():
                outputs = wide(handle.model(chunk))
                probs = kind.probabilities(outputs.detach())  # [B, classes]
                for y in range(probs.shape[-1]):
                    nll = kind.nll(outputs, torch.full((len(chunk),), y, device=chunk.device)).sum()
                    grads = torch.autograd.grad(nll, list(watched.seen.values()), retain_graph=y + 1 < probs.shape[-1])
                    slopes: dict[str, Tensor] = {}
                    for (node, x), grad in zip(watched.seen.items(), grads, strict=True):
                        slope = ((x.detach() - centres[node]) * grad).flatten(1, -2).sum(1)  # [B, nodes]
                        slopes[node[0]] = slopes.get(node[0], 0) + slope
                    for name, slope in slopes.items():
                        weighted = slope.double() * probs[:, y, None].double().sqrt()
                        alone[name] += weighted.square().sum(0).cpu()
                        if name in pairs:
                            pairs[name] += (weighted.T @ weighted).cpu()
    scale = 0.5 * handle.examples / len(images)
    return Gates(
        {name: scale * total for name, total in alone.items()}, {name: scale * total for name, total in pairs.items()}
    )


class _Watched:
    """Inside, `seen` holds what the nodes were in the last pass, ``[B, T, nodes]``, by (kind, layer)."""

    def __init__(self, model: nn.Module, shape: Shape) -> None:
        self.model, self.shape = model, shape.compact()
        self.seen: dict[tuple[str, str], Tensor] = {}

    def __enter__(self) -> _Watched:
        self.hooks = []
        for layer, (rows, columns) in self.shape.wiring().items():
            module = self.model.get_submodule(layer)
            if layer.endswith("qkv"):
                self.hooks.append(module.register_forward_hook(self._written(layer, rows)))
            if columns:
                self.hooks.append(module.register_forward_pre_hook(self._read(layer, columns)))
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self.hooks:
            hook.remove()
        self.seen.clear()

    @torch.no_grad()
    def means(self, images: Tensor) -> dict[tuple[str, str], Tensor]:
        """Every node's mean over images and the tokens that count, ``[nodes]`` by (kind, layer)."""
        found: dict[tuple[str, str], Tensor] = {}
        for chunk in images.split(CHUNK):
            self.model(chunk)
            for node, x in self.seen.items():
                counts = x[:, : max(self.shape.uses(node[1]))]
                found[node] = found.get(node, 0) + counts.mean(1).sum(0) / len(images)
        return found

    def _read(self, layer: str, kind: str) -> Callable[..., tuple[Tensor, ...]]:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            x = args[0] if args[0].dim() > 2 else args[0].unsqueeze(1)  # the head reads one token
            if torch.is_grad_enabled() and not x.requires_grad:  # all before it is frozen
                x = x.detach().requires_grad_()
            self.seen[kind, layer] = x
            return (x.view_as(args[0]),)

        return hook

    def _written(self, layer: str, rows: tuple[str, ...]) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            sizes = [self.shape.nodes()[kind] for kind in rows]
            query, key, value = output.split(sizes, dim=-1)
            self.seen[rows[1], layer] = key
            return torch.cat([query, key, value], dim=-1)  # so that gradients pass through what was seen

        return hook
