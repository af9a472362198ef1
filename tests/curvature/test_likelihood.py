"""Likelihoods against PyTorch's own losses and distributions, autograd, and counts of many draws."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal

from isingformer.curvature.likelihood import Gaussian, Likelihood, Softmax, likelihood

NAMES = ["softmax", "binary", "multilabel", "gaussian"]
OBJECTS = [*NAMES, Gaussian(variance=0.3)]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(kind, *lead, seed=0):
    """Outputs and fitting targets with these leading axes."""
    width = 1 if kind.name == "binary" else 4
    outputs = 2 * torch.randn(*lead, width, dtype=torch.float64, generator=generator(seed))
    return outputs, kind.sample(outputs, generator(seed + 1))


@pytest.mark.parametrize("given", OBJECTS, ids=str)
def test_curvature_is_the_second_derivative_of_the_nll(given):
    kind = likelihood(given)
    outputs, targets = draw(kind, 3)
    hessian = torch.autograd.functional.hessian(
        lambda f: kind.nll(f.view_as(outputs), targets).sum(), outputs.flatten()
    )
    torch.testing.assert_close(kind.curvature(outputs), hessian.diagonal().view_as(outputs))


@pytest.mark.parametrize("lead", [(), (5,), (2, 3)])
def test_nll_is_that_of_pytorch(lead):
    outputs, targets = draw(likelihood("softmax"), *lead)
    expected = F.cross_entropy(outputs.reshape(-1, 4), targets.flatten(), reduction="none").view(lead)
    torch.testing.assert_close(likelihood("softmax").nll(outputs, targets), expected)

    outputs, targets = draw(likelihood("multilabel"), *lead)
    expected = -(outputs.sigmoid().log() * targets + (1 - outputs.sigmoid()).log() * (1 - targets)).sum(-1)
    torch.testing.assert_close(likelihood("multilabel").nll(outputs, targets), expected)

    outputs, targets = draw(Gaussian(0.3), *lead)
    expected = -Normal(outputs, math.sqrt(0.3)).log_prob(targets).sum(-1)
    torch.testing.assert_close(Gaussian(0.3).nll(outputs, targets), expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64])
def test_binary_takes_the_logit_with_or_without_its_axis(dtype):
    kind = likelihood("binary")
    outputs, targets = draw(kind, 5)  # [5, 1], [5]
    p = outputs.sigmoid().squeeze(-1)
    expected = -torch.where(targets.bool(), p, 1 - p).log()
    assert targets.shape == (5,) and set(targets.tolist()) == {0, 1}
    for f, y in [(outputs, targets), (outputs, targets[:, None]), (outputs[:, 0], targets)]:
        torch.testing.assert_close(kind.nll(f, y.to(dtype)), expected)
        assert kind.curvature(f).shape == f.shape
        assert kind.sample(f, generator()).shape == (5,)
        torch.testing.assert_close(kind.probabilities(f), torch.stack([1 - p, p], -1))


def test_binary_is_a_softmax_over_two_logits():
    f = torch.randn(6, 1, dtype=torch.float64, generator=generator())
    y = torch.tensor([0, 1, 1, 0, 1, 0])
    two = torch.cat([torch.zeros_like(f), f], -1)
    torch.testing.assert_close(likelihood("binary").nll(f, y), likelihood("softmax").nll(two, y))
    torch.testing.assert_close(likelihood("binary").probabilities(f), likelihood("softmax").probabilities(two))
    torch.testing.assert_close(likelihood("binary").curvature(f), likelihood("softmax").curvature(two)[:, 1:])


def test_the_default_gaussian_is_the_squared_error():
    kind = likelihood("gaussian")
    outputs, targets = draw(kind, 5)
    torch.testing.assert_close(kind.curvature(outputs), torch.full_like(outputs, 2))
    difference = kind.nll(outputs, targets) - (outputs - targets).square().sum(-1)
    torch.testing.assert_close(difference, torch.full_like(difference, 4 * 0.5 * math.log(math.pi)))


@pytest.mark.parametrize("name", ["softmax", "binary", "multilabel"])
@pytest.mark.parametrize("seed", range(3))
def test_draws_come_as_often_as_their_probability(name, seed):
    kind = likelihood(name)
    outputs, _ = draw(kind, 2, seed=seed)
    n = 20_000
    labels = kind.sample(outputs.expand(n, *outputs.shape), generator(seed))
    p = kind.probabilities(outputs)
    counted = labels if name == "multilabel" else F.one_hot(labels.long(), p.shape[-1]).double()
    shares = counted.mean(0)
    # Six standard deviations of a share of n draws.
    assert ((shares - p).abs() <= 6 * (p * (1 - p) / n).sqrt() + 1e-12).all()


def test_gaussian_draws_have_the_mean_and_variance():
    n, variance = 20_000, 0.3
    outputs, _ = draw(Gaussian(variance), 2)
    y = Gaussian(variance).sample(outputs.expand(n, *outputs.shape), generator())
    assert ((y.mean(0) - outputs).abs() <= 6 * math.sqrt(variance / n)).all()
    assert ((y.var(0) - variance).abs() <= 6 * variance * math.sqrt(2 / n)).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_generator_decides_the_draw(name):
    kind = likelihood(name)
    outputs, targets = draw(kind, 50)
    assert torch.equal(targets, kind.sample(outputs, generator(1)))
    assert not torch.equal(targets, kind.sample(outputs, generator(2)))
    assert not kind.sample(outputs.requires_grad_(), generator()).requires_grad


def test_selection():
    assert [likelihood(name).name for name in NAMES] == NAMES
    mine = Gaussian(2.0)
    assert likelihood(mine) is mine and isinstance(mine, Likelihood)
    for wrong in ["poisson", "Softmax", 3, Softmax]:
        with pytest.raises(ValueError, match="expected one of softmax, binary, multilabel, gaussian"):
            likelihood(wrong)


@pytest.mark.parametrize(
    ("name", "outputs", "targets", "message"),
    [
        (
            "softmax",
            torch.zeros(2, 3),
            torch.zeros(2),
            r"targets are torch.float32; expected integer .*use targets.long",
        ),
        ("softmax", torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.long), r"shape \[2, 1\]; expected \[2\]"),
        ("softmax", torch.zeros(2, 3), torch.tensor([0, 3]), "run from 0 to 3; expected 0 to 2"),
        ("softmax", torch.zeros(2, 3), torch.tensor([-100, 1]), "run from -100 to 1; expected 0 to 2"),
        ("softmax", torch.tensor(1.0), torch.tensor(0), r"single number; expected \[..., C\]"),
        ("binary", torch.zeros(2, 1), torch.zeros(3), r"shape \[3\]; expected \[2\]"),
        ("binary", torch.zeros(2, 1), torch.tensor([1, 2]), "run from 1 to 2; expected 0 to 1"),
        ("multilabel", torch.zeros(2, 3), torch.zeros(2), r"shape \[2\]; expected \[2, 3\]"),
        ("multilabel", torch.zeros(1, 2), torch.tensor([[-1, 1]]), "run from -1 to 1; expected 0 to 1"),
        ("gaussian", torch.zeros(2, 1), torch.zeros(2), r"shape \[2\]; expected \[2, 1\]"),
        ("gaussian", torch.zeros(2), torch.zeros(2, dtype=torch.bool), "torch.bool; expected real numbers"),
    ],
)
def test_wrong_targets_are_refused(name, outputs, targets, message):
    with pytest.raises(ValueError, match=message):
        likelihood(name).nll(outputs, targets)


def test_what_a_gaussian_refuses():
    with pytest.raises(ValueError, match="a regression has none"):
        likelihood("gaussian").probabilities(torch.zeros(2, 1))
    for variance in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="expected a positive number"):
            Gaussian(variance)
