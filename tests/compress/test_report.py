"""Before and after, side by side."""

import json

import pytest
import torch

import isingformer as isf
from isingformer.compress import class_probabilities, compress, compression_report, count_macs
from isingformer.metrics import accuracy, ece, nll


def test_both_sides_are_scored(trained, digits):
    _, (x, y) = digits
    smaller = compress(trained, macs=0.5)
    report = compression_report(trained, smaller, x, y, samples=7, seed=3)
    drawn = isf.predict(trained, x, samples=7, generator=torch.Generator().manual_seed(3)).probs
    once = torch.softmax(smaller(x), -1)
    for side, model, probs in ((report.before, trained, drawn), (report.after, smaller, once)):
        assert side.accuracy == accuracy(probs, y)
        assert (side.nll, side.ece) == (pytest.approx(nll(probs, y)), pytest.approx(ece(probs, y), abs=1e-6))
        assert side.macs == count_macs(model) and side.parameters == sum(p.numel() for p in model.parameters())
    assert (report.before.passes, report.after.passes, report.images) == (7, 1, 360)


def test_it_prints_and_goes_through_json(trained, digits):
    _, (x, y) = digits
    report = compression_report(trained, compress(trained, macs=0.5, bayesian=True), x, y, samples=3)
    text = str(report).splitlines()
    assert [line.split()[0] for line in text[1:]] == [
        "weights", "parameters", "multiply-adds", "passes", "accuracy", "nll", "ece", "on",
    ]  # fmt: skip
    assert json.loads(json.dumps(report.as_dict()))["after"]["passes"] == 3


def test_a_pass_is_timed_where_asked(trained, digits):
    _, (x, y) = digits
    report = compression_report(trained, compress(trained, macs=0.3), x, y, samples=2, latency_batch=4)
    assert report.before.latency_ms > 0 and report.after.latency_ms > 0
    (line,) = [line for line in str(report).splitlines() if line.startswith("ms, 4 images")]
    assert line.split()[3] == f"{report.before.latency_ms:.3g}"
    assert json.loads(json.dumps(report.as_dict()))["latency_batch"] == 4


def test_two_classes_by_one_logit(tiny, batch):
    model = tiny(classes=1)
    x, _ = batch()
    both = class_probabilities(model, x, "binary")
    torch.testing.assert_close(both[:, 1], torch.sigmoid(model(x))[:, 0])


def test_labels_must_fit(trained, digits):
    x = digits[1][0]
    with pytest.raises(ValueError, match=r"images have shape \[360, 1, 8, 8\] and labels \[3\]"):
        compression_report(trained, trained, x, torch.zeros(3))


def test_half_precision_is_compared_with_half_precision(tiny, batch, attached):
    """Both sides' probabilities are float32: those of bfloat16 do not even sum to 1."""
    model = attached(tiny(torch.float32)).bfloat16()
    x, y = batch(64)
    smaller = compress(model, weights=0.9, score="magnitude", structures="units")
    probs = class_probabilities(smaller, x.bfloat16())
    assert probs.dtype == torch.float32 and (probs.sum(-1) - 1).abs().max() < 1e-6
    report = compression_report(model, smaller, x.bfloat16(), y, samples=2)
    assert report.after.nll == pytest.approx(nll(smaller(x.bfloat16()).double().softmax(-1), y), rel=1e-5)
