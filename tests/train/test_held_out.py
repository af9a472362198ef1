"""Images held out of the gradient, and when they are asked."""

import dataclasses
import itertools
import math

import pytest
import torch

import isingformer as isf
from isingformer.data import Images
from isingformer.train.batches import Batches, derived_seed
from isingformer.train.held_out import MOST, HeldOut
from pictures import corners

RECIPE = isf.Recipe(epochs=20, batch=16, width=16, depth=2, heads=2, mlp=16, patch=4, validation=16, lr=1e-2)
LEARNS = isf.Ising(refresh=3, learn_delta=0.25)


def batches(number, held_out, batch=8, share=(0, 1)):
    """Of images that are their own numbers."""
    x = torch.arange(number).view(-1, 1, 1, 1).expand(-1, 1, 8, 8).float()
    return Batches(
        Images(x, torch.arange(number)), batch=batch, mean=torch.zeros(1), sd=torch.ones(1), augment=(), seed=4,
        device=torch.device("cpu"), share=share, held_out=held_out,
    )  # fmt: skip


def test_they_come_back_and_are_seen_by_no_batch_before():
    held = HeldOut(images=6, epochs=2)
    source = batches(30, held)
    outside = set(source.outside.tolist())
    assert len(outside) == 6 and source.per_epoch == 3
    epochs = [torch.cat([source(3 * epoch + place)[1] for place in range(3)]).tolist() for epoch in range(12)]
    assert all(not outside & set(seen) for seen in epochs[:2])
    assert outside <= {image for seen in epochs[2:] for image in seen}
    assert all(len(set(seen)) == 24 for seen in epochs)  # 24 are needed, and 24 are left: none comes twice
    x, y = source.outsiders()
    assert set(y.tolist()) == outside and x[:, 0, 0, 0].tolist() == y.tolist()


def test_too_few_left_go_round():
    source = batches(30, HeldOut(images=14, epochs=1))
    seen = torch.cat([source(place)[1] for place in range(3)]).tolist()
    assert len(seen) == 24 and len(set(seen)) == 16 and not set(seen) & set(source.outside.tolist())


def test_none_held_out_is_the_order_there_always_was():
    source = batches(30, None)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(derived_seed(4, "order", 1)))
    assert torch.equal(torch.cat([source.rows(3 + place) for place in range(3)]), order[:24])


def test_a_share_is_held_out_but_never_more_than_a_number():
    few, many = (HeldOut.of(LEARNS, examples=examples, epochs=10) for examples in (100, 100_000))
    assert (few.images, many.images) == (25, MOST) and few.epochs == many.epochs == 6


def test_processes_share_them():
    held = HeldOut(images=50, epochs=1)
    whole = batches(120, held).outsiders()[1].tolist()
    parts = [batches(120, held, share=(number, 3)).outsiders()[1].tolist() for number in range(3)]
    assert sorted(itertools.chain(*parts)) == sorted(whole) and len(set(whole)) == 50


@pytest.mark.parametrize(("steps", "settling"), [(100, 5), (100, 30), (10_000, 500), (20, 1)])
def test_moves_lie_between_the_warm_up_and_the_return(steps, settling):
    moves = HeldOut(images=5, epochs=6).moves(steps=steps, per_epoch=steps // 10, settling=settling)
    assert moves[0] >= max(steps // 10, settling) and moves[-1] < 0.6 * steps
    assert len(moves) >= min(36, 0.6 * steps - moves[0]) and len(moves) <= 72
    assert not HeldOut().moves(steps=steps, per_epoch=1, settling=0)


def test_a_training_learns_delta_and_its_run_keeps_it(tmp_path):
    run = isf.train(corners(), LEARNS, RECIPE, out=tmp_path / "a", progress=False, tensorboard=False)
    base = isf.attached_to(run.model).rule.base
    assert abs(float(base.logit) - math.log(0.1 / 0.9)) > 0.01 and len(run_moves(80)) == int(base.moves) >= 20
    again = isf.attached_to(isf.Run(tmp_path / "a").model)
    assert float(again.rule.base.value) == float(base.value)
    q = torch.cat([q.flatten() for q in again.drop_probability().values()])
    assert float(torch.logit(q).mean()) == pytest.approx(float(base.logit), abs=0.5)


def run_moves(images):
    per_epoch = images // RECIPE.batch
    held = HeldOut.of(LEARNS, examples=images, epochs=RECIPE.epochs)
    steps = RECIPE.epochs * per_epoch
    return held.moves(steps=steps, per_epoch=per_epoch, settling=round(0.3 * steps))  # after the ramp


def test_a_sample_too_small_to_hold_out_of_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"learn_delta=0\.25 of 6 training images holds out fewer than two"):
        isf.train(corners(), LEARNS, dataclasses.replace(RECIPE, train_size=6, batch=2), out=tmp_path / "a")
    assert not (tmp_path / "a").exists()
