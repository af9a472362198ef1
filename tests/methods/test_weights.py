"""The posterior of single weights against Monte Carlo and SciPy's quantiles of the mixture."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

import isingformer as isf

DOUBLE = torch.float64
S = 0.2
LOCATIONS, DROPS = (-1.5, -0.1, 0.0, 0.3, 2.0), (0.0, 0.04, 0.5, 0.9, 1.0)


def grid(noise_sd=S):
    m, q = torch.meshgrid(torch.tensor(LOCATIONS, dtype=DOUBLE), torch.tensor(DROPS, dtype=DOUBLE), indexing="ij")
    return isf.WeightPosterior(m, q, noise_sd)


def cdf(w, m, q, s):
    return q * norm.cdf(w, 0, s) + (1 - q) * norm.cdf(w, m, s)


def scipys_quantile(p, m, q):
    return brentq(lambda w: cdf(w, m, q, S) - p, -10, 10, xtol=1e-13)


def each(posterior):
    return zip(posterior.location.flatten().tolist(), posterior.drop.flatten().tolist(), strict=True)


def test_mean_and_sd_are_those_of_many_draws():
    posterior, draws = grid(), 40_000
    g = torch.Generator().manual_seed(0)
    kept = torch.rand(draws, *posterior.drop.shape, dtype=DOUBLE, generator=g) >= posterior.drop
    w = kept * posterior.location + S * torch.randn(kept.shape, dtype=DOUBLE, generator=g)
    assert ((w.mean(0) - posterior.mean).abs() < 6 * posterior.sd / math.sqrt(draws)).all()
    squares = (w - posterior.mean).square()
    assert ((squares.mean(0) - posterior.sd.square()).abs() < 6 * squares.std(0) / math.sqrt(draws)).all()
    low, high = posterior.interval(0.9)
    below, above = (w <= low).double().mean(0), (w <= high).double().mean(0)
    assert (below - 0.05).abs().max() < 6 * math.sqrt(0.05 * 0.95 / draws)
    assert (above - 0.95).abs().max() < 6 * math.sqrt(0.05 * 0.95 / draws)


@pytest.mark.parametrize("level", [0.01, 0.5, 0.9, 0.999])
def test_interval_is_scipys_quantiles_of_the_mixture(level):
    posterior = grid()
    for found, p in zip(posterior.interval(level), ((1 - level) / 2, (1 + level) / 2), strict=True):
        expected = [scipys_quantile(p, m, q) for m, q in each(posterior)]
        np.testing.assert_allclose(found.flatten(), expected, rtol=0, atol=1e-9)


def test_cdf_is_scipys():
    posterior = grid()
    for w in (-1.0, 0.0, 0.4):
        expected = [cdf(w, m, q, S) for m, q in each(posterior)]
        np.testing.assert_allclose(posterior.cdf(torch.tensor(w, dtype=DOUBLE)).flatten(), expected, atol=1e-12)


def test_kept_weights_may_have_a_variance_of_their_own():
    plain = grid()
    own = torch.linspace(0, 0.5, 25, dtype=DOUBLE).view(5, 5)
    posterior, draws = isf.WeightPosterior(plain.location, plain.drop, S, own), 40_000
    g = torch.Generator().manual_seed(0)
    kept = torch.rand(draws, 5, 5, dtype=DOUBLE, generator=g) >= posterior.drop
    w = kept * posterior.location + (S**2 + kept * own).sqrt() * torch.randn(kept.shape, dtype=DOUBLE, generator=g)
    squares = (w - posterior.mean).square()
    assert ((squares.mean(0) - posterior.sd.square()).abs() < 6 * squares.std(0) / math.sqrt(draws)).all()
    for p in (0.05, 0.7):
        share = (w <= posterior.quantile(p)).double().mean(0)
        assert (share - p).abs().max() < 6 * math.sqrt(p * (1 - p) / draws)
    one = posterior.at(3, 2)
    torch.testing.assert_close(one.quantile(0.7), posterior.quantile(0.7)[3, 2])
    surely = isf.WeightPosterior(plain.location, plain.drop, 0.0, torch.zeros(5, 5, dtype=DOUBLE))
    torch.testing.assert_close(surely.quantile(0.97), grid(noise_sd=0.0).quantile(0.97))


def test_default_level_is_ninety_percent():
    posterior = grid()
    for default, stated in zip(posterior.interval(), posterior.interval(0.9), strict=True):
        assert torch.equal(default, stated)


def test_without_noise_a_weight_is_zero_or_its_mean():
    posterior = grid(noise_sd=0.0)
    torch.testing.assert_close(posterior.mean, (1 - posterior.drop) * posterior.location)
    torch.testing.assert_close(posterior.sd, (posterior.drop * (1 - posterior.drop)).sqrt() * posterior.location.abs())
    for p in (0.03, 0.3, 0.97):
        expected = []
        for m, q in each(posterior):
            points = sorted([(0.0, q), (m, 1 - q)])  # the smallest point whose mass below it reaches p
            expected.append(points[0][0] if points[0][1] >= p else points[1][0])
        np.testing.assert_allclose(posterior.quantile(p).flatten(), expected, rtol=0, atol=1e-11)


def test_interval_in_float32_is_close():
    posterior = grid()
    single = isf.WeightPosterior(posterior.location.float(), posterior.drop.float(), S)
    for found, expected in zip(single.interval(0.5), posterior.interval(0.5), strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 1.5, 90])
def test_levels_outside_zero_to_one_are_refused(level):
    with pytest.raises(ValueError, match=rf"level must be in \(0, 1\), got {level}"):
        grid().interval(level)


@torch.no_grad()
def test_posterior_of_an_attached_model_is_that_of_its_passes():
    model = torch.nn.Linear(3, 2, bias=False).double()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        handle = isf.attach(model, isf.DropConnect(p=0.3, weight_noise=0.5), examples=10)
        eye, draws = torch.eye(3, dtype=DOUBLE), 4000
        with isf.sampled(model):
            w = torch.stack([model(eye).T for _ in range(draws)])
    posterior = handle.weight_posterior()[""]
    assert posterior.noise_sd == pytest.approx(0.5 / math.sqrt(3))
    assert ((w.mean(0) - posterior.mean).abs() < 6 * posterior.sd / math.sqrt(draws)).all()
    squares = (w - posterior.mean).square()
    assert ((squares.mean(0) - posterior.sd.square()).abs() < 6 * squares.std(0) / math.sqrt(draws)).all()
