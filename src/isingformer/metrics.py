"""Scores of predictive distributions: what is right, what is calibrated, and whether the uncertainty knows the errors.

Axes: N examples, C classes. ``probs [N, C]`` are probabilities, never logits, and are used as they are; ``targets [N]``
    are class numbers; ``right [N]`` says which predictions are right; an uncertainty ``[N]`` is larger where the model
    is less sure.

Whatever the tensors' device and precision, the scores are computed on the CPU in float64, so that they do not depend on
either. A score that is not defined, such as the mean entropy of wrong predictions where none is wrong, is None.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SMALLEST_PROBABILITY = torch.finfo(torch.float32).tiny  # 1.2e-38: an NLL of 87.3 nats
"""What `nll` takes a smaller probability for, in every precision, so that one hopeless example does not make it inf."""


@dataclass(frozen=True)
class OneVsAll:
    """Every class against the others, averaged over all C classes with equal weight."""

    recall: float
    precision: float
    f1: float
    false_positive_rate: float


@dataclass(frozen=True)
class Bin:
    """The predictions whose confidence lies in (lower, upper]; without any, their means are None."""

    lower: float
    upper: float
    count: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Scores:
    """All scores of one model on one set of examples; None where a score is not defined or its input was not given."""

    examples: int
    accuracy: float
    recall: float
    precision: float
    f1: float
    false_positive_rate: float
    nll: float
    brier: float
    ece: float
    entropy_right: float | None
    entropy_wrong: float | None
    epistemic_right: float | None
    epistemic_wrong: float | None
    error_auroc: float | None
    """How well the entropy tells wrong predictions from right ones."""
    error_auroc_epistemic: float | None
    aurc: float
    """Area under the risk-coverage curve that keeps the examples of lowest entropy first."""
    aurc_epistemic: float | None
    reliability: tuple[Bin, ...]
    risk_coverage: tuple[tuple[float, float], ...]
    """(coverage, risk) of the surest 10%, 20% ... 100% by entropy."""

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON has it: numbers, None, lists for the tables; never NaN or inf."""
        tables = {"reliability": [dataclasses.asdict(bin_) for bin_ in self.reliability]}
        return dataclasses.asdict(self) | tables | {"risk_coverage": [list(point) for point in self.risk_coverage]}

    def __str__(self) -> str:
        tables = ("examples", "reliability", "risk_coverage")
        values = {name: value for name, value in vars(self).items() if name not in tables}
        lines = [f"{name:<22} {'-' if value is None else format(value, '.4f')}" for name, value in values.items()]
        return "\n".join([f"{'examples':<22} {self.examples}", *lines])


def scores(
    probs: Tensor, targets: Tensor, *, entropy: Tensor | None = None, epistemic: Tensor | None = None, bins: int = 15
) -> Scores:
    """Everything this module measures, at once.

    Args:
        probs: the predictive distribution ``[N, C]``, such as `Prediction.probs`.
        targets: the true classes ``[N]``.
        entropy: total uncertainty ``[N]``; None: the entropy of `probs` in nats, which is what `Prediction.entropy` is.
        epistemic: mutual information ``[N]``, such as `Prediction.epistemic`; None: its scores are None.
        bins: bins of the reliability table and the calibration error.
    """
    p, y = _checked(probs, targets)
    right = p.argmax(-1) == y
    if entropy is None:
        entropy = torch.special.entr(p).sum(-1)
    total = right_and_wrong(entropy, right)
    known = (None, None) if epistemic is None else right_and_wrong(epistemic, right)
    table = reliability(probs, targets, bins=bins)
    return Scores(
        examples=len(y),
        accuracy=accuracy(probs, targets),
        **vars(one_vs_all(probs, targets)),
        nll=nll(probs, targets),
        brier=brier(probs, targets),
        ece=_weighted_gap(table),
        entropy_right=total[0],
        entropy_wrong=total[1],
        epistemic_right=known[0],
        epistemic_wrong=known[1],
        error_auroc=error_auroc(entropy, right),
        error_auroc_epistemic=None if epistemic is None else error_auroc(epistemic, right),
        aurc=aurc(entropy, right),
        aurc_epistemic=None if epistemic is None else aurc(epistemic, right),
        reliability=tuple(table),
        risk_coverage=tuple(_at_tenths(*risk_coverage(entropy, right))),
    )


def accuracy(probs: Tensor, targets: Tensor) -> float:
    """Share of examples whose most probable class, the first of equals, is the target."""
    p, y = _checked(probs, targets)
    return float((p.argmax(-1) == y).double().mean())


def one_vs_all(probs: Tensor, targets: Tensor) -> OneVsAll:
    """The paper's rates: each class against the others, averaged over all C classes.

        recall = tp / (tp + fn)          f1 = 2 tp / (2 tp + fp + fn)
        precision = tp / (tp + fp)       false-positive rate = fp / (fp + tn)

    All C classes count, and 0/0 is 0: a class that is never predicted has precision 0, one that no target names has
    recall 0, and one absent from both has F1 0. So a test set should hold every class. This is scikit-learn's
    ``zero_division=0`` with ``labels=range(C)``; torchmetrics' macro average leaves a class absent from both out.
    """
    from torchmetrics.functional.classification import multiclass_stat_scores

    p, y = _checked(probs, targets)
    counts = multiclass_stat_scores(p.argmax(-1), y, num_classes=p.shape[1], average="none")  # [C, 5]
    tp, fp, tn, fn = counts[:, :4].double().unbind(1)
    return OneVsAll(
        recall=_mean_ratio(tp, tp + fn),
        precision=_mean_ratio(tp, tp + fp),
        f1=_mean_ratio(2 * tp, 2 * tp + fp + fn),
        false_positive_rate=_mean_ratio(fp, fp + tn),  # not 1 - specificity, which would make 0/0 the worst value
    )


def nll(probs: Tensor, targets: Tensor) -> float:
    """Mean negative log likelihood in nats: mean over n of -log p[n, y_n], p no smaller than `SMALLEST_PROBABILITY`."""
    p, y = _checked(probs, targets)
    return -float(p.gather(1, y[:, None]).clamp_min(SMALLEST_PROBABILITY).log().mean())


def brier(probs: Tensor, targets: Tensor) -> float:
    """Mean over n of the sum over classes of (p[n, c] - [c = y_n])^2, in [0, 2]."""
    p, y = _checked(probs, targets)
    return float((p - torch.nn.functional.one_hot(y, p.shape[1])).square().sum(1).mean())


def reliability(probs: Tensor, targets: Tensor, *, bins: int = 15) -> list[Bin]:
    """Accuracy against confidence, the probability of the predicted class, in equally wide bins.

    Bin k holds the confidences in (k / bins, (k + 1) / bins]; the first one holds 0 too. An edge is rounded to the
    precision of `probs`, so that a confidence of 0.2 is on the edge 0.2 also in float32.
    """
    p, y = _checked(probs, targets)
    if not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins: expected a whole number of at least 1, got {bins!r}")
    confidence, predicted = p.max(1)
    edges = (torch.arange(1, bins, dtype=torch.float64) / bins).to(probs.dtype).double()
    place = torch.bucketize(confidence, edges)
    count = place.bincount(minlength=bins)
    mean_confidence = place.bincount(confidence, minlength=bins) / count
    mean_right = place.bincount((predicted == y).double(), minlength=bins) / count
    return [
        Bin(k / bins, (k + 1) / bins, int(n), *((float(c), float(a)) if n else (None, None)))
        for k, (n, c, a) in enumerate(zip(count, mean_confidence, mean_right, strict=True))
    ]


def ece(probs: Tensor, targets: Tensor, *, bins: int = 15) -> float:
    """Expected calibration error of the predicted class: sum over `reliability` of count / N * |accuracy - confidence|.

    Not torchmetrics' ``multiclass_calibration_error``, which keeps confidences of exactly 1 in a bin of their own.
    """
    return _weighted_gap(reliability(probs, targets, bins=bins))


def right_and_wrong(uncertainty: Tensor, right: Tensor) -> tuple[float | None, float | None]:
    """Mean uncertainty of the right and of the wrong predictions; None for the one of which there is none."""
    u, r = _checked_uncertainty(uncertainty, right)
    means = [float(group.mean()) if len(group) else None for group in (u[r], u[~r])]
    return means[0], means[1]


def error_auroc(uncertainty: Tensor, right: Tensor) -> float | None:
    """Probability that a wrong prediction is less sure than a right one, ties one half; None if all or none are right.

    1: the uncertainty tells the errors; 0.5: it knows nothing of them.
    """
    u, r = _checked_uncertainty(uncertainty, right)
    return None if r.all() or not r.any() else _auroc(u, ~r)


def ood_auroc(inside: Tensor, outside: Tensor) -> float:
    """Probability that an example from outside the distribution is less sure than one from inside, ties one half.

    Args:
        inside: uncertainties ``[N]`` of examples like those of training.
        outside: uncertainties ``[M]`` of others.
    """
    known, strange = _vector("inside", inside), _vector("outside", outside)
    event = torch.cat([torch.zeros(len(known), dtype=torch.bool), torch.ones(len(strange), dtype=torch.bool)])
    return _auroc(torch.cat([known, strange]), event)


def risk_coverage(uncertainty: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Share of errors among the k surest predictions, for every k: (coverage k / N, risk), each ``[N]`` in float64.

    Equal uncertainties say nothing about the order, so the risk is the expected one over all orders of the equals: each
    counts with the share of errors among them.
    """
    u, r = _checked_uncertainty(uncertainty, right)
    _, group, size = u.unique(return_inverse=True, return_counts=True)
    error_share = group.bincount((~r).double()) / size
    kept = torch.arange(1, len(u) + 1, dtype=torch.float64)
    # rounding of a long cumulative sum must not lift a risk above 1
    return kept / len(u), (error_share[group.sort().values].cumsum(0) / kept).clamp_max(1)


def aurc(uncertainty: Tensor, right: Tensor) -> float:
    """Area under `risk_coverage`: the mean over k = 1 ... N of the risk of the k surest; lower is better."""
    return float(risk_coverage(uncertainty, right)[1].mean())


def _at_tenths(coverage: Tensor, risk: Tensor) -> list[tuple[float, float]]:
    """The risk of the surest 10%, 20% ... 100% of the predictions, at least one each."""
    rows = [max(0, -(-len(risk) * tenth // 10) - 1) for tenth in range(1, 11)]
    return [(float(coverage[row]), float(risk[row])) for row in rows]


def _auroc(uncertainty: Tensor, event: Tensor) -> float:
    from torchmetrics.functional.classification import binary_auroc

    # ranks, because torchmetrics puts values outside [0, 1] through a sigmoid, which merges large ones into ties
    _, rank = uncertainty.unique(return_inverse=True)
    return float(binary_auroc(rank.double() / max(1, int(rank.max())), event.long()).clamp(0, 1))


def _mean_ratio(part: Tensor, whole: Tensor) -> float:
    return float(torch.where(whole > 0, part / whole, 0.0).mean())


def _weighted_gap(table: list[Bin]) -> float:
    gaps = [
        b.count * abs(b.accuracy - b.confidence) for b in table if b.accuracy is not None and b.confidence is not None
    ]
    return sum(gaps) / sum(b.count for b in table)


def _checked(probs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Both on the CPU, ``[N, C]`` in float64 and ``[N]`` in int64, or a ValueError."""
    if not isinstance(probs, Tensor) or not probs.is_floating_point():
        raise ValueError(f"probs: expected a floating-point tensor of probabilities, got {_described(probs)}")
    if probs.dim() != 2 or len(probs) == 0 or probs.shape[1] < 2:
        raise ValueError(
            f"probs: expected [N, C] with at least one example and two classes (binary: [1 - p, p]), "
            f"got {_described(probs)}"
        )
    p = probs.detach().cpu().double()
    if not p.isfinite().all():
        raise ValueError(f"probs: expected finite numbers, got {p[~p.isfinite()][0].item()}; look for it in the model")
    tolerance = 1e-2 if torch.finfo(probs.dtype).bits <= 16 else 1e-4  # what rounding in each precision can add up to
    off = (p < 0).any(1) | ((p.sum(1) - 1).abs() > tolerance)
    if off.any():
        row = int(off.nonzero()[0, 0])
        raise ValueError(
            f"probs: expected no negative number and rows that sum to 1, got row {row} with minimum "
            f"{p[row].min().item():.6g} and sum {p[row].sum().item():.6g}; apply softmax to logits first"
        )
    return p, _checked_targets(targets, *p.shape)


def _checked_targets(targets: Tensor, n: int, c: int) -> Tensor:
    whole = isinstance(targets, Tensor) and not (targets.is_floating_point() or targets.is_complex())
    if not whole or targets.dtype == torch.bool or targets.shape != (n,):
        raise ValueError(
            f"targets: expected an integer tensor of shape ({n},), as probs has, got {_described(targets)}"
        )
    y = targets.detach().cpu().long()
    if y.min() < 0 or y.max() >= c:
        wrong = y[(y < 0) | (y >= c)][0].item()
        raise ValueError(f"targets: expected classes 0 ... {c - 1}, as probs has {c}, got {wrong}; check the labels")
    return y


def _checked_uncertainty(uncertainty: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    u = _vector("uncertainty", uncertainty)
    if not isinstance(right, Tensor) or right.dtype != torch.bool or right.shape != u.shape:
        raise ValueError(f"right: expected a bool tensor of shape ({len(u)},), as uncertainty, got {_described(right)}")
    return u, right.detach().cpu()


def _vector(name: str, values: Tensor) -> Tensor:
    if not isinstance(values, Tensor) or not values.is_floating_point() or values.dim() != 1 or len(values) == 0:
        raise ValueError(f"{name}: expected a floating-point tensor [N] of at least one, got {_described(values)}")
    v = values.detach().cpu().double()
    if not v.isfinite().all():
        raise ValueError(f"{name}: expected finite numbers, got {v[~v.isfinite()][0].item()}; leave those examples out")
    return v


def _described(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"a tensor of shape {tuple(value.shape)} and {str(value.dtype).removeprefix('torch.')}"
