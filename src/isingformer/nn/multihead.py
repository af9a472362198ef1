"""`nn.MultiheadAttention` with a posterior: its projections are layers, and no fused path goes around them.

torch hands the projections' weights to one function, so nothing inside is ever called. While masked, the module runs
the same attention step by step. Axes: examples N, tokens T (of queries) and S (of keys), width E, heads H.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import Masked

PACKED, SEPARATE = ("in_proj",), ("q_proj", "k_proj", "v_proj")


class Projection(Masked, nn.Module):
    """An input projection of an `nn.MultiheadAttention` as a layer: its parameters stay where they are.

    Args:
        owner: the attention.
        name: ``in_proj``, the three stacked, or one of ``q_proj``, ``k_proj``, ``v_proj`` where widths differ.
    """

    def __init__(self, owner: nn.MultiheadAttention, name: str) -> None:
        super().__init__()
        self.__dict__["owner"] = owner  # not a child: the owner is the parent
        self.name = name
        self.train(owner.training)

    @property
    def weight(self) -> Tensor:
        """The owner's parameter."""
        return _weight_and_bias(self.__dict__["owner"], self.name)[0]

    @property
    def bias(self) -> Tensor | None:
        """The owner's bias, or this projection's third of it."""
        return _weight_and_bias(self.__dict__["owner"], self.name)[1]

    def extra_repr(self) -> str:
        """Like nn.Linear."""
        return "out_features={}, in_features={}".format(*self.weight.shape)


def _weight_and_bias(owner: nn.MultiheadAttention, name: str) -> tuple[Tensor, Tensor | None]:
    bias: Tensor | None = owner.in_proj_bias
    if bias is not None and name in SEPARATE:
        bias = bias.chunk(3)[SEPARATE.index(name)]
    return getattr(owner, f"{name}_weight"), bias


def projections(attention: nn.MultiheadAttention) -> dict[str, nn.Module]:
    """The linear maps of an attention by name; input projections are made here, on the attention they appear later."""
    names = PACKED if attention._qkv_same_embed_dim else SEPARATE
    return {**{name: Projection(attention, name) for name in names}, "out_proj": attention.out_proj}


class MaskedMultiheadAttention(nn.MultiheadAttention):
    """An `nn.MultiheadAttention` whose projections are called as layers."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention as `nn.MultiheadAttention` computes it; its arguments, its results."""
        if is_causal and attn_mask is None:
            raise ValueError("MultiheadAttention: is_causal=True without attn_mask; expected the causal mask as well")
        batched = query.dim() == 3
        mask = self._mask(attn_mask, key_padding_mask, query.dtype)
        q, k, v = (self._by_head(part) for part in self._project(*self._examples_first(query, key, value)))
        k, v, mask = self._extra_tokens(k, v, mask)
        if need_weights:
            scores = q @ k.mT / math.sqrt(q.shape[-1])
            weights = (scores if mask is None else scores + mask).softmax(-1)  # [N, H, T, S]
            weights = F.dropout(weights, self.dropout, self.training)
            mixed, shown = weights @ v, weights.mean(1) if average_attn_weights else weights
        else:
            dropout = self.dropout if self.training else 0.0
            mixed, shown = F.scaled_dot_product_attention(q, k, v, mask, dropout), None
        output = self.out_proj(mixed.transpose(1, 2).flatten(2))  # [N, T, E]
        if not batched:
            return output.squeeze(0), None if shown is None else shown.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), shown

    def _examples_first(self, *inputs: Tensor) -> list[Tensor]:
        """The inputs as ``[N, T, E]``; inputs that were one tensor stay one."""
        done: dict[int, Tensor] = {}
        for x in inputs:
            if id(x) not in done:
                done[id(x)] = x.unsqueeze(0) if x.dim() == 2 else x if self.batch_first else x.transpose(0, 1)
        return [done[id(x)] for x in inputs]

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values, ``[N, T or S, E]`` each."""
        if not self._qkv_same_embed_dim:
            return [self._input(name, x) for name, x in zip(SEPARATE, (query, key, value), strict=True)]
        # One call whatever comes in: one draw of the weight, and squared gradients that see all tokens of an example.
        rows = list({id(x): x for x in (query, key, value)}.values())
        whole = self._input("in_proj", rows[0] if len(rows) == 1 else torch.cat(rows, dim=1))
        by_input = dict(zip(map(id, rows), whole.split([x.shape[1] for x in rows], dim=1), strict=True))
        return [by_input[id(x)].chunk(3, dim=-1)[i] for i, x in enumerate((query, key, value))]

    def _input(self, name: str, x: Tensor) -> Tensor:
        """An input projection, masked or plain."""
        layer = self._modules.get(name)
        return F.linear(x, *_weight_and_bias(self, name)) if layer is None else layer(x)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)  # [N, H, T, channels]

    def _mask(self, attention: Tensor | None, padding: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        """Both masks as one that is added to the scores, broadcasting to ``[N, H, T, S]``."""
        total: Tensor | None = None
        if attention is not None:
            total = _additive(attention, dtype)
            if total.dim() == 3:
                total = total.unflatten(0, (-1, self.num_heads))
        if padding is not None:
            padding = _additive(padding if padding.dim() == 2 else padding.unsqueeze(0), dtype)[:, None, None]
            total = padding if total is None else total + padding
        return total

    def _extra_tokens(self, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys and values that the module adds to every sequence: learned ones, and a zero."""
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self._by_head(self.bias_k).expand(len(k), -1, -1, -1)], dim=2)
            v = torch.cat([v, self._by_head(self.bias_v).expand(len(v), -1, -1, -1)], dim=2)
            mask = None if mask is None else F.pad(mask, (0, 1))
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
            mask = None if mask is None else F.pad(mask, (0, 1))
        return k, v, mask


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)


class DenseTransformerEncoder(nn.TransformerEncoder):
    """An `nn.TransformerEncoder` that never nests padded sequences: masked layers cannot read nested tensors."""

    use_nested_tensor = property(lambda self: False)
    """Hides the instance's own, which is back when the class is."""
