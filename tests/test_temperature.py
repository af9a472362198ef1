"""Temperature scaling: dividing the logits of every pass by one number, fitted on held-out data."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from isingformer import metrics
from isingformer.predict import Prediction, fit_temperature
from isingformer.predict.temperature import _golden_section

temperatures = st.floats(0.05, 20)


def logits_of_passes(seed=0, t=4, n=300, c=5, spread=1.0, dtype=torch.float64):
    """Passes that agree roughly: [T, N, C], and a generator."""
    generator = torch.Generator().manual_seed(seed)
    shared = 2 * torch.randn(n, c, generator=generator, dtype=torch.float64)
    logits = shared + spread * torch.randn(t, n, c, generator=generator, dtype=torch.float64)
    return logits.to(dtype), generator


def draw(probs, generator):
    return probs.multinomial(1, generator=generator)[:, 0]


@settings(deadline=None)
@given(temperatures, st.integers(0, 2**32 - 1))
def test_tempering_divides_the_logits(temperature, seed):
    logits, _ = logits_of_passes(seed, n=5)
    classes = Prediction(logits.softmax(-1)).tempered(temperature).samples
    torch.testing.assert_close(classes, (logits / temperature).softmax(-1))
    labels = Prediction(logits.sigmoid(), per_label=True).tempered(temperature).samples
    torch.testing.assert_close(labels, (logits / temperature).sigmoid())


@settings(deadline=None)
@given(temperatures, st.integers(0, 2**32 - 1))
def test_each_pass_keeps_its_order_of_classes(temperature, seed):
    samples = logits_of_passes(seed, n=5, dtype=torch.float32)[0].softmax(-1)
    tempered = Prediction(samples).tempered(temperature).samples
    torch.testing.assert_close(tempered.sum(-1), torch.ones(4, 5))
    assert torch.equal(tempered.argmax(-1), samples.argmax(-1))


def test_temperature_one_changes_nothing():
    samples = torch.tensor([[[1.0, 0.0, 0.0]], [[0.2, 0.3, 0.5]]])
    assert torch.equal(Prediction(samples).tempered(1).samples, samples)
    nearly = Prediction(samples).tempered(1 + 1e-7).samples  # no jump beside 1 either
    torch.testing.assert_close(nearly, samples)


def test_temperatures_multiply():
    prediction = Prediction(logits_of_passes()[0].softmax(-1))
    torch.testing.assert_close(prediction.tempered(2).tempered(3).samples, prediction.tempered(6).samples)


def test_uncertainty_follows_and_the_rest_stays():
    samples = logits_of_passes(t=6)[0].softmax(-1)
    prediction = Prediction(samples, weight_draws=3)
    hot, cold = prediction.tempered(3), prediction.tempered(0.3)
    assert hot.weight_draws == 3 and not hot.per_label
    assert torch.equal(prediction.samples, samples)
    for p in (hot, cold):
        torch.testing.assert_close(p.entropy, p.aleatoric + p.architecture + p.weights)
    assert (hot.aleatoric > prediction.aleatoric).all() and (cold.aleatoric < prediction.aleatoric).all()
    low, high = hot.interval(0.5)
    expected = torch.quantile(hot.samples, torch.tensor([0.25, 0.75], dtype=torch.float64), dim=0)
    assert torch.equal(torch.stack([low, high]), expected)
    assert Prediction(samples, per_label=True).tempered(2).per_label


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_zeros_count_as_the_smallest_positive_number(dtype):
    smallest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    samples = torch.tensor([[[1.0, 0.0]]], dtype=dtype)
    stand_in = torch.tensor([[[1.0, smallest]]], dtype=dtype)
    assert stand_in[0, 0, 1] > 0  # it is representable, so the stand-in's logit is the clamp's
    for temperature in (0.05, 2.0, 20.0):
        got = Prediction(samples).tempered(temperature).samples
        assert got.dtype == dtype
        torch.testing.assert_close(got, Prediction(stand_in).tempered(temperature).samples)
    odds = math.exp(math.log2(smallest) * math.log(2) / 20)
    hot = Prediction(samples).tempered(20).samples
    assert hot[0, 0, 1].item() == pytest.approx(odds / (1 + odds), rel=8 * torch.finfo(dtype).eps)


def test_labels_of_zero_and_one_stay_finite():
    samples = torch.tensor([[[0.0, 1.0, 0.5]]])
    cold, hot = (Prediction(samples, per_label=True).tempered(t).samples for t in (0.05, 20.0))
    torch.testing.assert_close(cold, samples)
    low, high = math.exp(-149 * math.log(2) / 20), math.exp(24 * math.log(2) / 20)  # the least p and 1 - p of float32
    torch.testing.assert_close(hot, torch.tensor([[[low / (1 + low), high / (1 + high), 0.5]]]))


@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf])
def test_bad_temperatures(temperature):
    with pytest.raises(ValueError, match=f"temperature must be positive and finite, got {temperature}"):
        Prediction(torch.full((1, 1, 2), 0.5)).tempered(temperature)


def nll_by_numpy(samples, targets, temperature, per_label=False):
    """The definition, step by step: temper every pass, average, take the log."""
    powered = samples ** (1 / temperature)
    rest = (1 - samples) ** (1 / temperature) if per_label else None
    mean = (powered / (powered + rest) if per_label else powered / powered.sum(-1, keepdims=True)).mean(0)
    if per_label:
        return -np.log(np.where(targets == 1, mean, 1 - mean)).mean()
    return -np.log(np.take_along_axis(mean, targets[:, None], 1)).mean()


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])  # underconfident, nearly right, overconfident
@pytest.mark.parametrize("t", [1, 4])
@pytest.mark.parametrize("per_label", [False, True])
def test_fit_agrees_with_scipy(sharpness, t, per_label):
    logits, generator = logits_of_passes(1, t=t)
    if per_label:
        samples, targets = (sharpness * logits).sigmoid(), torch.bernoulli(logits[0].sigmoid(), generator=generator)
    else:
        samples, targets = (sharpness * logits).softmax(-1), draw(logits[0].softmax(-1), generator)
    got = fit_temperature(Prediction(samples, per_label=per_label), targets)
    best = minimize_scalar(
        lambda log_t: nll_by_numpy(samples.numpy(), targets.numpy(), math.exp(log_t), per_label),
        bounds=(math.log(0.05), math.log(20)),
        method="bounded",
        options={"xatol": 1e-8},
    )
    assert math.log(got) == pytest.approx(best.x, abs=1e-5)


@pytest.mark.parametrize("known", [0.25, 1.0, 5.0])
@pytest.mark.parametrize("t", [1, 3])
def test_a_known_temperature_is_found_again(known, t):
    logits, generator = logits_of_passes(t=t, n=20_000)
    targets = draw(logits.softmax(-1).mean(0), generator)  # calibrated by construction
    prediction = Prediction((logits * known).softmax(-1))
    # the fit's standard error is 1 / sqrt(N * information), the information being the curvature of the NLL in log T
    step = 0.01
    below, here, above = (
        nll_by_numpy(prediction.samples.numpy(), targets.numpy(), known * math.exp(k * step)) for k in (-1, 0, 1)
    )
    error = (20_000 * (below - 2 * here + above) / step**2) ** -0.5
    assert error < 0.02
    assert math.log(fit_temperature(prediction, targets) / known) == pytest.approx(0, abs=5 * error)


def test_fit_lowers_nll_and_calibration_error_on_other_examples():
    logits, generator = logits_of_passes(n=4000)
    targets = draw(logits.softmax(-1).mean(0), generator)
    sure = Prediction((3 * logits).softmax(-1))
    held_out, rest = (dataclasses.replace(sure, samples=part) for part in sure.samples.split(2000, dim=1))
    cooled = rest.tempered(fit_temperature(held_out, targets[:2000]))
    for score in (metrics.nll, metrics.ece):
        assert score(cooled.probs, targets[2000:]) < score(rest.probs, targets[2000:])


def test_underflowed_probabilities_still_speak_against_overconfidence():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 500, 3, generator=generator)
    targets = draw(logits[0].softmax(-1), generator)
    samples = (100 * logits).softmax(-1)
    assert (samples == 0).any()
    # zeros hide how far off they were, so the fit stays below 100 and inside the range; it ends at its upper end
    assert fit_temperature(Prediction(samples), targets) == pytest.approx(20)


def test_ends_of_the_range_and_indifference():
    certain = Prediction(torch.tensor([[[0.9, 0.1], [0.2, 0.8]]]))
    assert fit_temperature(certain, torch.tensor([0, 1])) == pytest.approx(0.05)
    assert fit_temperature(certain, torch.tensor([1, 0])) == pytest.approx(20)
    assert fit_temperature(Prediction(torch.full((2, 3, 4), 0.25)), torch.tensor([0, 1, 2])) == 1
    assert fit_temperature(Prediction(torch.tensor([[[1.0, 0.0]]])), torch.tensor([0])) == 1


def test_the_best_of_two_minima():
    # [T=2, N=4], log odds of the true class; a search over the whole range at once ends in the wrong minimum
    z = torch.tensor([[0.0, 0.0, -0.1, 13.2], [-5.2, -5.4, 3.0, 1.2]], dtype=torch.float64)
    samples, targets = torch.stack([z, torch.zeros_like(z)], -1).softmax(-1), torch.zeros(4, dtype=torch.long)

    def nll(temperature):
        return nll_by_numpy(samples.numpy(), targets.numpy(), temperature)

    assert nll(0.34) < min(nll(0.2), nll(0.6)) and nll(12) < nll(0.34) - 0.1 and nll(12) < nll(20)
    assert fit_temperature(Prediction(samples), targets) == pytest.approx(12, rel=0.05)


def test_golden_section_finds_a_minimum_anywhere():
    for least in (-2.0, -0.7, 0.0, 1.3, 3.0):
        assert _golden_section(lambda x, m=least: abs(x - m), -2.0, 3.0) == pytest.approx(least, abs=1e-6)


def test_fit_is_deterministic_and_takes_replicas_and_low_precision():
    logits, generator = logits_of_passes(n=200)
    targets = draw(logits[0].softmax(-1), generator)
    samples = (3 * logits).softmax(-1)
    wanted = fit_temperature(Prediction(samples), targets)
    assert fit_temperature(Prediction(samples, weight_draws=2), targets) == wanted
    twice = Prediction(torch.stack([samples, samples], 1))  # [T, 2, N, C]
    assert fit_temperature(twice, targets.expand(2, 200)) == pytest.approx(wanted, rel=1e-5)
    assert fit_temperature(Prediction(samples.float()), targets) == pytest.approx(wanted, rel=1e-4)
    assert fit_temperature(Prediction(samples.bfloat16()), targets) == pytest.approx(wanted, rel=2e-2)


@pytest.mark.parametrize(
    "targets, message",
    [
        (torch.tensor([0, 1]), r"targets must have shape \(3,\), got a tensor of shape \(2,\)"),
        ([0, 1, 2], "got list"),
        (torch.tensor([0, 1, 4]), "whole numbers 0 ... 3, got 4"),
        (torch.tensor([0, -1, 1]), "got -1"),
        (torch.tensor([0, 0.5, 1]), "got 0.5"),
    ],
)
def test_bad_targets(targets, message):
    with pytest.raises(ValueError, match=message):
        fit_temperature(Prediction(torch.full((2, 3, 4), 0.25)), targets)


def test_bad_predictions():
    with pytest.raises(ValueError, match="targets must have shape"):
        fit_temperature(Prediction(torch.full((2, 0, 4), 0.25)), torch.zeros(0, dtype=torch.long))
    with pytest.raises(ValueError, match="no probabilities; look for NaN"):
        fit_temperature(Prediction(torch.tensor([[[math.nan, 1.0]]])), torch.tensor([0]))
    with pytest.raises(ValueError, match=r"whole numbers 0 \.\.\. 1, got 2"):
        fit_temperature(Prediction(torch.full((1, 2, 2), 0.5), per_label=True), torch.tensor([[0, 1], [2, 0]]))
