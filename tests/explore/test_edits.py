"""Turning, blurring and covering, against cases by hand and SciPy."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from isingformer.explore import Edits, blurred, rotated

FILL = torch.tensor([7.0])


def image(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("degrees", "turns"), [(90, -1), (180, 2), (-90, 1), (360, 0)])
def test_quarter_turns_only_move_pixels_and_go_clockwise(degrees, turns):
    given = image(3, 6, 6)
    torch.testing.assert_close(rotated(given, degrees), torch.rot90(given, turns, (1, 2)))


def test_an_eighth_of_a_turn_by_hand():
    """The pixel at the upper right comes to the right: there, sqrt(1/2) away in x and in y, its weight is 1/2."""
    given = torch.zeros(1, 3, 3, dtype=torch.float64)
    given[0, 0, 2] = 1
    found = rotated(given, 45)[0]
    s = math.sqrt(0.5)
    assert float(found[1, 2]) == pytest.approx(s * s)
    assert float(found[0, 1]) == pytest.approx(0)  # which comes from the upper left and its neighbours
    assert float(found[1, 1]) == 0
    assert float(found[0, 2]) == pytest.approx(0)  # from straight above
    assert float(found[2, 2]) == pytest.approx(0)  # from the right


@pytest.mark.parametrize("degrees", [17, -63.5, 135])
def test_turning_is_that_of_scipy(degrees):
    given = image(1, 7, 10)
    a = math.radians(degrees)
    matrix = np.array([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])  # (row, column) of where it came from
    centre = np.array([3, 4.5])
    same = ndimage.affine_transform(
        given[0].numpy(), matrix, offset=centre - matrix @ centre, order=1, mode="nearest"
    )  # fmt: skip
    torch.testing.assert_close(rotated(given, degrees)[0], torch.from_numpy(same))


def test_a_blur_by_hand():
    """sd 0.5 ends two pixels away: weights 1, exp(-2), exp(-8), and all five sum to 1."""
    given = torch.zeros(1, 7, 7, dtype=torch.float64)
    given[0, 3, 3] = 1
    found = blurred(given, 0.5)[0]
    weights = [math.exp(-8), math.exp(-2), 1, math.exp(-2), math.exp(-8)]
    line = [0, *(w / sum(weights) for w in weights), 0]
    torch.testing.assert_close(found, torch.outer(*[torch.tensor(line, dtype=torch.float64)] * 2))


@pytest.mark.parametrize("sd", [0.7, 2.0])
def test_blurring_is_that_of_scipy_edges_included(sd):
    given = image(2, 6, 9)
    same = [ndimage.gaussian_filter(one.numpy(), sd, mode="nearest", radius=math.ceil(3 * sd)) for one in given]
    torch.testing.assert_close(blurred(given, sd), torch.from_numpy(np.stack(same)))


@pytest.mark.parametrize("sd", [5e-324, 1e-200, 1e-20, 1e-3, 0.02])
def test_next_to_no_blur_is_none(sd):
    given = image(1, 5, 5)
    assert torch.equal(blurred(given, sd), given)
    assert torch.equal(Edits(blur=sd).apply(given.float(), side=1, fill=FILL), given.float())


def test_covered_patches_have_the_fill_and_the_rest_is_left():
    given = torch.arange(2 * 4 * 6).view(2, 4, 6).to(torch.uint8)
    found = Edits(cover=(1, 5)).apply(given, side=2, fill=torch.tensor([100.0, 200.0]))
    expected = given.clone()
    for rows, columns in ((slice(0, 2), slice(2, 4)), (slice(2, 4), slice(4, 6))):
        expected[0, rows, columns], expected[1, rows, columns] = 100, 200
    assert torch.equal(found, expected)


def test_without_edits_an_image_is_itself_and_its_dtype_stays():
    for given in (torch.arange(16).view(1, 4, 4).to(torch.uint8), image(1, 4, 4).float()):
        assert torch.equal(Edits(rotate=360).apply(given, side=2, fill=FILL), given)
        assert Edits(10, 0.4, (0,)).apply(given, side=2, fill=FILL).dtype == given.dtype


def test_pixels_are_rounded_and_a_cover_is_neither_turned_nor_blurred():
    given = (255 * image(1, 8, 8)).to(torch.uint8)
    found = Edits(rotate=30, blur=1.0, cover=(0,)).apply(given, side=2, fill=FILL)
    plain = blurred(rotated(given.double(), 30), 1.0).round().to(torch.uint8)
    assert (found[0, :2, :2] == 7).all()
    plain[0, :2, :2] = 7
    assert torch.equal(found, plain)
