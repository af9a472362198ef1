"""Fine-tuning after removal."""

import pytest
import torch

import isingformer as isf
from isingformer.compress import class_probabilities, compress, recover, sparsify, two_of_four_masks
from isingformer.compress.recover import _cross_entropy, _groups
from isingformer.compress.sparse import is_two_of_four
from isingformer.curvature.likelihood import likelihood
from isingformer.metrics import nll


@pytest.mark.parametrize("distil", [None, 0.0, 0.7, 1.0])
@pytest.mark.parametrize("bayesian", [False, True], ids=["deterministic", "bayesian"])
def test_it_gets_better(trained, digits, distil, bayesian):
    (tx, ty), (x, y) = digits
    smaller = compress(trained, macs=0.4, bayesian=bayesian)
    before = nll(class_probabilities(smaller, x), y)
    how = {} if distil is None else {"teacher": trained, "distil": distil, "samples": 4}
    assert recover(smaller, tx, ty, steps=60, lr=2e-3, **how) is smaller
    assert not smaller.training
    assert nll(class_probabilities(smaller, x), y) < 0.7 * before


def test_the_teachers_distribution_is_learnt(trained, digits):
    """Labels that are all wrong do no harm where the teacher alone is listened to."""
    (tx, ty), (x, y) = digits
    smaller = compress(trained, macs=0.5)
    before = nll(class_probabilities(smaller, x), y)
    recover(smaller, tx, (ty + 1) % 10, epochs=2, lr=2e-3, teacher=trained, distil=1.0, samples=4)
    assert nll(class_probabilities(smaller, x), y) < before


def test_a_teacher_may_be_its_probabilities(trained, digits):
    """Made once, they teach as the model does that made them."""
    (tx, ty), _ = digits
    probs = isf.predict(trained, tx, samples=4, generator=torch.Generator().manual_seed(3)).probs
    one, other, without = (
        recover(compress(trained, macs=0.5), tx, ty, steps=3, seed=3, samples=4, teacher=teacher).state_dict()
        for teacher in (trained, probs, None)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["head.weight"], without["head.weight"])


def test_the_same_seed_trains_the_same(trained, digits):
    (tx, ty), _ = digits
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    one, other, third = (
        recover(compress(trained, macs=0.5, bayesian=True), tx, ty, steps=5, seed=seed).state_dict()
        for seed in (0, 0, 1)
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not torch.equal(one["head.weight"], third["head.weight"])


def test_a_method_goes_on_counting(trained, digits):
    (tx, ty), _ = digits
    smaller = compress(trained, macs=0.5, bayesian=True)
    before = isf.attached_to(smaller).steps
    recover(smaller, tx[:200], ty[:200], epochs=3, batch=50)
    assert isf.attached_to(smaller).steps == before + 12


@pytest.mark.parametrize("kind", ["softmax", "binary"])
def test_cross_entropy_of_one_hot_is_the_nll(kind):
    outputs = torch.randn(6, 1 if kind == "binary" else 4, dtype=torch.float64)
    y = torch.randint(2, (6,))
    probs = torch.nn.functional.one_hot(y, 2 if kind == "binary" else 4)
    expected = likelihood(kind).nll(outputs, y).mean()
    torch.testing.assert_close(_cross_entropy(likelihood(kind), outputs, probs), expected)


def test_decay_is_for_matrices_alone(trained):
    decayed, others = _groups(compress(trained, macs=0.5, structures=("units", "residual")))
    assert {p.dim() for p in decayed} == {2} and 2 not in {p.dim() for p in others}


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({}, "give epochs or steps, one of them"),
        ({"epochs": 1, "steps": 1}, "give epochs or steps, one of them"),
        ({"steps": 0}, "whole numbers from 1 on, got 0"),
        ({"steps": 1, "teacher": torch.nn.Linear(1, 1)}, "the teacher, a Linear, carries no method"),
        ({"steps": 1, "teacher": torch.ones(3, 10) / 10}, r"probabilities have shape \[3, 10\]; expected \[1437, 10\]"),
        (
            {"steps": 1, "teacher": torch.zeros(1437, 10)},
            r"must be 0 or more and sum to 1; give predict\(\.\.\.\)\.probs",
        ),
        ({"steps": 1, "distil": 2.0}, r"distil must be in \[0, 1\], got 2\.0"),
        ({"steps": 1, "labels": torch.zeros(3)}, r"and labels \[3\]; expected \[N, 1, 8, 8\] and \[N\]"),
    ],
    ids=["no length", "two lengths", "no step", "no teacher", "few rows", "no probabilities", "too much", "labels"],
)
def test_what_cannot_be_is_refused(trained, digits, how, message):
    (tx, ty), _ = digits
    smaller = compress(trained, macs=0.5)
    before = {name: tensor.clone() for name, tensor in smaller.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        recover(smaller, tx, **{"labels": ty, **how})
    assert all(torch.equal(before[name], tensor) for name, tensor in smaller.state_dict().items())


def test_only_compact_networks(trained, digits):
    with pytest.raises(ValueError, match="expected a network from compress or sparsify, got ViT"):
        recover(trained, *digits[0], steps=1)


def test_zeros_stay_zeros_where_asked(trained, digits):
    (tx, ty), (x, y) = digits
    for keep_zeros in (True, False):
        sparse = sparsify(trained, two_of_four_masks(trained))
        before, zeros = nll(class_probabilities(sparse, x), y), sparse.blocks[0].mlp.fc1.weight == 0
        recover(sparse, tx, ty, steps=20, lr=2e-3, keep_zeros=keep_zeros)
        assert bool((sparse.blocks[0].mlp.fc1.weight[zeros] == 0).all()) is keep_zeros
        assert is_two_of_four(sparse.blocks[1].attn.qkv.weight) is keep_zeros
        assert nll(class_probabilities(sparse, x), y) < before


def test_a_loss_that_is_no_number_is_noticed(trained, digits):
    (tx, ty), _ = digits
    with pytest.raises(isf.Diverged, match="NaN or infinite at step 1"):
        recover(compress(trained, macs=0.5), tx * float("nan"), ty, steps=2)
