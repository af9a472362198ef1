import pytest
import torch

from isingformer.explain import covered, curve, order_of, random_order


def test_order_is_from_the_highest_the_first_of_equals_first():
    assert order_of(torch.tensor([[1.0, 3.0, 3.0, -2.0]])).tolist() == [[1, 2, 0, 3]]


def test_random_orders_are_orders():
    found = random_order(5, 7, torch.Generator().manual_seed(0))
    assert found.sort(-1).values.tolist() == [list(range(7))] * 5
    assert torch.equal(found, random_order(5, 7, torch.Generator().manual_seed(0)))


def test_covering_patches():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    found = covered(x, torch.tensor([[False, True, False, False]]), 2, baseline=-1.0)
    assert found[0, 0].tolist() == [[0, 1, -1, -1], [4, 5, -1, -1], [8, 9, 10, 11], [12, 13, 14, 15]]


def brightness(x):
    """A model whose class 1 is as likely as the image is bright on average."""
    p = x.mean((1, 2, 3))
    return torch.stack([1 - p, p], 1)


def test_deletion_and_insertion_by_hand():
    x = torch.tensor([[0.8, 0.0], [0.4, 0.0]]).view(1, 1, 2, 2)  # patches of one pixel; p = 0.3
    target = torch.tensor([1])
    best = curve(brightness, x, target, order_of(x.flatten(1)), side=1)
    assert best.shares.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert best.probability[0].tolist() == pytest.approx([0.3, 0.1, 0, 0, 0])
    assert best.area.item() == pytest.approx((0.2 + 0.05) / 4)
    worst = curve(brightness, x, target, order_of(-x.flatten(1)), side=1)
    assert worst.probability[0].tolist() == pytest.approx([0.3, 0.3, 0.3, 0.2, 0])
    inserted = curve(brightness, x, target, order_of(x.flatten(1)), side=1, kind="insertion")
    assert inserted.probability[0].tolist() == pytest.approx([0, 0.2, 0.3, 0.3, 0.3])
    assert inserted.area.item() == pytest.approx((0.1 + 0.25 + 0.3 + 0.3) / 4)


def test_the_baseline_is_what_stays():
    x = torch.full((1, 1, 2, 2), 0.2)
    found = curve(brightness, x, torch.tensor([1]), torch.arange(4)[None], side=1, baseline=1.0)
    assert found.probability[0].tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_fewer_points_skip_some_patches():
    x = torch.tensor([[0.8, 0.0], [0.4, 0.0]]).view(1, 1, 2, 2)
    found = curve(brightness, x, torch.tensor([1]), torch.tensor([[0, 2, 1, 3]]), side=1, points=2)
    assert found.shares.tolist() == [0, 0.5, 1] and found.probability[0].tolist() == pytest.approx([0.3, 0, 0])


@pytest.mark.parametrize(
    ("given", "message"),
    [({"points": 5}, "points must be 1 to 4"), ({"points": 0}, "got 0"), ({"kind": "removal"}, "got 'removal'")],
    ids=["too many", "none", "kind"],
)
def test_bad_requests_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        curve(brightness, torch.zeros(1, 1, 2, 2), torch.tensor([0]), torch.arange(4)[None], side=1, **given)
