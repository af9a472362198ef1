"""Paired differences against scipy's paired t test, and verdicts against counts known by construction."""

import random
import re

import numpy as np
import pytest
import scipy.stats

from isingformer.study.compare import compare, comparisons, paired, verdict, verdict_list, verdicts
from isingformer.study.paper import paper_number, paper_numbers
from isingformer.study.record import Cell
from isingformer.study.summary import BETTER, LOCAL
from records import scored, study

ISING, DROPOUT = Cell("mnist", 300, "ising", 0.1), Cell("mnist", 300, "dropout", 0.1)


def cells(a, b, metric="nll", first=ISING, second=DROPOUT):
    """Records of two cells that have the given values, one a replica."""
    pairs = ((first, a), (second, b))
    return [scored(cell, k, **{metric: v}) for cell, values in pairs for k, v in enumerate(values)]


def apart(gap, size=300, method="dropout", metric="nll", spread=0.01, n=5):
    """`ising` at one size, and another method whose score is larger by about `gap`, give or take `spread`."""
    noise = [spread * (k - (n - 1) / 2) for k in range(n)]
    base = [0.5 + 0.1 * k for k in range(n)]
    other = Cell("digits", size, method, None if method == "plain" else 0.1)
    theirs = [v + gap + e for v, e in zip(base, noise, strict=True)]
    return cells(base, theirs, metric, Cell("digits", size, "ising", 0.1), other)


@pytest.mark.parametrize("n", [2, 3, 10])
def test_the_interval_is_that_of_the_paired_t_test(n):
    generator = np.random.default_rng(n)
    a, b = generator.normal(1.0, 0.3, n), generator.normal(1.2, 0.3, n)
    (found,) = compare(cells(a, b), "ising", "dropout", "nll")
    interval = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (found.a, found.b, found.metric, found.pairs, found.unpaired) == (ISING, DROPOUT, "nll", n, 0)
    assert found.mean == pytest.approx(np.mean(a - b), rel=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert found.clear == (interval.low > 0 or interval.high < 0)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(0)
    rounds, hits = 400, 0
    for _ in range(rounds):
        sample = generator.normal(0.0, 1.0, 4)  # of the training sample: both methods share it
        a, b = sample + generator.normal(0.3, 0.2, 4), sample + generator.normal(0.0, 0.2, 4)
        (found,) = compare(cells(a, b), "ising", "dropout", "nll")
        hits += found.low <= 0.3 <= found.high
    assert abs(hits / rounds - 0.95) < 4 * (0.95 * 0.05 / rounds) ** 0.5  # four standard errors


def test_exchanging_the_methods_changes_the_sign():
    records = study(datasets=("mnist",), sizes=(300,))
    for metric in ("accuracy", "ece", "mean_q"):
        for one, other in zip(
            compare(records, "ising", "dropout", metric), compare(records, "dropout", "ising", metric), strict=True
        ):
            assert (one.a, one.b) == (other.b, other.a)
            assert one.mean == pytest.approx(-other.mean)
            assert one.clear == other.clear
            assert {one.better, other.better} == ({None} if metric == "mean_q" else {True, False})


@pytest.mark.parametrize(
    ("metric", "better"), [("accuracy", True), ("error_auroc", True), ("nll", False), ("ece", False)]
)
def test_the_better_direction(metric, better):
    (found,) = compare(cells([0.9, 0.8], [0.5, 0.6], metric), "ising", "dropout", metric)
    assert found.better is better


def test_no_direction_and_no_difference_are_not_better():
    (found,) = compare(cells([0.9, 0.8], [0.5, 0.6], "mean_q"), "ising", "dropout", "mean_q")
    assert found.mean == pytest.approx(0.3)
    assert found.better is None
    (found,) = compare(cells([0.7, 0.3], [0.4, 0.6]), "ising", "dropout", "nll")  # 0.3 and -0.3
    assert found.better is None
    assert not found.clear


def test_one_pair_has_no_interval():
    (found,) = compare(cells([0.5], [0.9]), "ising", "dropout", "nll")
    assert (found.pairs, found.low, found.high, found.clear) == (1, None, None, False)
    assert found.mean == pytest.approx(-0.4)


def test_pairs_that_differ_by_the_same_have_no_interval():
    (found,) = compare(cells([0.8, 0.9, 0.5], [0.7, 0.8, 0.4]), "ising", "dropout", "nll")  # 0.1 up to rounding
    assert (found.pairs, found.low, found.clear, found.better) == (3, None, False, False)


def test_what_is_not_defined_drops_the_pair():
    records = cells([0.7, None, 0.9, 0.6], [0.5, 0.4, None, 0.5], "error_auroc")
    (found,) = compare(records, "ising", "dropout", "error_auroc")
    assert (found.pairs, found.unpaired) == (2, 4)
    assert found.mean == pytest.approx(0.15)
    (found,) = compare(cells([None], [0.4], "error_auroc"), "ising", "dropout", "error_auroc")
    assert (found.pairs, found.mean, found.low, found.better, found.clear) == (0, None, None, None, False)


def test_only_the_same_replica_and_seed_are_partners():
    records = [scored(ISING, k, nll=1.0 + k) for k in (0, 1, 2)]
    records += [scored(DROPOUT, 1, nll=5.0), scored(DROPOUT, 2, seed=99, nll=7.0), scored(DROPOUT, 3, nll=8.0)]
    (found,) = compare(records, "ising", "dropout", "nll")
    assert (found.pairs, found.unpaired, found.mean) == (1, 4, -3.0)


def test_methods_meet_at_the_same_place_and_rate():
    records = study(replicas=2)
    same = {("mnist", 300), ("mnist", 6000), ("cifar10", 300), ("cifar10", 6000)}
    found = compare(records, "ising", "dropconnect", "nll")
    assert {(d.a.dataset, d.a.size, d.a.rate) for d in found} == {(*p, r) for p in same for r in (0.1, 0.5)}
    assert all((d.a.dataset, d.a.size, d.a.rate) == (d.b.dataset, d.b.size, d.b.rate) for d in found)
    against_plain = compare(records, "ising", "plain", "nll")
    assert len(against_plain) == 8
    assert all(d.b.rate is None and (d.a.dataset, d.a.size) == (d.b.dataset, d.b.size) for d in against_plain)
    assert compare(records, "ising", "ivon", "nll") == []


def test_any_two_cells_can_be_compared():
    other = Cell("mnist", 300, "dropconnect", 0.37)  # matched mean q
    found = paired([scored(ISING, k, nll=1.0) for k in (0, 1)], [scored(other, k, nll=1.5 + k) for k in (0, 1)], "nll")
    assert (found.a, found.b, found.mean) == (ISING, other, -1.0)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_records_does_not_matter(seed):
    records = study(sizes=(300,), replicas=3)
    shuffled = random.Random(seed).sample(records, len(records))
    assert verdict_list(shuffled) == verdict_list(records)
    assert compare(shuffled, "ising", "plain", "ece") == compare(records, "ising", "plain", "ece")


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="'ising' twice"):
        compare([], "ising", "ising", "nll")
    with pytest.raises(ValueError, match="got 'nil'"):
        compare([], "ising", "dropout", "nil")
    with pytest.raises(ValueError, match="got 1 and 0"):
        paired([scored(ISING, 0)], [], "nll")
    with pytest.raises(ValueError, match=r"better direction.*'mean_q'"):
        verdict(compare(cells([1.0], [2.0], "mean_q"), "ising", "dropout", "mean_q"))


def test_a_verdict_counts_cells():
    clearly_better = [r for size in (1, 2, 3) for r in apart(0.5, size)]
    better, clearly_worse = apart(0.01, 4, spread=0.1), apart(-0.5, 5)
    equal = cells([0.5, 0.6], [0.6, 0.5], "nll", Cell("digits", 6, "ising", 0.1), Cell("digits", 6, "dropout", 0.1))
    alone = apart(0.5, 7, n=1)
    records = clearly_better + better + clearly_worse + equal + alone
    found = verdict(compare(records, "ising", "dropout", "nll"))
    assert (found.kind, found.a, found.b, found.metric) == ("pair", "ising", "dropout", "nll")
    assert (found.cells, found.better, found.clearly_better, found.worse, found.clearly_worse) == (6, 4, 3, 1, 1)
    assert found.text == (
        "ising has a lower NLL than dropout in 4 of 6 cells, clearly so in 3 (the 95% interval excludes 0), worse in "
        "1, clearly in 1, equal in 1; 1 with fewer than two shared replicas not counted."
    )


def test_a_verdict_of_losses():
    found = verdict(compare(apart(0.01, metric="accuracy", spread=0.1), "ising", "dropout", "accuracy"))
    assert found.text == "ising has a higher accuracy than dropout in none of 1 cell, worse in 1, clearly in none."


def test_one_replica_gives_no_verdict():
    records = study(replicas=1)
    for found in verdict_list(records):
        assert (found.cells, found.better, found.worse) == (0, 0, 0)
        assert not re.search(r"\b(clearly|higher|lower|worse) ", found.text), found.text
    assert "ising against dropout, NLL: no verdict from one replica a cell." in verdicts(records)


def test_headlines_ask_for_both_baselines():
    # size 1: better than both; size 2: better than dropout alone; size 3: dropconnect is missing
    records = apart(0.5, 1) + apart(0.5, 2) + apart(0.5, 3)
    records += [r for r in apart(0.5, 1, "dropconnect") + apart(-0.5, 2, "dropconnect") if r.cell.method != "ising"]
    (found,) = (v for v in verdict_list(records) if v.kind == "headline" and v.metric == "nll")
    assert (found.cells, found.better, found.clearly_better, found.worse) == (2, 1, 1, 0)
    assert found.text.startswith(
        "ising has a lower NLL than both dropout and dropconnect in 1 of 2 cells, clearly so in 1"
    )


@pytest.mark.parametrize(("gap", "near"), [(0.02, "1"), (-0.10, "1"), (-0.20, "0")])
def test_within_one_sd_of_the_better(gap, near):
    theirs = {"dropout": [0.3, 0.4], "dropconnect": [0.7, 0.9]}  # the better one's sd is 0.141
    at = {m: Cell("digits", 9, m, 0.1) for m in ("ising", *theirs)}
    records = cells(theirs["dropout"], theirs["dropconnect"], "accuracy", at["dropout"], at["dropconnect"])
    records += [scored(at["ising"], k, accuracy=0.8 + gap + s) for k, s in enumerate((-0.01, 0.01))]
    (text,) = (v.text for v in verdict_list(records) if v.kind == "headline" and v.metric == "accuracy")
    assert text.endswith(f"within one standard deviation of the better of them in {near}.")


def test_every_ising_meets_every_other_method_and_plain_last():
    records = [scored(Cell("digits", 1, m, None), 0) for m in ("plain", "ising-paper", "dropout", "ivon", "ising")]
    assert comparisons(records) == [(a, b) for a in ("ising", "ising-paper") for b in ("dropout", "ivon", "plain")]


def test_the_reader_is_told_of_many_comparisons():
    last = verdict_list(study(replicas=3))[-1]  # 8 cells, 3 others, 3 scores
    assert last.kind == "note"
    assert "There are 72 such intervals" in last.text
    assert "about 4 would exclude 0 by chance" in last.text
    assert "paired over 3 shared" in last.text
    assert "partner" not in last.text


def test_the_reader_is_told_of_replicas_without_a_partner():
    records = [
        r for r in study(datasets=("mnist",), sizes=(300,), rates=(0.1,)) if (r.cell.method, r.replica) != ("plain", 1)
    ]
    last = verdict_list(records)[-1].text
    assert "paired over 3 to 4 shared" in last
    assert "In 3 of 9 comparisons of cells, replicas without a partner" in last


def test_nothing_to_compare_is_said():
    assert verdicts([]) == ["No ising method together with another method: nothing to compare yet."]
    assert verdicts(study(datasets=("digits",), methods=("dropout",))) == verdicts([])


def of_the_paper(shift):
    """Two replicas of every cell of the paper, whose accuracy is the paper's plus `shift(method)`."""
    found = []
    for dataset, size, rate, method in paper_numbers():
        cell = Cell(dataset, size, "ising-paper" if method == "ising" else method, rate)
        mean = paper_number(cell).means["accuracy"] + shift(method)
        found += [scored(cell, k, accuracy=mean + e) for k, e in enumerate((-0.01, 0.01))]
    return found


def test_the_papers_own_numbers_agree_with_the_paper():
    found = {v.a: v for v in verdict_list(of_the_paper(lambda method: 0.0)) if v.kind == "paper" and v.b == "paper"}
    assert set(found) == {"dropout", "dropconnect", "ising-paper"}
    for v in found.values():
        assert (v.cells, v.better, v.worse) == (22, 0, 0)  # CIFAR-100 at 15,000 is left out
        assert "within two of the paper's standard deviations in 22; on average +0.000." in v.text


def test_how_near_the_paper():
    sds = {
        m: [r.sds["accuracy"] for k, r in paper_numbers().items() if k[3] == m and r.comparable]
        for m in ("dropout", "ising")
    }
    found = {v.a: v.text for v in verdict_list(of_the_paper(lambda method: 0.01)) if v.b == "paper"}
    for ours, theirs in (("dropout", "dropout"), ("ising-paper", "ising")):
        near = sum(round(1000 * sd) >= 5 for sd in sds[theirs])  # 0.010 is within two of them
        assert 0 < near < 22
        assert f"standard deviations in {near}; on average +0.010." in found[ours]


def test_the_order_of_the_paper():
    for place in {key[:3] for key in paper_numbers()}:  # there are no ties
        assert len({paper_numbers()[(*place, m)].means["accuracy"] for m in ("dropout", "dropconnect", "ising")}) == 3
    table = {key: row.means["accuracy"] for key, row in paper_numbers().items() if row.comparable}
    places = {key[:3] for key in table}
    (found,) = (v for v in verdict_list(of_the_paper(lambda method: 0.0)) if v.b == "paper order")
    assert (found.cells, found.better) == (22, 22)
    assert "of 66 pairs of methods, 66 do" in found.text
    # with Ising above all others, only the pairs that Ising wins in the paper and those without it agree
    (found,) = (v for v in verdict_list(of_the_paper(lambda method: 0.9 * (method == "ising"))) if v.b == "paper order")
    others = ("dropout", "dropconnect")
    wins = {place: [table[(*place, "ising")] > table[(*place, other)] for other in others] for place in places}
    assert found.better == sum(all(won) for won in wins.values())
    assert f"of 66 pairs of methods, {22 + sum(map(sum, wins.values()))} do" in found.text


def test_above_and_below_the_paper():
    records = of_the_paper({"dropout": 0.2, "dropconnect": -0.2, "ising": 0.0004}.get)
    level = {v.a: v for v in verdict_list(records) if v.b == "paper"}
    assert {m: (v.better, v.worse) for m, v in level.items()} == {
        "dropout": (22, 0), "dropconnect": (0, 22), "ising-paper": (0, 0),
    }  # fmt: skip
    assert "higher than the paper's dropout in 22 of 22 cells, lower in none" in level["dropout"].text
    assert level["dropconnect"].text.endswith("on average -0.200.")
    assert sum("CIFAR-100 at 15,000 is left out" in text for text in verdicts(records)) == 1


def test_every_score_with_a_direction_gives_a_sentence():
    records = study(datasets=("mnist",), sizes=(300,), rates=(0.1,))
    for record in records:
        record.scores.update({name: record.scores[name.removeprefix("local_")] for name in LOCAL})
    for metric in BETTER:
        text = verdict(compare(records, "ising", "dropout", metric)).text
        assert re.fullmatch(r"ising has a (higher|lower) .+ than dropout in (none|1) of 1 cell, .*\.", text)
