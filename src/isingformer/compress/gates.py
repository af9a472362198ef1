"""The evidence of whole nodes: what the log-likelihood loses when a node becomes a constant.

Summed over its weights, the evidence of a node leaves out how they act together. Here a gate z multiplies what varies
of the node, c + z (x - c), c its mean over images, and the gate gets the evidence that a weight gets (m = 1):

    N h / 2,    h = mean over images n of sum over classes y of p(y | n) (d log p(y | n) / dz)^2
    d log p / dz = sum over tokens t of (x[n, t] - c) d log p / dx[n, t]

at the expected network, with the expectation over labels taken exactly, one backward pass a class. Nodes are gated
where layers read them, residual channels everywhere at once; query-key channels by their keys.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..methods import Attached
from ..nn.masked import in_eval_mode
from .shape import Shape

IMAGES, CHUNK = 1024, 128
"""How many images are looked at, at most, and how many at once."""


def gate_evidence(handle: Attached, shape: Shape, images: Tensor) -> dict[str, Tensor]:
    """N h / 2 of every node's gate, float64 ``[nodes]`` by kind.

    Args:
        handle: on the model; its likelihood must be over classes.
        shape: of the model.
        images: ``[N, C, H, W]`` as the model reads them; the first 1,024 count.
    """
    kind = handle.parts.likelihood
    if kind.name not in ("softmax", "binary"):
        raise ValueError(f"compress: score='gate' sums over classes, and {kind.name!r} has none; use score='both'")
    images = images[:IMAGES]
    total = {name: torch.zeros(size, dtype=torch.float64) for name, size in shape.nodes().items()}
    with _Watched(handle.model, shape) as watched, in_eval_mode(handle.model):
        centres = watched.means(images)
        for chunk in images.split(CHUNK):
            with torch.enable_grad():
                outputs = handle.model(chunk)
                seen = watched.seen
                probs = kind.probabilities(outputs.detach())  # [B, classes]
                for y in range(probs.shape[-1]):
                    nll = kind.nll(outputs, torch.full((len(chunk),), y, device=chunk.device)).sum()
                    grads = torch.autograd.grad(nll, list(seen.values()), retain_graph=y + 1 < probs.shape[-1])
                    slopes: dict[str, Tensor] = {}
                    for (node, x), grad in zip(seen.items(), grads, strict=True):
                        slope = ((x.detach() - centres[node]) * grad).flatten(1, -2).sum(1)  # [B, nodes]
                        slopes[node[0]] = slopes.get(node[0], 0) + slope
                    for name, slope in slopes.items():
                        total[name] += (probs[:, y].double() @ slope.double().square()).cpu()
    return {name: 0.5 * handle.examples * h / len(images) for name, h in total.items()}


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
