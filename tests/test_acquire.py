"""Which inputs are chosen for labelling, against scores worked out by hand."""

import math
import sys

import pytest
import torch
from torch import nn

import isingformer as isf
from isingformer.predict import Prediction
from isingformer.predict.acquire import acquire, scores

# Four passes (rows) over four inputs, two classes: probability of the first class.
FIRST = [
    [0.5, 1.0, 0.9, 0.6],
    [0.5, 0.0, 0.9, 0.6],
    [0.5, 1.0, 0.9, 0.6],
    [0.5, 0.0, 0.9, 0.4],
]


def h(p):
    return -sum(x * math.log(x) for x in (p, 1 - p) if x > 0)


BY_HAND = {
    # undecided alike, at odds with certainty, of one mind, nearly undecided and three to one
    "bald": [0.0, math.log(2), 0.0, h(0.55) - h(0.6)],
    "entropy": [math.log(2), math.log(2), h(0.9), h(0.55)],
    "variation-ratio": [0.0, 0.5, 0.0, 0.25],
}
CHOSEN = {"bald": [1, 3, 0, 2], "entropy": [0, 1, 3, 2], "variation-ratio": [1, 3, 0, 2]}  # ties: first in the pool


def prediction(per_label=False):
    first = torch.tensor(FIRST, dtype=torch.float64)
    return Prediction(torch.stack([first, 1 - first], dim=-1), per_label=per_label)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    isf.attach(model, isf.Ising(delta=0.3), examples=10)
    return model


@pytest.mark.parametrize("score", BY_HAND)
def test_scores_are_those_worked_out_by_hand(score):
    torch.testing.assert_close(scores(prediction(), score), torch.tensor(BY_HAND[score], dtype=torch.float64))


@pytest.mark.parametrize("score", BY_HAND)
def test_labels_add_up(score):
    """The two classes as two labels, the second the opposite of the first: twice the score of one yes or no."""
    wanted = 2 * torch.tensor(BY_HAND[score], dtype=torch.float64)
    torch.testing.assert_close(scores(prediction(per_label=True), score), wanted)


@pytest.mark.parametrize("score", BY_HAND)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_worthiest_come_first_and_ties_in_the_order_of_the_pool(monkeypatch, model, score, k):
    monkeypatch.setattr(sys.modules[acquire.__module__], "predict", lambda *args, **keywords: prediction())
    found = acquire(model, torch.zeros(4, 5), k, score)
    assert found.tolist() == CHOSEN[score][:k] and found.dtype == torch.int64


@pytest.mark.parametrize("score", BY_HAND)
def test_a_real_model_is_asked_through_predict(model, score):
    pool = torch.randn(30, 5)
    found = acquire(model, pool, 7, score, samples=8, generator=torch.Generator().manual_seed(3))
    p = isf.predict(model, pool, samples=8, generator=torch.Generator().manual_seed(3))
    worth = scores(p, score)
    rest = [i for i in range(30) if i not in found.tolist()]
    assert len(set(found.tolist())) == 7 and worth[found].min() >= worth[rest].max()
    assert torch.equal(worth[found], worth[found].sort(descending=True).values)
    again = acquire(
        model, {"input": pool}, 7, score, samples=8, generator=torch.Generator().manual_seed(3), batch_size=4
    )
    assert torch.equal(found, again)


def test_the_default_is_bald(model):
    pool = torch.randn(20, 5)
    draws = [torch.Generator().manual_seed(1) for _ in range(2)]
    assert torch.equal(acquire(model, pool, 5, generator=draws[0]), acquire(model, pool, 5, "bald", generator=draws[1]))


def test_replicas_choose_apart(tiny):
    model = tiny(torch.float32, replicas=2)
    isf.attach(model, isf.DropConnect(p=0.3), examples=10)
    pool = torch.randn(9, 1, 4, 4)
    found = acquire(model, pool, 3, "entropy", samples=6, seeds=[1, 2])
    p = isf.predict(model, pool, samples=6, seeds=[1, 2])
    assert found.shape == (2, 3)
    for r in range(2):
        assert torch.equal(found[r], p.entropy[r].topk(3).indices)


def test_replicas_may_have_scores_of_their_own(tiny):
    model = tiny(torch.float32, replicas=3)
    isf.attach(model, isf.DropConnect(p=0.3), examples=10)
    pool, kinds = torch.randn(9, 1, 4, 4), ["entropy", "bald", "entropy"]
    found = acquire(model, pool, 4, kinds, samples=6, seeds=[1, 2, 3])
    for r, kind in enumerate(kinds):
        assert torch.equal(found[r], acquire(model, pool, 4, kind, samples=6, seeds=[1, 2, 3])[r])
    with pytest.raises(ValueError, match=r"scores must be one a replica, \[3\], got 2"):
        acquire(model, pool, 4, ["bald", "entropy"], samples=6)
    with pytest.raises(ValueError, match="got 'random'"):
        acquire(model, pool, 4, ["bald", "random", "bald"], samples=6)


def drawn(model, monkeypatch, score, power, times, k=1):
    """How often each of the four inputs above is among the first k, in so many calls."""
    monkeypatch.setattr(sys.modules[acquire.__module__], "predict", lambda *args, **keywords: prediction())
    generator, counts = torch.Generator().manual_seed(5), torch.zeros(4)
    for _ in range(times):
        counts[acquire(model, torch.zeros(4, 5), k, score, power=power, generator=generator)] += 1
    return counts


@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
def test_a_power_draws_in_proportion(monkeypatch, model, power):
    times = 2000
    weights = torch.tensor(BY_HAND["entropy"]) ** power
    share = weights / weights.sum()
    found = drawn(model, monkeypatch, "entropy", power, times) / times
    assert ((found - share).abs() < 4 * (share * (1 - share) / times).sqrt()).all(), (found, share)


def test_what_is_worth_nothing_is_drawn_last(monkeypatch, model):
    assert drawn(model, monkeypatch, "variation-ratio", 1.0, 50, k=2).tolist() == [0, 50, 0, 50]
    assert drawn(model, monkeypatch, "variation-ratio", 1.0, 50, k=3).tolist() == [50, 50, 0, 50]  # ties: pool's order


def test_draws_are_without_replacement_and_repeat_by_seed(model, tiny):
    pool = torch.randn(30, 5)
    first, again, other = (
        acquire(model, pool, 30, power=1.0, samples=4, generator=torch.Generator().manual_seed(seed)).tolist()
        for seed in (1, 1, 2)
    )
    assert sorted(first) == list(range(30)) and first == again != other
    stacked = tiny(torch.float32, replicas=2)
    isf.attach(stacked, isf.DropConnect(p=0.3), examples=10)
    images = torch.randn(9, 1, 4, 4)
    one, two = (acquire(stacked, images, 9, power=1.0, samples=6, seeds=seeds) for seeds in ([1, 2], [1, 3]))
    assert torch.equal(one[0], two[0]) and not torch.equal(one[1], two[1])


@pytest.mark.parametrize("power", [0, -1.0, float("nan"), float("inf")])
def test_a_power_must_be_above_nothing(model, power):
    with pytest.raises(ValueError, match="power must be a number above 0"):
        acquire(model, torch.randn(4, 5), 2, power=power)


@pytest.mark.parametrize("k", [0, -1, 2.0, True, "3"])
def test_k_must_be_a_whole_number(model, k):
    with pytest.raises(ValueError, match="k must be a whole number"):
        acquire(model, torch.randn(4, 5), k)


def test_more_than_the_pool_has_is_refused(model):
    with pytest.raises(ValueError, match="k=5 is more than the pool has, 4 inputs"):
        acquire(model, torch.randn(4, 5), 5, samples=2)


def test_an_unknown_score_is_refused(model):
    with pytest.raises(ValueError, match="got 'random'"):
        acquire(model, torch.randn(4, 5), 2, "random")


def test_outputs_for_every_token_are_refused(model):
    with pytest.raises(ValueError, match=r"one output an input, got scores of shape \(4, 6\)"):
        acquire(model, torch.randn(4, 6, 5), 2, samples=2)


def test_what_is_not_a_number_is_refused(model):
    pool = torch.randn(4, 5)
    pool[2] = float("nan")
    with pytest.raises(ValueError, match="are NaN"):
        acquire(model, pool, 2, samples=2)


def test_a_model_without_a_method_is_refused():
    with pytest.raises(ValueError, match="carries no method"):
        acquire(nn.Linear(5, 3), torch.randn(4, 5), 2)
