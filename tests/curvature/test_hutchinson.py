"""Hutchinson's diagonal, and the slow references, against Hessians and Jacobians written out by PyTorch."""

import pytest
import torch
import torch.nn.functional as F

from isingformer.curvature.hutchinson import hutchinson_diagonal
from isingformer.curvature.likelihood import likelihood
from isingformer.curvature.reference import gauss_newton_diagonal, hessian_diagonal, squared_gradients

DOUBLE = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def attention_net(seed=0):
    """Tokens through one attention head and a tanh layer to three classes: outputs(weights), leaves, targets."""
    g = generator(seed)
    x, y = torch.randn(6, 4, 3, dtype=DOUBLE, generator=g), torch.randint(0, 3, (6,), generator=g)
    shapes = {"qkv": (9, 3), "hidden": (4, 3), "head": (3, 4)}
    leaves = {name: torch.randn(shape, dtype=DOUBLE, generator=g).requires_grad_() for name, shape in shapes.items()}

    def outputs(weights):
        q, k, v = F.linear(x, weights["qkv"]).unsqueeze(1).chunk(3, -1)  # one head: the shape the fused kernels take
        pooled = F.scaled_dot_product_attention(q, k, v).squeeze(1).mean(1)
        return F.linear(torch.tanh(F.linear(pooled, weights["hidden"])), weights["head"])

    return outputs, leaves, y


def dense_hessian(loss, leaves):
    """The whole matrix, by torch.func over one long vector of weights."""
    sizes = [leaf.numel() for leaf in leaves.values()]

    def of_vector(vector):
        parts = [part.view_as(leaf) for part, leaf in zip(vector.split(sizes), leaves.values(), strict=True)]
        return loss(dict(zip(leaves, parts, strict=True)))

    vector = torch.cat([leaf.detach().flatten() for leaf in leaves.values()])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.func.jacrev(torch.func.jacrev(of_vector))(vector)


def flat(h):
    return torch.cat([part.flatten() for part in h.values()])


@pytest.mark.parametrize("seed", range(2))
def test_many_draws_approach_the_exact_diagonal(seed):
    outputs, leaves, y = attention_net(seed)

    def loss(weights):
        return F.cross_entropy(outputs(weights), y)

    hessian = dense_hessian(loss, leaves)
    exact = hessian.diagonal()
    torch.testing.assert_close(flat(hessian_diagonal(lambda: loss(leaves), leaves)), exact)
    draws = 500
    estimate = flat(hutchinson_diagonal(lambda: loss(leaves), leaves, draws, generator(seed)))
    # A draw of h_i has variance sum_{j != i} H_ij^2; six standard errors for each weight, three for all together.
    error = ((hessian.square().sum(1) - exact.square()) / draws).sqrt()
    assert ((estimate - exact).abs() <= 6 * error).all()
    assert (estimate - exact).norm() <= 3 * error.norm()
    assert (estimate != exact).any()


def test_one_draw_is_exact_for_a_diagonal_hessian():
    a, b = (torch.randn(n, dtype=DOUBLE, generator=generator(n)).requires_grad_() for n in (5, 7))
    c = torch.arange(5, dtype=DOUBLE) - 2
    h = hutchinson_diagonal(lambda: (c * a.square()).sum() + b.exp().sum(), {"a": a, "b": b}, 1, generator())
    torch.testing.assert_close(h, {"a": 2 * c, "b": b.detach().exp()})


def test_replicas_do_not_interact():
    w = torch.randn(3, 4, dtype=DOUBLE, generator=generator()).requires_grad_()
    together = hutchinson_diagonal(lambda: w.pow(4).sum(-1), {"w": w}, 1, generator())
    torch.testing.assert_close(together["w"], 12 * w.detach().square())


def test_leaves_without_curvature_get_zeros():
    used, linear, unused = (torch.ones(3, dtype=DOUBLE, requires_grad=True) for _ in range(3))
    leaves = {"used": used, "linear": linear, "unused": unused}
    h = hutchinson_diagonal(lambda: used.pow(2).sum() + linear.sum(), leaves, 2, generator())
    expected = {"used": torch.full_like(used, 2), "linear": torch.zeros(3).double(), "unused": torch.zeros(3).double()}
    torch.testing.assert_close(h, {k: v.detach() for k, v in expected.items()})
    straight = hutchinson_diagonal(lambda: linear.sum(), {"linear": linear}, 2, generator())
    assert straight["linear"].eq(0).all()


def test_the_generator_decides_the_draw_and_nobody_elses_state_moves():
    outputs, leaves, y = attention_net()
    before = torch.get_rng_state()
    one, same, other = (
        flat(hutchinson_diagonal(lambda: F.cross_entropy(outputs(leaves), y), leaves, 1, generator(seed)))
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, same) and not torch.allclose(one, other)
    assert torch.equal(before, torch.get_rng_state())
    assert all(leaf.grad is None for leaf in leaves.values())


def test_what_hutchinson_refuses():
    w = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(ValueError, match=r"shape \[2, 3\]; expected a number or one per replica"):
        hutchinson_diagonal(lambda: w.square(), {"w": w})
    with pytest.raises(ValueError, match="draws is 0; expected 1 or more"):
        hutchinson_diagonal(lambda: w.square().sum(), {"w": w}, draws=0)


def test_gauss_newton_reference_is_the_expected_squared_gradient():
    """Gauss-Newton is the Fisher information: the squared gradient, averaged over labels from the model."""
    outputs, leaves, _ = attention_net()
    p = outputs(leaves).softmax(-1).detach()
    expected = {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    for label in range(3):
        for n in range(len(p)):
            nll = -outputs(leaves)[n].log_softmax(-1)[label]
            for name, gradient in zip(leaves, torch.autograd.grad(nll, leaves.values()), strict=True):
                expected[name] += p[n, label] * gradient.square() / len(p)
    found = gauss_newton_diagonal(lambda: outputs(leaves), leaves, "softmax")
    torch.testing.assert_close(found, {k: v.detach() for k, v in expected.items()})


@pytest.mark.parametrize("name", ["gaussian", "binary", "multilabel"])
def test_gauss_newton_is_the_hessian_of_a_linear_model(name):
    g = generator()
    x = torch.randn(5, 3, dtype=DOUBLE, generator=g)
    w = torch.randn(1 if name == "binary" else 2, 3, dtype=DOUBLE, generator=g).requires_grad_()
    targets = likelihood(name).sample(F.linear(x, w), g)
    hessian = hessian_diagonal(lambda: likelihood(name).nll(F.linear(x, w), targets).mean(), {"w": w})
    torch.testing.assert_close(gauss_newton_diagonal(lambda: F.linear(x, w), {"w": w}, name), hessian)


def test_squared_gradients_reference_against_vmap():
    outputs, leaves, y = attention_net()

    def nll(weights, n):
        return F.cross_entropy(outputs(weights), y, reduction="none")[n]

    found = squared_gradients(lambda n: nll(leaves, n), leaves, len(y))
    plain = {name: leaf.detach() for name, leaf in leaves.items()}
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        each = torch.func.jacrev(lambda weights: F.cross_entropy(outputs(weights), y, reduction="none"))(plain)
    torch.testing.assert_close(found, {name: jacobian.square().mean(0) for name, jacobian in each.items()})
