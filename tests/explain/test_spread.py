import math

import pytest
import torch

from isingformer.explain import Spread
from isingformer.predict import Prediction


def test_mean_sd_and_interval_by_hand():
    spread = Spread(torch.tensor([[1.0, 0.0], [2.0, 0.0], [6.0, 0.0]]))
    assert spread.mean.tolist() == [3.0, 0.0]
    assert spread.sd.tolist() == pytest.approx([math.sqrt((4 + 1 + 9) / 2), 0.0])
    low, high = spread.interval(0.5)  # quartiles of 1, 2, 6, linearly between
    assert (low[0].item(), high[0].item()) == (1.5, 4.0)


def test_intervals_are_those_of_predictions():
    samples = torch.rand(17, 3, 4, generator=torch.Generator().manual_seed(0))
    for own, other in zip(Spread(samples).interval(0.8), Prediction(samples).interval(0.8), strict=True):
        torch.testing.assert_close(own, other)


def test_one_network_has_no_spread():
    spread = Spread(torch.tensor([[3.0]]))
    assert spread.sd.item() == 0 and [end.item() for end in spread.interval()] == [3.0, 3.0]


def test_sides_of_a_reference():
    samples = torch.tensor([[0.2, 0.6, 0.4], [0.3, 0.7, 0.6]])
    assert Spread(samples).against(0.5, 0.9).tolist() == [-1, 1, 0]


def test_a_part_of_it():
    samples = torch.arange(12.0).view(2, 3, 2)
    assert Spread(samples).of(1).samples.tolist() == [[2, 3], [8, 9]]


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5])
def test_a_level_outside_is_refused(level):
    with pytest.raises(ValueError, match=f"level must be in \\(0, 1\\), got {level}"):
        Spread(torch.zeros(2)).interval(level)
