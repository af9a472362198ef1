"""Maps of the Levenberg-Marquardt recursion: each computes its operation as ever, and its backward carries h.

    h_in[i] = sum over j of J[j, i]^2 h_out[j],    J[j, i] = d out[j] / d in[i]

in closed form: no Jacobian is written down.

Axes: t queries (tokens), s keys (tokens), c and c' channels, D the normalised channels.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .slopes import squared_slopes


def wide(tensor: Tensor) -> Tensor:
    """Half precision to float32, because differences of squares drown in it."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class Elementwise(torch.autograd.Function):
    """out = f(a, b, ...) entry by entry, all of one shape: h_a = (df/da)^2 h."""

    @staticmethod
    def forward(ctx: Any, f: Callable[..., Tensor], *operands: Tensor) -> Tensor:
        """`f` of the operands."""
        ctx.f = f
        ctx.save_for_backward(*operands)
        return f(*operands)

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        """One entry depends on one entry only, so the gradient of the sum is the derivative of each."""
        operands = [wide(one).detach().requires_grad_() for one in ctx.saved_tensors]
        with torch.enable_grad():
            slopes = torch.autograd.grad(ctx.f(*operands).sum(), operands)
        return None, *(slope.square() * wide(h) for slope in slopes)


class Product(torch.autograd.Function):
    """out = a b (+ bias), a matrix product or convolution: at most one entry of b links a[i] to out[j].

    That entry is J[j, i], so h_a = (b^2)' h, h_b = (a^2)' h: PyTorch's own backward with squared operands.
    """

    @staticmethod
    def forward(ctx: Any, f: Callable[..., Tensor], f_squared: Callable[..., Tensor], *operands: Tensor) -> Tensor:
        """`f` of the operands; `f_squared` is `f` with its constant factors squared."""
        ctx.f_squared = f_squared
        ctx.save_for_backward(*operands)
        return f(*operands)

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        """The ordinary gradients of f(a^2, b^2), contracted with h."""
        needed = ctx.needs_input_grad[2:]
        squares = [
            wide(one).detach().square().requires_grad_(needs)
            for one, needs in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with torch.enable_grad():
            out = ctx.f_squared(*squares)
        found = iter(torch.autograd.grad(out, [one for one in squares if one.requires_grad], wide(h)))
        return None, None, *(next(found) if needs else None for needs in needed)


class Normalise(torch.autograd.Function):
    """x^ = (x - mean) / sd over the last axis, D channels: J[j, i] = (delta_ij - 1/D - x^_i x^_j / D) / sd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        """The layer norm without its scale and shift."""
        ctx.eps = eps
        ctx.save_for_backward(x)
        return F.layer_norm(x, x.shape[-1:], eps=eps)

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        """(h_i (1 - 2 (1 + x^_i^2) / D) + sum_j h_j (1 + x^_i x^_j)^2 / D^2) / sd^2, the square multiplied out."""
        (x,), h = map(wide, ctx.saved_tensors), wide(h)
        n = x.shape[-1]
        variance = x.var(-1, correction=0, keepdim=True) + ctx.eps
        xhat = (x - x.mean(-1, keepdim=True)) / variance.sqrt()
        moments = [(h * xhat**power).sum(-1, keepdim=True) for power in range(3)]
        everyone = (moments[0] + 2 * xhat * moments[1] + xhat**2 * moments[2]) / n**2
        # A sum of squares; only rounding could take it below zero.
        return ((h * (1 - 2 * (1 + xhat**2) / n) + everyone) / variance).clamp(min=0), None


class Softmax(torch.autograd.Function):
    """p = softmax(x) over the last axis: J[j, i] = p_j (delta_ij - p_i)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The softmax itself."""
        p = x.softmax(-1)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> Tensor:
        """p_i^2 h_i (1 - p_i)^2 + p_i^2 sum over j != i of p_j^2 h_j."""
        (p,), h = map(wide, ctx.saved_tensors), wide(h)
        weighted = p**2 * h
        others = (weighted.sum(-1, keepdim=True) - weighted).clamp(min=0)
        return weighted * (1 - p) ** 2 + p**2 * others


class Attention(torch.autograd.Function):
    """o = P v, P = softmax(scale q k' + bias), one map of q, k and v; k- = P k is the mean key of a query.

    h_v[s, c]  = sum_t P_ts^2 h[t, c]
    h_k[s, c'] = sum_t (scale q_tc' P_ts)^2 sum_c h[t, c] (v_sc - o_tc)^2
    h_q[t, c'] = sum_c h[t, c] (scale sum_s P_ts v_sc (k_sc' - k-_tc'))^2
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
        """PyTorch's own attention."""
        ctx.scale = scale
        ctx.save_for_backward(q, k, v, bias)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        """The three sums above."""
        *qkv, bias = ctx.saved_tensors
        q, k, v = map(wide, qkv)
        h = wide(h)
        scores = ctx.scale * q @ k.mT
        p = (scores if bias is None else scores + bias).softmax(-1)  # [..., t, s]
        o, mean_key = p @ v, p @ k
        spread = h @ v.square().mT - 2 * (h * o) @ v.mT + (h * o.square()).sum(-1, keepdim=True)  # [..., t, s]
        h_v = p.square().mT @ h
        h_k = ctx.scale**2 * (p.square() * spread.clamp(min=0)).mT @ q.square()
        h_q = ctx.scale**2 * squared_slopes(p, k, v, o, mean_key, h)
        return h_q, h_k, h_v, None, None
