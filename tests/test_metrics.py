"""Scores, against scikit-learn, brute force and cases done by hand."""

import itertools
import json
import math

import numpy as np
import pytest
import sklearn.metrics as sk
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchmetrics.functional.classification import multiclass_calibration_error

from isingformer import metrics
from isingformer.predict import Prediction

FUNCTIONS = {
    name: getattr(metrics, name) for name in ("accuracy", "one_vs_all", "nll", "brier", "ece", "reliability", "scores")
}
seeds = st.integers(0, 2**32 - 1)
# few distinct values, so that ties are the rule
cases = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=30)


def made(seed=0, n=200, c=5, sharpness=2.0, dtype=torch.float64):
    """Predictions of a model that is right more often than not, and sometimes sure."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, c, generator=generator, dtype=torch.float64)
    targets = logits.softmax(-1).multinomial(1, generator=generator)[:, 0]
    return logits.softmax(-1).to(dtype), targets


def one_hot(classes, c):
    return torch.nn.functional.one_hot(torch.tensor(classes), c).double()


def top(confidences, right):
    """Two-class predictions with the given confidences (0.5 or more) in class 0, and targets."""
    p = torch.tensor(confidences, dtype=torch.float64)
    return torch.stack([p, 1 - p], 1), 1 - torch.tensor(right).long()


@pytest.mark.parametrize("n, c", [(1, 2), (3, 7), (50, 2), (400, 10)])  # (3, 7): most classes are absent
@pytest.mark.parametrize("seed", range(3))
def test_rates_agree_with_scikit_learn(seed, n, c):
    p, y = made(seed, n, c)
    guess, labels = p.argmax(1).numpy(), range(c)
    averaged = {"labels": labels, "average": "macro", "zero_division": 0}
    rates = metrics.one_vs_all(p, y)
    assert metrics.accuracy(p, y) == pytest.approx(sk.accuracy_score(y, guess), abs=1e-12)
    assert rates.recall == pytest.approx(sk.recall_score(y, guess, **averaged), abs=1e-12)
    assert rates.precision == pytest.approx(sk.precision_score(y, guess, **averaged), abs=1e-12)
    assert rates.f1 == pytest.approx(sk.f1_score(y, guess, **averaged), abs=1e-12)
    by_class = sk.multilabel_confusion_matrix(y, guess, labels=labels)  # [C, 2, 2]: tn fp / fn tp
    negatives = by_class[:, 0].sum(1)
    wanted = np.divide(by_class[:, 0, 1], negatives, out=np.zeros(c), where=negatives > 0).mean()
    assert rates.false_positive_rate == pytest.approx(wanted, abs=1e-12)


def test_absent_classes_count_and_zero_over_zero_is_zero():
    # targets are class 0 alone; class 1 is predicted once, class 2 never appears
    rates = metrics.one_vs_all(one_hot([0, 0, 0, 1], 3), torch.zeros(4, dtype=torch.long))
    assert rates.recall == pytest.approx(0.75 / 3)
    assert rates.precision == pytest.approx(1 / 3)
    assert rates.f1 == pytest.approx((2 * 3 / (2 * 3 + 1)) / 3)
    assert rates.false_positive_rate == pytest.approx((0 + 1 / 4 + 0) / 3)  # class 0 has no negatives


def test_all_right_and_all_wrong():
    p = one_hot([0, 1, 2], 3)
    good = metrics.scores(p, torch.tensor([0, 1, 2]), epistemic=torch.rand(3))
    assert (good.accuracy, good.recall, good.precision, good.f1, good.false_positive_rate) == (1, 1, 1, 1, 0)
    assert good.nll == good.brier == good.ece == good.aurc == good.aurc_epistemic == 0
    assert good.entropy_wrong is good.epistemic_wrong is good.error_auroc is good.error_auroc_epistemic is None
    bad = metrics.scores(p, torch.tensor([1, 2, 0]))
    assert (bad.accuracy, bad.recall, bad.precision, bad.f1, bad.false_positive_rate) == (0, 0, 0, 0, 0.5)
    assert (bad.brier, bad.ece, bad.aurc) == (2, 1, 1)
    assert bad.entropy_right is bad.error_auroc is None and bad.entropy_wrong == 0


@pytest.mark.parametrize("seed", range(3))
def test_nll_and_brier_agree_with_others(seed):
    p, y = made(seed, c=4)
    assert metrics.nll(p, y) == pytest.approx(sk.log_loss(y.numpy(), p.numpy(), labels=range(4)), rel=1e-9)
    wanted = np.mean([sum((p[i, c].item() - (c == y[i].item())) ** 2 for c in range(4)) for i in range(len(y))])
    assert metrics.brier(p, y) == pytest.approx(float(wanted), rel=1e-9)
    two, labels = made(seed, c=2)
    assert metrics.brier(two, labels) == pytest.approx(
        2 * sk.brier_score_loss(labels.numpy(), two[:, 1].numpy()), rel=1e-9
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_probability_of_zero_costs_the_same_in_every_precision(dtype):
    p = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=dtype)
    assert metrics.nll(p, torch.tensor([0, 1])) == pytest.approx(126 * math.log(2) / 2)


def test_calibration_by_hand():
    p, y = top([0.55, 0.58, 0.72, 1.0, 1.0], [True, False, True, True, False])
    table = metrics.reliability(p, y, bins=10)
    assert [b.count for b in table] == [0, 0, 0, 0, 0, 2, 0, 1, 0, 2]
    assert (table[5].lower, table[5].upper) == (0.5, 0.6)
    assert (table[5].confidence, table[5].accuracy) == (pytest.approx(0.565), 0.5)
    assert (table[9].confidence, table[9].accuracy) == (1.0, 0.5)
    assert table[0].confidence is table[0].accuracy is None
    assert metrics.ece(p, y, bins=10) == pytest.approx((2 * 0.065 + 1 * 0.28 + 2 * 0.5) / 5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(dtype):
    for k in range(8, 16):
        p = torch.tensor([[k / 15, 1 - k / 15]], dtype=dtype)
        (full,) = [b for b in metrics.reliability(p, torch.tensor([0])) if b.count]
        assert full.upper == k / 15
    above = torch.nextafter(torch.tensor(0.6, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    (full,) = [b for b in metrics.reliability(torch.stack([above, 1 - above])[None], torch.tensor([0])) if b.count]
    assert full.lower == 9 / 15


def test_a_confidence_that_rounding_put_above_one_is_in_the_last_bin():
    table = metrics.reliability(torch.tensor([[1.000001, 0.0]]), torch.tensor([0]))
    assert table[-1].count == 1


@pytest.mark.parametrize("bins", [1, 4, 15])
@pytest.mark.parametrize("seed", range(3))
def test_calibration_error_agrees_with_torchmetrics_off_the_edges(seed, bins):
    p, y = made(seed)
    wanted = multiclass_calibration_error(p, y, num_classes=5, n_bins=bins)
    assert metrics.ece(p, y, bins=bins) == pytest.approx(wanted.item(), abs=1e-5)  # it counts in float32


@settings(deadline=None)
@given(seeds, st.integers(1, 40), st.integers(2, 6), st.floats(0, 50), st.integers(1, 20))
def test_calibration_error_is_the_tables_gap_in_bounds(seed, n, c, sharpness, bins):
    p, y = made(seed, n, c, sharpness)
    table = metrics.reliability(p, y, bins=bins)
    full = [b for b in table if b.count]
    error = metrics.ece(p, y, bins=bins)
    assert 0 <= error <= 1
    assert error == pytest.approx(sum(b.count / n * abs(b.accuracy - b.confidence) for b in full), abs=1e-12)
    assert len(table) == bins and sum(b.count for b in table) == n
    assert all(b.lower - 1e-12 <= b.confidence <= b.upper + 1e-12 for b in full)
    assert sum(b.count * b.accuracy for b in full) == pytest.approx(n * metrics.accuracy(p, y))


def test_the_scores_hold_ten_points_of_the_risk_coverage_curve():
    p, y = made(3, 25, 4)
    uncertainty = torch.special.entr(p).sum(-1)
    order = uncertainty.argsort()
    wrong = (p.argmax(-1) != y)[order].double()
    points = metrics.scores(p, y).risk_coverage
    kept = [3, 5, 8, 10, 13, 15, 18, 20, 23, 25]  # tenths of 25, rounded up
    assert [c for c, _ in points] == pytest.approx([k / 25 for k in kept])
    assert [r for _, r in points] == pytest.approx([float(wrong[:k].mean()) for k in kept])
    assert points[-1][1] == pytest.approx(1 - metrics.accuracy(p, y))
    assert len(metrics.scores(p[:1], y[:1]).risk_coverage) == 10


@settings(deadline=None)
@given(seeds, st.integers(1, 40), st.integers(2, 6))
def test_the_order_of_examples_does_not_matter(seed, n, c):
    p, y = made(seed, n, c)
    epistemic = p[:, 0]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    one = metrics.scores(p, y, epistemic=epistemic).as_dict()
    other = metrics.scores(p[order], y[order], epistemic=epistemic[order]).as_dict()
    curve = torch.tensor(one.pop("risk_coverage"))
    torch.testing.assert_close(curve, torch.tensor(other.pop("risk_coverage")))
    pairs = [(one, other), *zip(one.pop("reliability"), other.pop("reliability"), strict=True)]
    for a, b in pairs:
        for name, value in a.items():
            assert (b[name] is None) if value is None else b[name] == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_error_auroc_agrees_with_scikit_learn(seed):
    p, y = made(seed)
    right = p.argmax(1) == y
    for uncertainty in (torch.special.entr(p).sum(1), (20 * p[:, 0]).round(), 100 + p[:, 1]):
        wanted = sk.roc_auc_score(~right, uncertainty)
        assert metrics.error_auroc(uncertainty, right) == pytest.approx(wanted, abs=1e-6)


def test_error_auroc_by_hand():
    right = torch.tensor([True, True, False])
    assert metrics.error_auroc(torch.tensor([0.1, 0.2, 5.0]), right) == 1
    assert metrics.error_auroc(torch.tensor([6.0, 7.0, 5.0]), right) == 0
    assert metrics.error_auroc(torch.tensor([2.0, 2.0, 2.0]), right) == 0.5
    assert metrics.error_auroc(torch.tensor([1.0, 2.0, 2.0]), right) == 0.75
    assert metrics.error_auroc(torch.tensor([1.0]), torch.tensor([True])) is None
    assert metrics.error_auroc(torch.tensor([1.0, 2.0]), torch.tensor([False, False])) is None


@settings(deadline=None)
@given(cases, st.floats(0.1, 100), st.floats(-1000, 1000))
def test_only_the_order_of_uncertainties_matters(case, scale, shift):
    u, right = (torch.tensor(column) for column in zip(*case, strict=True))
    moved = scale * u.double() ** 3 + shift
    assert metrics.error_auroc(u.double(), right) == metrics.error_auroc(moved, right)
    assert metrics.aurc(u.double(), right) == metrics.aurc(moved, right)


def test_out_of_distribution_auroc():
    inside, outside = torch.tensor([0.1, 0.5, 2.0]), torch.tensor([2.0, 30.0])
    assert metrics.ood_auroc(inside, outside) == pytest.approx(5.5 / 6)
    assert metrics.ood_auroc(outside, inside) == pytest.approx(0.5 / 6)
    wanted = sk.roc_auc_score([0, 0, 0, 1, 1], torch.cat([inside, outside]))
    assert metrics.ood_auroc(inside, outside) == pytest.approx(wanted)


def test_risk_and_coverage_by_hand():
    u = torch.tensor([0.3, 0.1, 0.2, 0.2, 0.9])
    right = torch.tensor([True, True, False, True, False])
    coverage, risk = metrics.risk_coverage(u, right)
    assert coverage.tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert risk.tolist() == pytest.approx([0, 0.5 / 2, 1 / 3, 1 / 4, 2 / 5])
    assert metrics.aurc(u, right) == pytest.approx((0.25 + 1 / 3 + 0.25 + 0.4) / 5)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6))
def test_risk_is_the_mean_over_all_orders_of_the_ties(case):
    curves = []
    for order in itertools.permutations(case):
        if all(a[0] <= b[0] for a, b in itertools.pairwise(order)):
            wrong = np.array([not right for _, right in order])
            curves.append(wrong.cumsum() / np.arange(1, len(case) + 1))
    u, right = (torch.tensor(column) for column in zip(*case, strict=True))
    assert metrics.risk_coverage(u.double(), right)[1].tolist() == pytest.approx(np.mean(curves, 0).tolist())


@settings(deadline=None)
@given(cases)
def test_area_lies_between_the_best_and_the_worst_order(case):
    u, right = (torch.tensor(column) for column in zip(*case, strict=True))
    area, n = metrics.aurc(u.double(), right), len(case)
    wrong = np.sort([not r for _, r in case])
    best, worst = ((order.cumsum() / np.arange(1, n + 1)).mean() for order in (wrong, wrong[::-1]))
    assert best - 1e-12 <= area <= worst + 1e-12
    assert metrics.risk_coverage(u.double(), right)[1][-1].item() == pytest.approx(wrong.mean(), abs=1e-12)


def test_uncertainty_of_right_and_wrong():
    right = torch.tensor([True, False, True])
    assert metrics.right_and_wrong(torch.tensor([1.0, 5.0, 2.0]), right) == (1.5, 5.0)
    assert metrics.right_and_wrong(torch.tensor([1.0]), torch.tensor([False])) == (None, 1.0)


def test_scores_gather_the_parts():
    samples = torch.stack([made(seed, 60, 4)[0] for seed in range(3)])
    prediction, targets = Prediction(samples), made(0, 60, 4)[1]
    probs, entropy, epistemic = prediction.probs, prediction.entropy, prediction.epistemic
    right = prediction.classes == targets
    got = metrics.scores(probs, targets, epistemic=epistemic, bins=10)
    assert got == metrics.scores(probs, targets, entropy=entropy, epistemic=epistemic, bins=10)
    assert got.examples == 60 and len(got.reliability) == 10
    assert got.ece == metrics.ece(probs, targets, bins=10)
    for name in ("accuracy", "nll", "brier"):
        assert getattr(got, name) == FUNCTIONS[name](probs, targets)
    assert (got.entropy_right, got.entropy_wrong) == metrics.right_and_wrong(entropy, right)
    assert (got.epistemic_right, got.epistemic_wrong) == metrics.right_and_wrong(epistemic, right)
    assert (got.error_auroc, got.aurc) == (metrics.error_auroc(entropy, right), metrics.aurc(entropy, right))
    assert got.error_auroc_epistemic == metrics.error_auroc(epistemic, right)
    assert got.aurc_epistemic == metrics.aurc(epistemic, right)


def test_scores_as_json_and_as_text():
    one = metrics.scores(torch.tensor([[0.3, 0.7]]), torch.tensor([1]))  # a single example: much is undefined
    stored = json.dumps(one.as_dict(), allow_nan=False)
    assert json.loads(stored) == one.as_dict()
    assert one.as_dict()["error_auroc"] is None and one.as_dict()["aurc_epistemic"] is None
    assert one.as_dict()["reliability"][10] == {
        "lower": 10 / 15, "upper": 11 / 15, "count": 1, "confidence": pytest.approx(0.7), "accuracy": 1.0,
    }  # fmt: skip
    lines = dict(line.split() for line in str(one).splitlines())
    assert lines["examples"] == "1" and lines["accuracy"] == "1.0000" and lines["error_auroc"] == "-"


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_lower_precision(dtype, tolerance):
    p, y = made(n=500)
    low = metrics.scores(p.to(dtype), y, epistemic=p[:, 0].to(dtype)).as_dict()
    high = metrics.scores(p, y, epistemic=p[:, 0]).as_dict()
    for name in ("accuracy", "f1", "nll", "brier", "entropy_wrong", "epistemic_right", "error_auroc", "aurc"):
        assert low[name] == pytest.approx(high[name], abs=tolerance, rel=tolerance)


def test_gradients_are_not_asked_for():
    logits = torch.randn(4, 3, requires_grad=True)
    assert isinstance(metrics.nll(logits.softmax(-1), torch.tensor([0, 1, 2, 0], dtype=torch.int32)), float)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_numbers():
    p, y = made(dtype=torch.float32)
    assert metrics.scores(p.cuda(), y.cuda(), epistemic=p[:, 0].cuda()) == metrics.scores(p, y, epistemic=p[:, 0])


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "probs, targets, message",
    [
        (torch.tensor([[2.0, -1.0]]), [0], "got row 0 with minimum -1 and sum 1; apply softmax to logits first"),
        (torch.tensor([[0.5, 0.5], [3.0, 4.0]]), [0, 0], "got row 1 with minimum 3 and sum 7; apply softmax"),
        (torch.tensor([[0.5, 0.499]]), [0], "sum 0.999"),
        (torch.tensor([[0.5, math.nan]]), [0], "expected finite numbers, got nan"),
        (torch.zeros(0, 3), [], r"at least one example and two classes.*got a tensor of shape \(0, 3\)"),
        (torch.ones(4, 1), [0] * 4, r"two classes \(binary: \[1 - p, p\]\), got a tensor of shape \(4, 1\)"),
        (torch.ones(2), [0, 0], r"expected \[N, C\]"),
        (torch.ones(2, 2, dtype=torch.long), [0, 0], "floating-point tensor of probabilities.*int64"),
        ([[0.5, 0.5]], [0], "got list"),
        (torch.full((2, 2), 0.5), [0, 2], "expected classes 0 ... 1, as probs has 2, got 2"),
        (torch.full((2, 2), 0.5), [-1, 0], "got -1"),
        (torch.full((2, 2), 0.5), [0], r"targets: expected an integer tensor of shape \(2,\)"),
        (torch.full((2, 2), 0.5), [0.0, 1.0], "targets: expected an integer tensor.*float32"),
        (torch.full((2, 2), 0.5), [True, False], "targets: expected an integer tensor.*bool"),
    ],
)
def test_bad_probabilities_and_targets(name, probs, targets, message):
    with pytest.raises(ValueError, match=message):
        FUNCTIONS[name](probs, torch.tensor(targets) if targets else torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize("function", [metrics.error_auroc, metrics.aurc, metrics.right_and_wrong])
@pytest.mark.parametrize(
    "uncertainty, right, message",
    [
        (torch.tensor([1.0, math.nan]), torch.tensor([True, False]), "uncertainty: expected finite numbers, got nan"),
        (torch.zeros(0), torch.zeros(0).bool(), "at least one"),
        (torch.ones(2, 1), torch.tensor([True, False]), r"expected a floating-point tensor \[N\]"),
        (torch.ones(2), torch.tensor([1, 0]), "right: expected a bool tensor.*int64"),
        (torch.ones(2), torch.tensor([True]), r"right: expected a bool tensor of shape \(2,\)"),
    ],
)
def test_bad_uncertainties(function, uncertainty, right, message):
    with pytest.raises(ValueError, match=message):
        function(uncertainty, right)


def test_other_bad_arguments():
    p, y = made(n=3)
    with pytest.raises(ValueError, match="outside: expected a floating-point tensor"):
        metrics.ood_auroc(torch.ones(2), torch.ones(0))
    for bins in (0, 1.5):
        with pytest.raises(ValueError, match=f"bins: expected a whole number of at least 1, got {bins}"):
            metrics.ece(p, y, bins=bins)
    with pytest.raises(ValueError, match=r"right: expected a bool tensor of shape \(2,\)"):
        metrics.scores(p, y, epistemic=torch.ones(2))
