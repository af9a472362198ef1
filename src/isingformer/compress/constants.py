"""What removed nodes leave behind: constants that go into biases and into the norms' statistics.

A removed node is one whose weights are all masked, so that it is constant, and then a constant in whoever reads it:

    hidden unit      gelu(bias)     its incoming weights are masked            exact
    value channel    bias           its incoming weights are masked: scores of a query sum to 1      exact
    query-key channel   nothing     both rows are masked: the same for all keys, which softmax ignores      exact
    residual channel    0 in what reads the norm; in the norm's mean and variance the constants written to it: position,
        class token, biases        all weights that write or read it are masked     exact

Exact means: the network without the nodes equals the network with these masks, in eval mode. It does not mean that the
masks cost nothing. With images, the constants are the nodes' means over these images in the network before instead, and
the norms get the removed channels' mean and variance there: closer to the network before than the masks are, but
equal to neither. Where a `CompactViT` computes the class token alone, the means are those at this token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..nn.masked import in_eval_mode
from .compact import CompactNorm
from .selection import Selection
from .shape import RESIDUAL

Hook = Callable[[nn.Module, tuple[Tensor, ...]], None]
CHUNK = 256
"""Images that are looked at together."""


@dataclass(frozen=True)
class Constants:
    """What to put in the place of removed nodes."""

    reads: Mapping[str, Tensor]
    """By layer, the constant that stands for each of its inputs, ``[in]``."""
    norms: Mapping[str, tuple[Tensor, Tensor]]
    """By norm, mean and variance of the removed residual channels, each ``[tokens, 1]``; empty where none is."""


def norm_names(model: nn.Module) -> list[str]:
    """The norms of a `ViT` or `CompactViT` in the order they are passed."""
    return [name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm | CompactNorm)]


def masked_constants(state: Mapping[str, Tensor], selection: Selection, norms: list[str]) -> Constants:
    """The constants of nodes whose weights are masked.

    Args:
        state: the network's tensors by name; embeddings as the expected network scales them.
        selection: what stays.
        norms: their names.
    """
    reads = {}
    for layer, (_, kind) in selection.shape.wiring().items():
        if kind == RESIDUAL:
            reads[layer] = torch.zeros_like(state[f"{layer}.weight"][0])
        elif kind.endswith(".value"):
            writer = state[f"{layer.removesuffix('proj')}qkv.bias"]
            reads[layer] = writer[len(writer) - selection.shape.nodes()[kind] :]
        elif kind:
            reads[layer] = F.gelu(state[f"{layer.removesuffix('fc2')}fc1.bias"])
    return Constants(reads, _masked_norms(state, selection, norms))


def _masked_norms(
    state: Mapping[str, Tensor], selection: Selection, norms: list[str]
) -> dict[str, tuple[Tensor, Tensor]]:
    gone = ~selection.keep[RESIDUAL].to(state["position"].device)
    if not gone.any():
        return {}
    written = state["position"][0] + state["embed.bias"]  # [T, D]: what the masks leave in the residual stream
    written[0] = state["position"][0, 0] + state["class_token"][0, 0]
    found = {}
    for i in range(len(selection.shape.blocks)):
        for norm, writer in (("norm1", "attn"), ("norm2", "mlp")):
            found[f"blocks.{i}.{norm}"] = written[:, gone]
            last = {"attn": "proj", "mlp": "fc2"}[writer]
            for name in (f"blocks.{i}.{writer}.{last}.bias", f"blocks.{i}.{writer}.bias"):
                written = written + state[name] if name in state else written  # neither: it is in a bias before
    found["norm"] = written[:1, gone] if selection.shape.pool == "class" else written[:, gone]
    return {name: _moments(found[name].mean(-1), found[name].square().mean(-1)) for name in norms}


def _moments(mean: Tensor, square: Tensor) -> tuple[Tensor, Tensor]:
    """(mean, variance), each ``[tokens, 1]``, from the means of the first two powers, each ``[tokens]``."""
    return mean.unsqueeze(-1), (square - mean.square()).clamp_min(0).unsqueeze(-1)


@torch.no_grad()
def measured_constants(model: nn.Module, images: Tensor, selection: Selection, norms: list[str]) -> Constants:
    """The means of what layers and norms of a network read, over images, in eval mode.

    Args:
        model: a `ViT` or `CompactViT`.
        images: ``[N, C, H, W]`` as the model reads them.
        selection: what stays.
        norms: their names.
    """
    sums: dict[str, Tensor] = {}
    gone, left = ~selection.keep[RESIDUAL].to(images.device), selection.shape.compact()

    def add(name: str, value: Tensor) -> None:
        sums[name] = sums[name] + value if name in sums else value

    def layer_hook(name: str) -> Hook:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            x = args[0].double()
            x = x[:, : max(left.uses(name))] if x.dim() > 2 else x.unsqueeze(1)  # the tokens that will be read
            add(name, x.mean(1).sum(0))

        return hook

    def norm_hook(name: str) -> Hook:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            x = args[0].double()[..., gone]
            x = x if x.dim() > 2 else x.unsqueeze(1)  # the class token alone
            add(name, torch.stack([x.mean(-1), x.square().mean(-1)]).sum(1))  # [2, tokens]

        return hook

    readers = [layer for layer, (_, kind) in selection.shape.wiring().items() if kind]
    wanted = norms if bool(gone.any()) else []
    hooks = [model.get_submodule(name).register_forward_pre_hook(layer_hook(name)) for name in readers]
    hooks += [model.get_submodule(name).register_forward_pre_hook(norm_hook(name)) for name in wanted]
    try:
        with in_eval_mode(model):
            for chunk in images.split(CHUNK):
                model(chunk)
    finally:
        for hook in hooks:
            hook.remove()
    means = {name: total / len(images) for name, total in sums.items()}
    return Constants(
        {name: means[name].to(images.dtype) for name in readers},
        {name: _moments(*means[name].to(images.dtype)) for name in wanted},
    )
