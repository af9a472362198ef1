"""Which images train, which validate: drawn by a seed, the same on every machine.

A permutation of all N rows comes from a `torch.Generator` of its own on the CPU, whose numbers (Mersenne Twister) do
not depend on the machine. Training takes rows from its front, validation the rows after those; so the training sample
follows from the seed, the labels and its size alone, whatever is held out beside it.
"""

from __future__ import annotations

import operator

import torch
from torch import Generator, Tensor

from .dataset import DataError, Images

_CHUNK = 2**20  # numbers made float64 at a time


def split(
    images: Images,
    *,
    train: int | None = None,
    validation: int | float = 0.1,
    stratified: bool = True,
    seed: int = 0,
) -> tuple[Images, Images]:
    """Images to train on and images to validate on, none in both.

    Args:
        images: What to draw from.
        train: How many images to train on; None for all that validation leaves.
        validation: How many images to hold out: a whole number is a count; a fraction is a share of `train`, or of all
            images where `train` is None. 0 holds out none.
        stratified: Give every class its share of the sample, to within one image; False draws without regard to class.
        seed: The same seed draws the same images.

    Raises:
        DataError: There are not that many images.
    """
    rows, held_out = split_rows(images.y, train=train, validation=validation, stratified=stratified, seed=seed)
    return images.take(rows), images.take(held_out)


def subset(images: Images, n: int, *, seed: int, stratified: bool = True) -> Images:
    """That many images: the same that `split` would train on."""
    return split(images, train=n, validation=0, stratified=stratified, seed=seed)[0]


def split_rows(
    y: Tensor,
    *,
    train: int | None = None,
    validation: int | float = 0.1,
    stratified: bool = True,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """The row numbers that `split` takes, ``[train]`` and ``[validation]``, in random order.

    Class c with N_c of the N labels gets train N_c / N rows, rounded by largest remainder: all are rounded down, and
    the classes with the largest remainders (of equals, the lower number) get one more. Where there are at least as many
    rows as classes, one that would get none gets one from the class with the most. Validation is shared out in the same
    way over what training leaves.
    """
    n_train, n_validation = _sizes(len(y), train, validation)
    order = torch.randperm(len(y), generator=Generator().manual_seed(seed))
    if not stratified:
        return order[:n_train], order[n_train : n_train + n_validation]
    classes, numbered = y.unique(return_inverse=True)
    totals = torch.bincount(numbered, minlength=len(classes)).tolist()
    for_training = _at_least_one(_shares(totals, n_train))
    left = [total - taken for total, taken in zip(totals, for_training, strict=True)]
    for_validation = _shares(left, n_validation)

    place = _place_in_class(numbered[order])
    first = torch.tensor(for_training)[numbered[order]]
    last = first + torch.tensor(for_validation)[numbered[order]]
    return order[place < first], order[(first <= place) & (place < last)]


def standardise(images: Images) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel over all pixels, float32 ``[C]``, in the units of the pixels.

        mean_c = Σ x / n,   sd_c = √(Σ (x - mean_c)² / n),   n = N H W

    They are summed in float64, a few images at a time. A channel that is the same everywhere gets sd 1: there is
    nothing to scale.
    """
    x = images.x
    n = x.shape[0] * x.shape[2] * x.shape[3]
    if n == 0:
        raise DataError(f"cannot take the mean of images of shape {list(x.shape)}; expected at least one pixel")
    chunks = x.split(max(_CHUNK // x[0].numel(), 1))
    total, squares = torch.zeros(2, x.shape[1], dtype=torch.float64)
    for some in chunks:
        total += some.double().sum((0, 2, 3))
    mean = total / n
    for some in chunks:
        squares += (some.double() - mean.view(-1, 1, 1)).square().sum((0, 2, 3))
    constant = x.amax((0, 2, 3)) == x.amin((0, 2, 3))  # rounding may leave a sd that is tiny and not 0
    return mean.float(), (squares / n).sqrt().masked_fill(constant, 1.0).float()


def _sizes(n: int, train: int | None, validation: int | float) -> tuple[int, int]:
    """How many images train and how many validate, of n."""
    if isinstance(validation, float):
        if not 0 <= validation <= 1:
            raise DataError(f"validation is the share {validation}; expected 0.0 to 1.0, or a whole number of images")
        held_out = round(validation * (n if train is None else train))
    else:
        held_out = operator.index(validation)
    wanted = max(n - held_out, 1) if train is None else operator.index(train)
    if held_out < 0 or wanted < 1:
        raise DataError(f"asked for {wanted} training and {held_out} validation images; expected at least 1 and 0")
    if wanted + held_out > n:
        raise DataError(
            f"{n:,} images are too few for {wanted:,} to train on and {held_out:,} to validate on; ask for at most "
            f"{n:,} together"
        )
    return wanted, held_out


def _shares(totals: list[int], n: int) -> list[int]:
    """n shared out in proportion to the totals, in whole numbers, by largest remainder; never more than a total."""
    everything = sum(totals)
    if n == 0:
        return [0] * len(totals)
    shares = [n * total // everything for total in totals]
    by_remainder = sorted(range(len(totals)), key=lambda c: (-(n * totals[c] % everything), c))
    for c in by_remainder[: n - sum(shares)]:
        shares[c] += 1
    return shares


def _at_least_one(shares: list[int]) -> list[int]:
    """No share of 0 where there are enough to go round: the largest give."""
    shares = list(shares)
    while sum(shares) >= len(shares) and 0 in shares:
        shares[shares.index(max(shares))] -= 1
        shares[shares.index(0)] += 1
    return shares


def _place_in_class(labels: Tensor) -> Tensor:
    """Of each label, how many of its class come before it."""
    place = torch.empty_like(labels)
    by_class = labels.argsort(stable=True)
    counts = torch.bincount(labels)
    starts = counts.cumsum(0) - counts
    place[by_class] = torch.arange(len(labels)) - starts.repeat_interleave(counts)
    return place
