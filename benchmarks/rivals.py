"""Torch-Pruning on the same network: its importance, its dependency graph, its removal; for `compress.py`.

The library follows modules, so the network is laid out for it with a layer each for queries, keys and values. What it
leaves is read back as a `CompactViT`, which is fine-tuned, counted and timed like all others.
"""

import copy
import dataclasses
import warnings

import torch
import torch.nn.functional as F
from torch import nn

from isingformer.compress.compact import empty_compact
from isingformer.compress.shape import BlockShape, shape_of
from isingformer.nn.vit import patches

BATCH = 64


class Attention(nn.Module):
    """Attention of a `ViT` with three layers instead of one."""

    def __init__(self, attention, heads):
        super().__init__()
        self.heads, self.scale = heads, (attention.proj.in_features // heads) ** -0.5
        for name, weight, bias in zip("qkv", attention.qkv.weight.chunk(3), attention.qkv.bias.chunk(3), strict=True):
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.weight.data, layer.bias.data = weight.detach().clone(), bias.detach().clone()
            self.add_module(name, layer)
        self.proj = copy.deepcopy(attention.proj)

    def forward(self, x):
        q, k, v = (
            layer(x).view(*x.shape[:2], self.heads, layer.out_features // self.heads).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, scale=self.scale).transpose(1, 2)
        return self.proj(mixed.reshape(*x.shape[:2], self.proj.in_features))


class Block(nn.Module):
    """A block of a `ViT` around that attention."""

    def __init__(self, block, heads):
        super().__init__()
        self.norm1, self.norm2 = copy.deepcopy(block.norm1), copy.deepcopy(block.norm2)
        self.attn = Attention(block.attn, heads)
        self.fc1, self.fc2 = copy.deepcopy(block.mlp.fc1), copy.deepcopy(block.mlp.fc2)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Laid(nn.Module):
    """A plain `ViT` with a class token, laid out for Torch-Pruning."""

    def __init__(self, vit):
        super().__init__()
        self.embed, self.norm, self.head = (copy.deepcopy(part) for part in (vit.embed, vit.norm, vit.head))
        self.class_token, self.position = copy.deepcopy(vit.class_token), copy.deepcopy(vit.position)
        self.blocks = nn.ModuleList(Block(block, vit.heads) for block in vit.blocks)
        self.patch = vit.patch

    def forward(self, images):
        x = self.embed(patches(images, self.patch))
        x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


RANKINGS = {"alike": {"global_pruning": True, "isomorphic": True}, "layer": {"global_pruning": False}}
"""In what company a node is ranked: with those of all layers of its sort, or of its own layer."""
STEP = 0.01


def taylor_pruned(vit, images, labels, macs, *, ranking="alike", width=False):
    """A `CompactViT` of at most so many multiply-adds, by Torch-Pruning's group Taylor importance.

    Args:
        vit: a plain `ViT`.
        images, labels: what gradients are taken on.
        macs: how many are left, at most, as `Shape.macs` counts them.
        ranking: one of `RANKINGS`; its authors advise "alike" for vision transformers.
        width: remove residual channels too, not only hidden units and head dimensions.
    """
    laid = Laid(vit)
    for x, y in zip(images.split(BATCH), labels.split(BATCH), strict=True):
        (F.cross_entropy(laid(x), y) * len(y) / len(labels)).backward()
    # Up from below: a layer of which all would go is left whole, so that more is not always smaller. What is left falls
    # with the ratio, or with its square where residual channels go too, but for what always stays.
    least = 1 - (macs / shape_of(vit).compact().macs()) ** (0.5 if width else 1)
    for ratio in torch.arange(max(STEP, least - 0.05), 1, STEP).tolist():
        left = _compact(_pruned(laid, images[:1], ratio, ranking, width), vit)
        if left.shape.macs() <= macs:
            return left
    raise ValueError(f"Torch-Pruning leaves no network of {macs:,.0f} multiply-adds")


def _pruned(laid, image, ratio, ranking, width):
    import torch_pruning

    network = copy.deepcopy(laid)
    for copied, own in zip(network.parameters(), laid.parameters(), strict=True):
        copied.grad = own.grad.clone()
    inside = [(block.attn, layer) for block in network.blocks for layer in (block.attn.q, block.attn.k, block.attn.v)]
    fixed = [network.head]
    if not width:
        fixed += [network.embed, *(layer for block in network.blocks for layer in (block.attn.proj, block.fc2))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it found class token and positions
        pruner = torch_pruning.pruner.BasePruner(
            network, image, importance=torch_pruning.importance.GroupTaylorImportance(), pruning_ratio=ratio,
            ignored_layers=fixed, num_heads={layer: attention.heads for attention, layer in inside},
            prune_head_dims=True, **RANKINGS[ranking],
        )  # fmt: skip
        pruner.step()
    return network


@torch.no_grad()
def _compact(network, vit):
    """What is left, as a `CompactViT`."""
    blocks, state = [], {"class_token": network.class_token, "position": network.position}
    for i, block in enumerate(network.blocks):
        at, attention = f"blocks.{i}.", block.attn
        sizes = [layer.out_features // attention.heads for layer in (attention.q, attention.v)]
        blocks.append(BlockShape((sizes[0],) * attention.heads, (sizes[1],) * attention.heads, block.fc1.out_features))
        for kind in ("weight", "bias"):
            state[f"{at}attn.qkv.{kind}"] = torch.cat([getattr(getattr(attention, n), kind) for n in "qkv"])
            for name, layer in (
                ("norm1", block.norm1), ("norm2", block.norm2), ("attn.proj", attention.proj), ("mlp.fc1", block.fc1),
                ("mlp.fc2", block.fc2),
            ):  # fmt: skip
                state[f"{at}{name}.{kind}"] = getattr(layer, kind)
    for name in ("embed", "norm", "head"):
        state |= {f"{name}.{kind}": getattr(getattr(network, name), kind) for kind in ("weight", "bias")}
    width = network.head.in_features
    shape = dataclasses.replace(shape_of(vit).compact(), width=width, full_width=width, blocks=tuple(blocks))
    compact = empty_compact(shape, vit.head.weight)
    compact.load_state_dict(state)
    return compact
