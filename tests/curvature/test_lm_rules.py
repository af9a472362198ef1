"""Every rule of the recursion against the brute-force sum of squared Jacobians."""

import pytest
import torch
import torch.nn.functional as F

from doubles import DOUBLE, generator, randn
from isingformer.curvature.lm import SquaredJacobians


def squared(f, inputs, h):
    """The rules' answer for h at the output of f."""
    leaves = [one.clone().requires_grad_() for one in inputs]
    with SquaredJacobians():
        out = f(*leaves)
    return out.detach(), torch.autograd.grad(out, leaves, h)


def brute_force(f, inputs, h):
    """h_in[i] = sum_j J[j, i]^2 h[j], with J written out."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        jacobians = torch.autograd.functional.jacobian(f, tuple(inputs))
    return tuple(torch.tensordot(h, j.square(), dims=h.ndim) for j in jacobians)


X = (2, 3, 4)
MASK = torch.tensor([[True, False, True], [True, True, False], [False, False, True]])
CONSTANT = randn(3, 4, seed=9)

MAPS = {
    # products: every operand, broadcast axes, constant factors
    "linear": (F.linear, X, (5, 4), (5,)),
    "linear without bias": (F.linear, X, (5, 4)),
    "matmul": (torch.matmul, X, (4, 5)),
    "operator @, broadcast": (lambda a, b: a @ b, (2, 1, 3, 4), (5, 4, 2)),
    "vector @": (lambda a, b: a @ b, (4,), (2, 4, 3)),
    "bmm": (torch.bmm, X, (2, 4, 5)),
    "baddbmm": (torch.baddbmm, (2, 1, 5), X, (2, 4, 5)),
    "baddbmm with factors": (lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=-3), (2, 1, 5), X, (2, 4, 5)),
    "addmm": (torch.addmm, (5,), (3, 4), (4, 5)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), (2, 2, 5, 5), (3, 2, 3, 3), (3,)),
    "conv1d in groups": (lambda x, w: F.conv1d(x, w, groups=2), (1, 4, 6), (4, 2, 2)),
    "einsum": (lambda a, b: torch.einsum("nti, oi -> nto", a, b), X, (5, 4)),
    "einsum of a list": (lambda a, b: torch.einsum("nti,oi->nto", [a, b]), X, (5, 4)),
    "einsum of replicas": (lambda a, b: torch.einsum("rti,roi->tro", a, b), X, (2, 5, 4)),
    # entry by entry
    "gelu": (F.gelu, X),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), X),
    "relu": (F.relu, X),
    "method relu": (lambda x: x.relu(), X),
    "tanh": (torch.tanh, X),
    "silu": (F.silu, X),
    "sigmoid": (torch.sigmoid, X),
    "exp": (torch.exp, X),
    "square": (lambda x: x**2, X),
    "times a gain": (lambda x, g: x * g, X, (4,)),
    "times a gain by name": (lambda x, g: torch.mul(input=x, other=g), X, (4,)),
    "times a constant": (lambda x: x * CONSTANT, X),
    "times a number": (lambda x: 3 * x, X),
    "over a number": (lambda x: x / -4, X),
    "over a tensor": (lambda x, g: x / g, X, (3, 1)),
    "number over": (lambda x: 2 / x, X),
    "add": (lambda a, b: a + b, X, (4,)),
    "add alpha": (lambda a, b: torch.add(a, b, alpha=3), X, (4,)),
    "sub": (lambda a, b: a - b, (4,), X),
    "sub alpha": (lambda a, b: torch.sub(a, b, alpha=3), X, (4,)),
    "number minus": (lambda x: 1 - x, X),
    "neg": (lambda x: -x, X),
    # normalisation and attention
    "layer norm": (lambda x: F.layer_norm(x, (4,)), X),
    "layer norm affine": (lambda x, g, b: F.layer_norm(x, (4,), g, b, 0.1), X, (4,), (4,)),
    "layer norm of two axes": (lambda x, g: F.layer_norm(x, (3, 4), weight=g), X, (3, 4)),
    "softmax": (lambda x: F.softmax(x, dim=-1), X),
    "softmax of another axis": (lambda x: x.softmax(1), X),
    "attention": (F.scaled_dot_product_attention, X, X, X),
    "attention, other sizes": (F.scaled_dot_product_attention, (2, 1, 3, 4), (1, 5, 2, 4), (2, 1, 2, 6)),
    "attention scale": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.7), X, X, X),
    "attention causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), X, X, X),
    "attention mask": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, MASK), X, X, X),
    "attention bias": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, CONSTANT[:, :3]), X, X, X),
    # averages and sums
    "mean": (lambda x: x.mean(1), X),
    "mean of all": (torch.mean, X),
    "mean of axes": (lambda x: torch.mean(x, dim=(0, 2), keepdim=True), X),
    "sum": (lambda x: x.sum((0, 2)), X),
    # zeros and ones
    "cat": (lambda a, b: torch.cat([a, b.expand(2, 1, 4)], dim=1), X, (1, 1, 4)),
    "stack": (lambda a, b: torch.stack((a, b)), X, X),
    "chunk": (lambda x: x.chunk(2, -1)[1], X),
    "split": (lambda x: x.split((1, 3), dim=-1)[1], X),
    "unbind": (lambda x: x.unbind(1)[2], X),
    "index": (lambda x: x[:, [0, 0, 2], 1:3], X),
    "select": (lambda x: x[:, 0], X),
    "views": (lambda x: x.unflatten(-1, (2, 2)).movedim(2, 0).flatten(1).contiguous().clone().view(-1), X),
    "more views": (lambda x: x.mT.reshape(8, 3).T.transpose(0, 1).permute(1, 0).unsqueeze(0).squeeze(0), X),
    "cast": (lambda x: x.float().to(DOUBLE), X),
    "dropout in eval": (lambda x: F.dropout(x, 0.5, training=False), X),
    "pad": (lambda x: F.pad(x, (1, 2)), X),
    "where": (lambda x: torch.where(x > 0, x, 0.0), X),
    "embedding": (lambda w: F.embedding(torch.tensor([[0, 2], [2, 1]]), w), (3, 4)),
}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("seed", range(2))
def test_a_rule_sums_the_squared_jacobian(name, seed):
    f, *shapes = MAPS[name]
    inputs = [randn(*shape, seed=10 * seed + i) for i, shape in enumerate(shapes)]
    expected = f(*inputs)
    h = randn(*expected.shape, seed=seed + 5).square()
    out, found = squared(f, inputs, h)
    torch.testing.assert_close(out, expected)
    if name == "cast":  # through float32
        torch.testing.assert_close(found[0], h.float().double())
    else:
        torch.testing.assert_close(found, brute_force(f, inputs, h))


def test_layer_norm_and_attention_stay_non_negative_where_terms_cancel():
    """The closed forms subtract: two channels normalise to -1 and 1 whatever they are, equal values move nothing."""
    x, h = torch.randn(64, 2, generator=generator()), torch.rand(64, 2, generator=generator(1))
    (h_x,) = squared(lambda x: F.layer_norm(x, (2,)), [x], h)[1]
    q, k, v = (torch.randn(5, 6, 8, generator=generator(i)) for i in range(3))
    parts = squared(F.scaled_dot_product_attention, [q, 10 * k, 1e3 + 1e-3 * v], torch.ones(5, 6, 8))[1]
    assert all((part >= 0).all() and part.isfinite().all() for part in (h_x, *parts))


@pytest.mark.parametrize("name", ["layer norm", "attention", "linear", "gelu", "softmax"])
def test_bfloat16_squares_and_subtracts_in_float32(name):
    f, *shapes = MAPS[name]
    inputs = [randn(*shape, seed=i).bfloat16() for i, shape in enumerate(shapes)]
    h = randn(*f(*inputs).shape, seed=5).square().bfloat16()
    found = squared(f, inputs, h)[1]
    exact = brute_force(f, [one.double() for one in inputs], h.double())
    for part, expected in zip(found, exact, strict=True):
        assert part.dtype == torch.bfloat16
        # Only the result is rounded, to 8 bits; a softmax keeps its rounded output, whose square doubles the error.
        torch.testing.assert_close(part.double(), expected, rtol=2**-8 * (1 if name != "softmax" else 8), atol=1e-6)


# Whole nets ----------------------------------------------------------------------------------------------------------
