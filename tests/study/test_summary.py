"""Summaries against numpy and against the metrics of all predictions together."""

import dataclasses
import math
import random

import numpy as np
import pytest
import torch

from isingformer import metrics
from isingformer.study.record import Cell, Entropies, Layer
from isingformer.study.summary import BETTER, DERIVED, LABELS, LOCAL, OF_TRAINING, Summary, by_cell, summarise, value_of
from records import made_up, scored, study

CELL = Cell("mnist", 300, "ising", 0.1)


def one(records) -> Summary:
    (summary,) = summarise(records).values()
    return summary


def test_means_and_sds_are_numpys():
    records = [dataclasses.replace(made_up(CELL, k), mean_q=0.1 * k, seconds=k + 0.5) for k in range(5)]
    summary = one(records)
    assert (summary.cell, summary.replicas) == (CELL, 5)
    for metric in set(LABELS) - set(DERIVED) - set(LOCAL):
        values = [getattr(r, metric) if metric in OF_TRAINING else r.scores[metric] for r in records]
        assert summary.means[metric] == pytest.approx(np.mean(values), rel=1e-12)
        assert summary.sds[metric] == pytest.approx(np.std(values, ddof=1), rel=1e-9, abs=1e-15)
        assert summary.counts[metric] == 5


def test_every_number_among_the_scores_has_a_label():
    scores = made_up(CELL, 0).scores
    others = {*OF_TRAINING, *DERIVED, *LOCAL}
    assert set(scores) - {"examples", "reliability", "risk_coverage"} == set(LABELS) - others
    assert set(BETTER) <= set(LABELS)


def test_what_is_not_defined_is_not_counted():
    auroc = [0.7, None, 0.9, None]
    summary = one(scored(CELL, k, error_auroc=a, entropy_wrong=None) for k, a in enumerate(auroc))
    assert summary.means["error_auroc"] == pytest.approx(0.8)
    assert summary.sds["error_auroc"] == pytest.approx(math.sqrt(0.02))
    assert summary.counts["error_auroc"] == 2
    assert (summary.means["entropy_wrong"], summary.sds["entropy_wrong"], summary.counts["entropy_wrong"]) == (
        None,
        None,
        0,
    )
    assert summary.counts["accuracy"] == 4


def test_a_number_that_is_not_finite_is_not_counted():
    summary = one(
        [scored(CELL, 0, train_nll=math.nan), scored(CELL, 1, train_nll=0.5), scored(CELL, 2, train_nll=math.inf)]
    )
    assert (summary.means["train_nll"], summary.counts["train_nll"]) == (0.5, 1)


def test_one_replica_has_no_sd():
    summary = one([scored(CELL, 0, accuracy=0.75)])
    assert (summary.means["accuracy"], summary.sds["accuracy"], summary.counts["accuracy"]) == (0.75, None, 1)


def test_pooled_reliability_is_that_of_all_predictions_together():
    generator = torch.Generator().manual_seed(0)
    probs = [(3 * torch.randn(n, 4, generator=generator, dtype=torch.float64)).softmax(-1) for n in (30, 70, 11)]
    targets = [torch.randint(4, (len(p),), generator=generator) for p in probs]
    tables = [metrics.scores(p, y).as_dict()["reliability"] for p, y in zip(probs, targets, strict=True)]
    pooled = one(scored(CELL, k, reliability=table) for k, table in enumerate(tables)).reliability
    together = metrics.reliability(torch.cat(probs), torch.cat(targets))
    assert [b.count for b in pooled] == [b.count for b in together]
    assert 0 in [b.count for b in pooled]  # an empty bin is among them: confidences of four classes are above 1/4
    for ours, theirs in zip(pooled, together, strict=True):
        assert (ours.lower, ours.upper) == (theirs.lower, theirs.upper)
        for name in ("confidence", "accuracy"):
            expected = getattr(theirs, name)
            assert getattr(ours, name) == (None if expected is None else pytest.approx(expected, rel=1e-12))


def test_pooled_entropies_add_up():
    edges = (0.0, 1.0, 2.0)
    histograms = [Entropies(edges, (1, 2), (3, 4)), Entropies(edges, (10, 20), (30, 40))]
    pooled = one(scored(CELL, k, entropies=h) for k, h in enumerate(histograms)).entropies
    assert pooled == Entropies(edges, (11, 22), (33, 44))


def test_layers_are_means_over_replicas():
    layers = [
        {"head": Layer(0.2, 0.0, (0.1, 0.3)), "a": Layer(0.5, 0.5, (0.5,))},
        {"head": Layer(0.4, 0.1, (0.2, 0.7))},
    ]
    found = one(scored(CELL, k, layers=of) for k, of in enumerate(layers)).layers
    assert list(found) == ["head", "a"]
    assert found["head"].mean_q == pytest.approx(0.3)
    assert found["head"].dropped == pytest.approx(0.05)
    assert found["head"].quantiles == pytest.approx((0.15, 0.5))
    assert found["a"] == layers[0]["a"]


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_records_does_not_matter(seed):
    records = study(sizes=(300,), rates=(0.1,))
    shuffled = random.Random(seed).sample(records, len(records))
    expected, found = summarise(records), summarise(shuffled)
    assert found == expected
    assert list(found) == list(expected)


def test_cells_come_in_the_papers_order_and_others_last():
    cells = [
        Cell("digits", 300, "dropout", 0.5), Cell("mnist", 300, "plain", None), Cell("mnist", 300, "dropout", 0.1),
        Cell("mnist", 300, "dropout", 0.5), Cell("mnist", 300, "ising-paper", 0.1), Cell("mnist", 300, "ivon", None),
        Cell("mnist", 6000, "plain", None), Cell("cifar10", 250, "plain", None), Cell("cifar100", 250, "plain", None),
        Cell("birds", 10, "dropout", None), Cell("birds", 10, "dropout", 0.1),
    ]  # fmt: skip
    assert list(summarise(scored(cell, 0) for cell in reversed(cells))) == cells


def test_replicas_come_by_number():
    records = [scored(CELL, k, layers={f"layer{k}": Layer(0.1, 0.0, (0.1,))}) for k in (2, 0, 1)]
    assert [record.replica for record in by_cell(records)[CELL]] == [0, 1, 2]
    assert list(one(records).layers) == ["layer0", "layer1", "layer2"]


def test_a_replica_that_comes_twice_is_an_error():
    with pytest.raises(ValueError, match=r"two of mnist_300_ising_0\.1 replica 3"):
        summarise([scored(CELL, 3), scored(CELL, 2), scored(CELL, 3)])


def test_replicas_that_were_measured_differently_are_an_error():
    bins = scored(CELL, 0).scores["reliability"]
    with pytest.raises(ValueError, match=r"mnist_300_ising_0\.1: expected the same bins"):
        summarise([scored(CELL, 0), scored(CELL, 1, reliability=bins[:-1])])
    with pytest.raises(ValueError, match=r"mnist_300_ising_0\.1: expected the same edges"):
        summarise([scored(CELL, 0), scored(CELL, 1, entropies=Entropies((0.0, 1.0), (1,), (1,)))])


def test_a_metric_that_is_not_known_is_an_error():
    with pytest.raises(ValueError, match=r"expected one of accuracy, .* got 'acuracy'"):
        value_of(scored(CELL, 0), "acuracy")


def test_overconfidence_is_mean_confidence_minus_accuracy():
    generator = torch.Generator().manual_seed(3)
    y = torch.randint(10, (300,), generator=generator)
    probs = (
        torch.randn(300, 10, generator=generator, dtype=torch.float64).mul(3).softmax(-1)
    )  # sure, and right by chance
    record = dataclasses.replace(made_up(CELL, 0), scores=metrics.scores(probs, y).as_dict())
    expected = probs.amax(-1).mean() - (probs.argmax(-1) == y).double().mean()
    assert value_of(record, "overconfidence") == pytest.approx(float(expected), rel=1e-9) and expected > 0.3
    shy = dataclasses.replace(record, scores=metrics.scores((probs.log() / 9).softmax(-1), probs.argmax(-1)).as_dict())
    assert value_of(shy, "overconfidence") < -0.5
