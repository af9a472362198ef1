"""Samples by seed: disjoint, of the right size, fair to the classes, the same everywhere."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isingformer.data import DataError, Images, split, split_rows, standardise, subset


def labelled(counts, seed=0):
    """Labels with so many of each class, mixed."""
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))]


def numbered(y):
    """Images that say which row they are."""
    return Images(torch.arange(len(y), dtype=torch.float32).view(-1, 1, 1, 1), y)


@st.composite
def requests(draw):
    """Labels, a training and a validation size that fit, a seed."""
    counts = draw(st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(any))
    train = draw(st.integers(1, sum(counts)))
    validation = draw(st.integers(0, sum(counts) - train))
    return labelled(counts, draw(st.integers(0, 99))), train, validation, draw(st.integers(0, 2**63 - 1))


EASY = settings(max_examples=200, deadline=None)


@EASY
@given(request=requests(), stratified=st.booleans())
def test_sizes_are_as_asked_and_nothing_is_in_both(request, stratified):
    y, train, validation, seed = request
    rows, held_out = split_rows(y, train=train, validation=validation, stratified=stratified, seed=seed)
    both = torch.cat([rows, held_out]).tolist()
    assert (len(rows), len(held_out)) == (train, validation)
    assert len(set(both)) == len(both) and set(both) <= set(range(len(y)))


@EASY
@given(request=requests(), stratified=st.booleans())
def test_training_does_not_depend_on_validation(request, stratified):
    y, train, validation, seed = request
    alone = split_rows(y, train=train, validation=0, stratified=stratified, seed=seed)[0]
    beside = split_rows(y, train=train, validation=validation, stratified=stratified, seed=seed)[0]
    assert torch.equal(alone, beside)


@EASY
@given(request=requests())
def test_classes_get_their_shares(request):
    y, train, validation, seed = request
    rows, held_out = split_rows(y, train=train, validation=validation, seed=seed)
    totals, taken, held = (Counter(labels.tolist()) for labels in (y, y[rows], y[held_out]))
    exact = {c: train * totals[c] / len(y) for c in totals}
    if train < len(totals):
        assert all(abs(taken[c] - exact[c]) < 1 for c in totals)
    else:
        assert all(taken[c] >= 1 for c in totals)
        raised = sum(max(1 - exact[c], 0) for c in totals)  # what the least classes got beyond their share
        assert all(exact[c] - 1 - math.ceil(raised) < taken[c] < max(exact[c] + 1, 1 + 1e-9) for c in totals)
        if min(exact.values()) >= 1:
            assert all(abs(taken[c] - exact[c]) < 1 for c in totals)
    left = {c: totals[c] - taken[c] for c in totals}
    if validation:
        assert all(abs(held[c] - validation * left[c] / sum(left.values())) < 1 for c in totals)


@EASY
@given(counts=st.lists(st.integers(1, 40), min_size=2, max_size=6), data=st.data())
def test_the_shares_are_the_nearest_whole_numbers(counts, data):
    """Largest remainder is the rounding with the least sum of squared distances, found here by trying all."""
    train = data.draw(st.integers(0, sum(counts)))
    exact = [train * n / sum(counts) for n in counts]
    if train == 0 or min(exact) < 1:
        return
    rows, _ = split_rows(labelled(counts), train=train, validation=0)
    taken = torch.bincount(labelled(counts)[rows], minlength=len(counts)).tolist()
    low = [math.floor(e + 1e-9) for e in exact]
    best = min(
        sum((lo + up - e) ** 2 for lo, up, e in zip(low, ups, exact, strict=True))
        for ups in np.ndindex(*[2] * len(counts))
        if sum(low) + sum(ups) == train
    )
    assert sum((t - e) ** 2 for t, e in zip(taken, exact, strict=True)) == pytest.approx(best, abs=1e-6)


def test_even_classes_are_sampled_evenly():
    y = labelled([100] * 10)
    rows, held_out = split_rows(y, train=500, validation=0.1)
    assert torch.bincount(y[rows]).tolist() == [50] * 10
    assert torch.bincount(y[held_out]).tolist() == [5] * 10


def test_a_rare_class_is_trained_on():
    y = labelled([997, 2, 1])
    rows, _ = split_rows(y, train=3, validation=100)
    assert sorted(y[rows].tolist()) == [0, 1, 2]
    rows, held_out = split_rows(y)
    assert 2 in y[rows] and len(held_out) == 100


def permutation(n, seed):
    """What torch.randperm does on a CPU: Fisher and Yates' shuffle with a Mersenne Twister, here NumPy's."""
    twister = np.random.MT19937()
    twister._legacy_seeding(seed)
    order = list(range(n))
    for i in range(n - 1):
        j = i + int(twister.random_raw()) % (n - i)
        order[i], order[j] = order[j], order[i]
    return order


@pytest.mark.parametrize(("seed", "n"), [(0, 1000), (1, 1000), (12345, 70_000)])
def test_the_same_rows_on_every_machine(seed, n):
    y = torch.zeros(n, dtype=torch.long)
    rows, held_out = split_rows(y, train=700, validation=200, stratified=False, seed=seed)
    order = permutation(n, seed)
    assert rows.tolist() == order[:700]
    assert held_out.tolist() == order[700:900]


@pytest.mark.parametrize("seed", [0, 7])
def test_stratified_rows_are_each_classs_first_in_the_permutation(seed):
    y = labelled([60, 30, 10])
    rows, held_out = split_rows(y, train=50, validation=10, seed=seed)
    order = permutation(100, seed)
    for c, (train, validation) in enumerate([(30, 6), (15, 3), (5, 1)]):
        of_class = [row for row in order if y[row] == c]
        assert [row for row in rows.tolist() if y[row] == c] == of_class[:train]
        assert [row for row in held_out.tolist() if y[row] == c] == of_class[train : train + validation]


def test_another_seed_draws_other_rows_and_the_global_generator_is_left_alone():
    before = torch.get_rng_state()
    y = labelled([50, 50])
    drawn = {tuple(sorted(split_rows(y, train=40, seed=seed)[0].tolist())) for seed in range(20)}
    assert len(drawn) == 20
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("stratified", [True, False])
def test_every_row_is_drawn_equally_often(stratified):
    y = labelled([20, 20])
    counts = torch.zeros(40)
    for seed in range(2000):
        counts[split_rows(y, train=10, validation=0, stratified=stratified, seed=seed)[0]] += 1
    # Each is Binomial(2000, 1/4), mean 500: one of 40 is beyond 5 sd in two of 100,000 choices of seeds.
    assert (counts - 500).abs().max() < 5 * math.sqrt(2000 * 0.25 * 0.75)


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [
        ({}, (90, 10)),
        ({"validation": 0}, (100, 0)),
        ({"validation": 0.0}, (100, 0)),
        ({"validation": 25}, (75, 25)),
        ({"validation": 0.25}, (75, 25)),
        ({"train": 50}, (50, 5)),
        ({"train": 50, "validation": 0.5}, (50, 25)),
        ({"train": 50, "validation": 1.0}, (50, 50)),
        ({"train": 50, "validation": 1}, (50, 1)),
        ({"train": 100, "validation": 0}, (100, 0)),
        ({"train": np.int64(10), "validation": np.int64(3)}, (10, 3)),
    ],
)
@pytest.mark.parametrize("stratified", [True, False])
def test_what_sizes_mean(asked, sizes, stratified):
    train, validation = split(numbered(labelled([70, 30])), **asked, stratified=stratified)
    assert (len(train), len(validation)) == sizes


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"train": 101, "validation": 0}, "100 images are too few for 101 to train on and 0"),
        ({"train": 95}, "100 images are too few for 95 to train on and 10"),
        ({"validation": 100}, "100 images are too few for 1 to train on and 100"),
        ({"validation": 1.0}, "100 images are too few for 1 to train on and 100"),
        ({"train": 0}, "asked for 0 training"),
        ({"train": -5}, "asked for -5 training"),
        ({"validation": -1}, "-1 validation images"),
        ({"validation": 1.5}, "share 1.5"),
        ({"validation": float("nan")}, "share nan"),
    ],
)
def test_what_cannot_be_had(asked, found):
    with pytest.raises(DataError, match=found) as error:
        split(numbered(labelled([70, 30])), **asked)
    assert "\n" not in str(error.value)


def test_there_are_no_images():
    with pytest.raises(DataError, match="0 images are too few"):
        split(numbered(torch.zeros(0, dtype=torch.long)), validation=0)


def test_the_images_of_the_rows_are_returned():
    images = numbered(labelled([40, 60]))
    rows, held_out = split_rows(images.y, train=30, validation=7, seed=3)
    train, validation = split(images, train=30, validation=7, seed=3)
    for part, numbers in ((train, rows), (validation, held_out)):
        assert part.x.flatten().tolist() == numbers.tolist()
        assert torch.equal(part.y, images.y[numbers])


def test_a_subset_is_a_training_sample():
    images = numbered(labelled([40, 60]))
    for stratified in (True, False):
        few = subset(images, 20, seed=5, stratified=stratified)
        assert torch.equal(few.x, split(images, train=20, stratified=stratified, seed=5)[0].x)
    with pytest.raises(DataError, match="100 images are too few for 101"):
        subset(images, 101, seed=0)


@pytest.mark.parametrize("n", [1, 5, 2**16, 2**16 + 1])
def test_mean_and_sd_by_channel(n):
    x = torch.randint(0, 256, (n, 3, 3, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(n))
    mean, sd = standardise(Images(x, torch.zeros(n, dtype=torch.long)))
    by_channel = x.numpy().astype(np.float64).transpose(1, 0, 2, 3).reshape(3, -1)
    assert mean.dtype == sd.dtype == torch.float32
    np.testing.assert_allclose(mean, by_channel.mean(1), rtol=1e-7)
    np.testing.assert_allclose(sd, by_channel.std(1), rtol=1e-7)


def test_floats_far_from_zero_keep_their_sd():
    x = 1e4 + torch.randn(300, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    mean, sd = standardise(Images(x, torch.zeros(300, dtype=torch.long)))
    np.testing.assert_allclose(sd, x.numpy().astype(np.float64).std(), rtol=1e-6)
    np.testing.assert_allclose(mean, x.numpy().astype(np.float64).mean(), rtol=1e-6)


@pytest.mark.parametrize("value", [0, 7, 0.1, 1e-30])
def test_a_constant_channel_is_not_scaled(value):
    dtype = torch.uint8 if isinstance(value, int) else torch.float32
    x = torch.full((5000, 2, 3, 3), value, dtype=dtype)
    x[0, 1] = 3
    mean, sd = standardise(Images(x, torch.zeros(5000, dtype=torch.long)))
    assert sd[0] == 1 and 0 < sd[1] < 1
    assert mean[0].item() == pytest.approx(value, rel=1e-6)


def test_no_images_have_no_mean():
    with pytest.raises(DataError, match=r"shape \[0, 1, 2, 2\]"):
        standardise(Images(torch.zeros(0, 1, 2, 2), torch.zeros(0, dtype=torch.long)))
