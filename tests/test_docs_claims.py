"""The paper's claims in words on the page of results: which cells they are about, when they hold, and when clearly."""

import re

import pytest

from benchmark_scripts import script
from isingformer.study.record import Cell

CLEAR, UNCLEAR = [0.1, 0.11, 0.12], [0.1, -0.05, 0.01]  # both 0.02 or more on average; 0.11 -+ 0.02 and 0.02 -+ 0.19


@pytest.fixture(scope="module")
def paper_claims():
    return script("paper_claims")


def of(**scores):
    """A cell of three replicas."""
    base = {"overconfidence": 0.0, "entropy_right": 1.0, "entropy_wrong": 2.0, "accuracy": 0.5, "ece": 0.1, "f1": 0.5,
            "mean_q": 0.5, "skew_right": 0.0, "skew_wrong": 0.0}  # fmt: skip
    found = {name: own if isinstance(own, list) else [own] * 3 for name, own in {**base, **scores}.items()}
    return {"replica": [0, 1, 2], "seed": [1, 2, 3], **found}


def rows(paper_claims, cells):
    """{claim: its entries}"""
    lines = [line.strip("| ").split(" | ") for line in paper_claims.claims([], cells).splitlines() if " | " in line]
    return {claim: entries for claim, *entries in lines}


def test_a_claim_holds_by_means_and_clearly_by_intervals(paper_claims):
    cells = {
        Cell("mnist", 300, "dropout", 0.1): of(overconfidence=CLEAR),
        Cell("mnist", 6000, "dropout", 0.1): of(overconfidence=UNCLEAR),
        Cell("mnist", 18000, "dropout", 0.1): of(overconfidence=-0.1),
        Cell("cifar10", 250, "dropout", 0.1): of(overconfidence=CLEAR),
    }
    found = rows(paper_claims, cells)
    assert found["dropout is overconfident"] == ["3 of 4 (2)"]
    assert found["dropout is overconfident on CIFAR with few images"] == ["1 of 1 (1)"]
    assert found["dropconnect at 0.5 is underconfident on MNIST and Fashion-MNIST"] == ["–"]


def test_a_claim_about_two_things_needs_both(paper_claims):
    """Surer where right and where wrong; paired by seeds, whatever their order."""
    low, high = [1.0, 2.0, 3.0], [1.2, 2.22, 3.24]
    sure, unsure = Cell("mnist", 300, "dropout", 0.1), Cell("mnist", 300, "dropconnect", 0.1)
    cells = {
        sure: of(entropy_right=low, entropy_wrong=low),
        unsure: {**of(entropy_right=high[::-1], entropy_wrong=high[::-1]), "seed": [3, 2, 1]},
    }
    claim = "dropout is surer than dropconnect, where right and where wrong (entropy)"
    assert rows(paper_claims, cells)[claim] == ["1 of 1 (1)"]
    cells[sure]["entropy_wrong"] = [own + 1 for own in low]
    assert rows(paper_claims, cells)[claim] == ["0 of 1 (0)"]


def test_sizes_are_paired_by_their_replicas(paper_claims):
    """Their seeds differ; and a study under way has some of them alone."""
    few, many = Cell("cifar10", 250, "dropout", 0.1), Cell("cifar10", 5000, "dropout", 0.1)
    cells = {
        few: {"replica": [1, 2, 4], "seed": [5, 6, 7], "ece": [0.31, 0.42, 0.9]},
        many: {"replica": [0, 1, 2, 3], "seed": [1, 2, 3, 4], "ece": [0.9, 0.1, 0.2, 0.9]},
    }
    claim = "dropout is worse calibrated on CIFAR with 250 images than with 5,000 (ECE, samples in their order)"
    assert rows(paper_claims, cells)[claim] == ["1 of 1 (1)"]  # by 0.21 and 0.22


def test_wrong_and_right_are_further_apart(paper_claims):
    apart = {"entropy_right": [1.0, 1.1, 1.2], "entropy_wrong": [2.0, 2.15, 2.2]}  # by about 1
    near = {"entropy_right": [0.2, 0.2, 0.3], "entropy_wrong": [0.8, 0.84, 0.9]}  # by 0.6, though each is surer
    cells = {
        Cell("mnist", 300, "dropconnect", 0.1): of(**apart),
        Cell("mnist", 300, "dropout", 0.1): of(**near),
        Cell("mnist", 300, "dropconnect", 0.5): of(**near),
        Cell("mnist", 300, "dropout", 0.5): of(**apart),
    }
    claim = "dropconnect tells wrong from right better than dropout: its mean entropies are further apart"
    assert rows(paper_claims, cells)[claim] == ["1 of 2 (1)"]


def test_a_network_that_says_one_thing_has_no_symmetry_to_claim(paper_claims):
    """Its entropies have no skewness: the cell is left out."""
    cells = {
        Cell("mnist", 300, "ising-paper", 0.1): of(skew_right=[0.1, 0.2, None], skew_wrong=-0.3),
        Cell("mnist", 300, "ising-paper", 0.5): of(skew_right=[None] * 3, skew_wrong=[None] * 3),
        Cell("mnist", 300, "ising", 0.1): of(skew_right=0.1, skew_wrong=-0.9),
    }
    claim = "its entropies are symmetric: skewness of right and of wrong within 0.5 of 0"
    paper, obd, ours = rows(paper_claims, cells)[claim]
    assert (obd, ours) == ("–", "0 of 1 (0)") and paper.startswith("1 of 1 ")


def test_nearer_to_symmetric_whatever_the_sign(paper_claims):
    cells = {
        Cell("mnist", 300, "ising", 0.1): of(skew_right=[-0.2, -0.3, -0.1], skew_wrong=[0.2, 0.1, 0.3]),
        Cell("mnist", 300, "dropconnect", 0.1): of(skew_right=[0.9, 0.8, 1.0], skew_wrong=[-1.0, -1.1, -1.2]),
    }
    claim = "they are nearer to symmetric than those of dropconnect, right and wrong"
    assert rows(paper_claims, cells)[claim] == ["–", "–", "1 of 1 (1)"]


def test_bottlenecks_are_the_first_layer_and_the_last(paper_claims):
    cells = {
        Cell("mnist", 300, "ising", rate): of(mean_q=q, **{"q of embed": [0.3, 0.31, 0.32], "q of head": 0.7})
        for rate, q in ((0.1, 0.4), (0.3, 0.5), (0.5, 0.6))  # beside 0.505 for the two
    }
    cells[Cell("mnist", 6000, "ising", 0.1)] = of()  # kept without its records
    found = {claim: own for claim, own in rows(paper_claims, cells).items() if "bottlenecks" in claim}
    assert list(found.values()) == [["–", "–", "2 of 3 (1)"]]


def test_every_claim_about_ising_is_counted_for_every_reading(paper_claims):
    cells = {
        Cell("cifar100", 250, method, 0.1): of(f1=f1, ece=ece)
        for method, f1, ece in (
            ("dropout", 0.2, [0.3, 0.31, 0.32]), ("dropconnect", 0.3, [0.3, 0.31, 0.32]),
            ("ising", [0.4, 0.41, 0.42], 0.2), ("ising-paper", 0.25, [0.305, 0.3, 0.302]),
        )
    }  # fmt: skip
    found = rows(paper_claims, cells)
    assert found["its F1 on CIFAR-100 with 250 images is higher than that of both others"] == [
        "0 of 1 (0)", "–", "1 of 1 (1)"
    ]  # fmt: skip
    assert found["its ECE on CIFAR with few images is lower than that of both others"] == [
        "1 of 1 (0)", "–", "1 of 1 (1)"
    ]  # fmt: skip
    assert all(re.fullmatch(r"–|\d of \d \(\d\)", entry) for claim, own in found.items() for entry in own
               if "claim about" not in claim and set(claim) != {"-"})  # fmt: skip
