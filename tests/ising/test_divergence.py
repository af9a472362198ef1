"""Both divergences against numerical integration, and of whole models against sums written out by hand."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from torch import nn

import isingformer as isf
from isingformer.ising import kl_masks, kl_weights, slab_cost, slab_cost_beyond

DOUBLE = torch.float64
EXAMPLES = 7.0  # N


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def gaussian_kl_by_integration(mean, sd, prior_sd):
    """KL(N(mean, sd^2) || N(0, prior_sd^2)) by quadrature of p log(p / prior)."""

    def integrand(w):
        log_p = -0.5 * ((w - mean) / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))
        log_prior = -0.5 * (w / prior_sd) ** 2 - np.log(prior_sd * np.sqrt(2 * np.pi))
        return np.exp(log_p) * (log_p - log_prior)

    return quad(integrand, mean - 12 * sd, mean + 12 * sd, epsabs=1e-12, epsrel=1e-10)[0]


@pytest.mark.parametrize(("s", "s1", "s2"), [(0.1, 0.1, 1.0), (0.05, 0.2, 0.7), (0.3, 0.1, 2.0)])
def test_weights_divergence_is_the_average_of_two_integrals(s, s1, s2):
    for q, m in itertools.product((0.0, 0.2, 0.9, 1.0), (-1.5, 0.0, 0.4)):
        spike, slab = gaussian_kl_by_integration(0.0, s, s1), gaussian_kl_by_integration(m, s, s2)
        mean, drop = torch.tensor(m, dtype=DOUBLE), torch.tensor(q, dtype=DOUBLE)
        found = kl_weights(mean, drop, noise_sd=s, spike_sd=s1, slab_sd=s2)
        assert float(found) == pytest.approx(q * spike + (1 - q) * slab, abs=1e-9)


@pytest.mark.parametrize(("s", "s2"), [(0.1, 1.0), (0.0, 0.7)])
def test_a_variance_of_its_own_costs_a_kept_weight_what_the_integral_says(s, s2):
    variance = torch.tensor([0.0, 1e-4, 0.02, 3.0], dtype=DOUBLE)
    found = slab_cost_beyond(variance, noise_sd=s, slab_sd=s2) + slab_cost(s, s2)
    for value, v in zip(found.tolist(), variance.tolist(), strict=True):
        sd = math.sqrt(s**2 + v)
        assert value == pytest.approx(gaussian_kl_by_integration(0.0, sd, s2) if sd else 0.0, abs=1e-9)


def test_masks_divergence_is_the_average_log_ratio():
    for q, field in itertools.product((0.0, 1e-9, 0.3, 0.999, 1.0), (-4.0, 0.0, 2.5)):
        p = 1 / (1 + math.exp(-field))
        expected = sum(a * math.log(a / b) for a, b in ((q, p), (1 - q, 1 - p)) if a > 0)
        found = kl_masks(torch.tensor(q, dtype=DOUBLE), torch.tensor(field, dtype=DOUBLE))
        assert float(found) == pytest.approx(expected, abs=1e-12)


def test_masks_divergence_stays_finite_for_extreme_fields_and_vanishes_at_the_prior():
    field = torch.tensor([-200.0, -3.0, 0.0, 3.0, 200.0], dtype=DOUBLE)
    torch.testing.assert_close(kl_masks(torch.sigmoid(field), field), torch.zeros_like(field))
    torch.testing.assert_close(kl_masks(torch.zeros_like(field), field), torch.nn.functional.softplus(field))


def test_point_mass_keeps_only_what_moves_with_the_mean():
    m, q = randn(4, 3), torch.rand(4, 3, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    found = kl_weights(m, q, noise_sd=0.0, spike_sd=0.0, slab_sd=0.5)
    torch.testing.assert_close(found, (1 - q) * m.square() / (2 * 0.5**2))


class Heads(nn.Module):
    """A hidden layer and any number of heads that read it."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.hidden, self.heads = nn.Linear(hidden.shape[1], hidden.shape[0]), nn.ModuleList()
        for head in heads:
            self.heads.append(nn.Linear(head.shape[1], head.shape[0]))
        self.double()
        with torch.no_grad():
            for layer, weight in zip([self.hidden, *self.heads], [hidden, *heads], strict=True):
                layer.weight.copy_(weight)

    def readers(self, prefix=""):
        return {prefix + "hidden": [f"{prefix}heads.{i}" for i in range(len(self.heads))]}

    def forward(self, x):
        hidden = torch.tanh(self.hidden(x))
        return torch.cat([head(hidden) for head in self.heads], -1)


def ising(**settings):
    defaults = {"delta": 0.2, "coupling": 1.5, "kl_weight": 1.0, "weight_noise": 0.1, "spike": 0.2, "slab": 0.8}
    return isf.Ising(**{**defaults, **settings})


def attach(model, method, *, readers=None, seed=0):
    """The handle of an attached model whose q and prior are random: every part of the divergence counts."""
    handle = isf.attach(model, method, examples=EXAMPLES, readers=readers)
    state = handle.state_dict()
    for i, name in enumerate(sorted(name for name in state if name.endswith((".drop", ".prior")))):
        value = randn(*state[name].shape, seed=seed + i)
        state[name] = torch.sigmoid(value) if name.endswith("drop") else value
    handle.load_state_dict(state)
    return handle


def by_hand(handle, mean_of, *, masks=True, s=0.1, s1=0.2, s2=0.8):
    """KL_W + KL_xi over N, as the method's page prints it, with s, s1 and s2 over sqrt(fan_in)."""
    total = 0
    for name, q in handle.drop_probability().items():
        m, root = mean_of(name), math.sqrt(q.shape[-1])
        a, b, c = s / root, s1 / root, s2 / root
        kept = m**2 / (2 * c**2) + math.log(c / a) + a**2 / (2 * c**2) - 0.5
        dropped = math.log(b / a) + a**2 / (2 * b**2) - 0.5
        total = total + ((1 - q) * kept + q * dropped).sum()
        if masks:
            p = torch.sigmoid(handle.state_dict()[f"{name}.prior"])
            total = total + (q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()).sum()
    return total / EXAMPLES


def small_vit(**settings):
    return isf.ViT(
        image_size=4, channels=1, patch=2, width=4, depth=1, heads=2, mlp=5, classes=3, **settings
    ).double()  # fmt: skip


@torch.no_grad()
def test_divergence_of_a_model_is_the_sum_by_hand():
    model = small_vit()
    handle = attach(model, ising())
    expected = by_hand(handle, lambda name: model.get_submodule(name).weight)
    torch.testing.assert_close(handle.kl(), expected, rtol=1e-10, atol=0)
    model.head.weight.mul_(2)  # m moves between sweeps, and the divergence with it
    moved = by_hand(handle, lambda name: model.get_submodule(name).weight)
    assert moved > expected
    torch.testing.assert_close(handle.kl(), moved, rtol=1e-10, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("method", [isf.DropConnect, isf.Dropout])
def test_comparison_methods_pay_for_weights_alone(method):
    model = small_vit()
    handle = isf.attach(model, method(p=0.3, kl_weight=1.0, weight_noise=0.1, spike=0.2, slab=0.8), examples=EXAMPLES)
    expected = by_hand(handle, lambda name: model.get_submodule(name).weight, masks=False)
    torch.testing.assert_close(handle.kl(), expected, rtol=1e-10, atol=0)


@torch.no_grad()
def test_divergence_scales_with_its_weight():
    model = small_vit()
    handle = attach(model, ising())
    whole = handle.kl()
    handle.detach()
    torch.testing.assert_close(attach(model, ising(kl_weight=0.25)).kl(), whole / 4)


@torch.no_grad()
def test_every_replica_pays_for_itself():
    stacked = isf.stack([small_vit(), small_vit()])
    handle = attach(stacked, ising())
    for r, found in enumerate(handle.kl()):
        single = isf.attach(isf.unstack(stacked, r), ising(), examples=EXAMPLES)
        state = {name: handle.state_dict()[name][r] for name in single.state_dict() if name.endswith(("drop", "prior"))}
        single.load_state_dict({**single.state_dict(), **state})
        torch.testing.assert_close(found, single.kl(), rtol=1e-10, atol=0)


@torch.no_grad()
def test_twice_the_weights_twice_the_divergence():
    hidden, head = randn(5, 3), randn(2, 5, seed=1)
    one, pair = Heads(hidden, [head]), nn.ModuleList([Heads(hidden, [head]), Heads(hidden, [head])])
    readers = pair[0].readers("0.") | pair[1].readers("1.")
    method = ising()  # not trained: q is where it rests, alike in both copies
    single = isf.attach(one, method, examples=EXAMPLES, readers=one.readers()).kl()
    torch.testing.assert_close(isf.attach(pair, method, examples=EXAMPLES, readers=readers).kl(), 2 * single)


@torch.no_grad()
@pytest.mark.parametrize("spike_slab", [False, True])  # True: q differs from weight to weight
def test_cutting_a_layer_in_two_by_rows_changes_nothing(spike_slab):
    hidden, head = randn(5, 3), randn(6, 5, seed=1)
    found = []
    for heads in ([head], [head[:2], head[2:]]):
        model = Heads(hidden, heads)
        handle = isf.attach(model, ising(spike_slab=spike_slab), examples=EXAMPLES, readers=model.readers())
        found.append(handle.kl())
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=0)


def test_gradient_is_that_of_the_formula():
    model = small_vit()
    handle = attach(model, ising())
    names = list(handle.drop_probability())
    handle.kl().mul(3).backward()  # whatever multiplies the loss multiplies its gradient
    leaves = {name: model.get_submodule(name).weight.detach().clone().requires_grad_() for name in names}
    by_hand(handle, leaves.get).mul(3).backward()
    for name in names:
        torch.testing.assert_close(model.get_submodule(name).weight.grad, leaves[name].grad, rtol=1e-10, atol=1e-14)


@torch.no_grad()
def test_model_without_weight_noise_pays_for_means_and_masks():
    model = small_vit()
    handle = attach(model, ising(weight_noise=0.0, spike=None))
    total = 0.0
    for name, q in handle.drop_probability().items():
        m, prior = model.get_submodule(name).weight, handle.state_dict()[f"{name}.prior"]
        total += ((1 - q) * m**2 * q.shape[-1] / (2 * 0.8**2)).sum() + kl_masks(q, prior).sum()
    torch.testing.assert_close(handle.kl(), total / EXAMPLES, rtol=1e-10, atol=0)
