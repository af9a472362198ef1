import math

import pytest
import torch

from isingformer.explain.attention import attention_of, attention_spread, head_entropy, rollout, to_patches


def test_rollout_of_two_blocks_by_hand():
    first = torch.tensor([[[0.0, 1.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]])  # two heads; their mean:
    # [[.5, .5], [0, 1]], with the skip [[.75, .25], [0, 1]]
    second = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]] * 2)  # with the skip [[.75, .25], [.25, .75]]
    found = rollout(torch.stack([first, second]))
    # [[.75, .25], [.25, .75]] @ [[.75, .25], [0, 1]]
    torch.testing.assert_close(found, torch.tensor([[0.5625, 0.4375], [0.1875, 0.8125]]))


def test_to_patches_leaves_the_class_token_out():
    attention = torch.tensor([[0.5, 0.1, 0.4], [0.0, 1.0, 0.0], [0.1, 0.1, 0.8]])
    assert to_patches(attention, "class").tolist() == pytest.approx([0.2, 0.8])
    assert to_patches(attention, "mean").tolist() == pytest.approx([1.2 / 2.4, 1.2 / 2.4])


def test_attention_to_the_class_token_alone_is_even():
    assert to_patches(torch.tensor([[1.0, 0.0, 0.0]] * 3), "class").tolist() == [0.5, 0.5]


def test_entropy_by_hand():
    even, sharp = torch.full((1, 2), 0.5), torch.tensor([[0.0, 1.0]])
    assert head_entropy(torch.cat([even, sharp])).item() == pytest.approx(math.log(2) / 2)


def test_the_figures_of_passes():
    sharp = torch.zeros(1, 1, 2, 3, 3)
    sharp[..., 1] = 1  # every token looks at the first patch
    even = torch.full((1, 1, 2, 3, 3), 1 / 3)
    spread = attention_spread([attention_of(a, "class") for a in (sharp, even)])
    assert spread.heads.samples.shape == (2, 1, 1, 2, 2)
    assert spread.raw.samples[:, 0].tolist() == [[1, 0], [0.5, 0.5]]
    assert spread.rollout.mean[0].tolist() == pytest.approx([0.75, 0.25])
    assert spread.entropy.mean[0, 0].tolist() == pytest.approx([math.log(3) / 2] * 2)
    assert spread.uniform == 0.5


def test_stable_and_unstable_regions():
    looks = [torch.tensor([[[[[0, a, b, 1 - a - b]] * 4] * 1]]) for a, b in ((0.6, 0.1), (0.7, 0.4))]
    spread = attention_spread([attention_of(a.float(), "class") for a in looks])
    # raw shares: 0.6 and 0.7; 0.1 and 0.4; 0.3 and -0.1, against 1/3, on the way through half a skip the same order
    assert spread.regions()[0].tolist()[:2] == [1, 0]
