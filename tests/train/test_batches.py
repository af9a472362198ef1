import torch

from isingformer.train.batches import Batches, augmented, derived_seed, margin, shifted, standardised
from pictures import pictures

CPU = torch.device("cpu")


def batches(images, batch=8, augment=(), seed=0):
    return Batches(
        images, batch=batch, mean=torch.tensor([100.0]), sd=torch.tensor([50.0]), augment=augment, seed=seed, device=CPU
    )


def test_an_epoch_sees_every_image_once_but_for_those_that_fill_no_batch():
    source = batches(pictures(21))
    assert source.per_epoch == 2
    orders = []
    for epoch in range(3):
        rows = torch.cat([source.rows(epoch * 2 + place) for place in range(2)])
        assert len(set(rows.tolist())) == 16
        orders.append(rows.tolist())
    assert len({tuple(order) for order in orders}) == 3


def test_a_step_does_not_depend_on_the_steps_before_it():
    images = pictures(24)
    one, other = batches(images, augment=("flip", "crop")), batches(images, augment=("flip", "crop"))
    in_order = [one(step) for step in range(7)]
    for step in (5, 0, 6, 3):
        x, y = other(step)
        assert torch.equal(x, in_order[step][0]) and torch.equal(y, in_order[step][1])
    assert not torch.equal(batches(images, seed=1)(0)[0], batches(images, seed=0)(0)[0])


def test_batches_hold_the_images_of_their_rows_standardised():
    images = pictures(24)
    source = batches(images)
    x, y = source(4)
    rows = source.rows(4)
    assert torch.equal(y, images.y[rows])
    torch.testing.assert_close(x, (images.x[rows].float() - 100) / 50)


def test_standardised_uses_each_channels_own_numbers():
    x = torch.full((2, 3, 4, 4), 10, dtype=torch.uint8)
    y = standardised(x, torch.tensor([0.0, 10.0, 20.0]), torch.tensor([1.0, 2.0, 5.0]))
    assert y[0, :, 0, 0].tolist() == [10.0, 0.0, -2.0] and y.dtype == torch.float32


def test_shifted_equals_a_loop_over_images_and_pixels():
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(1, 256, (5, 2, 16, 16), generator=generator, dtype=torch.int64).to(torch.uint8)
    around = margin(x)
    assert around == 2
    down, right = torch.randint(0, 2 * around + 1, (2, 5), generator=generator)
    found = shifted(x, down, right)
    for n in range(5):
        for i in range(16):
            for j in range(16):
                row, column = i + int(down[n]) - around, j + int(right[n]) - around
                inside = 0 <= row < 16 and 0 <= column < 16
                expected = x[n, :, row, column].tolist() if inside else [0, 0]
                assert found[n, :, i, j].tolist() == expected


def test_a_flip_is_a_mirror_image_half_of_the_time():
    x = pictures(400, classes=4).x
    found = augmented(x, ("flip",), torch.Generator().manual_seed(0))
    mirrored = torch.tensor([torch.equal(a, b.flip(-1)) for a, b in zip(found, x, strict=True)])
    kept = torch.tensor([torch.equal(a, b) for a, b in zip(found, x, strict=True)])
    assert bool((mirrored | kept).all())
    assert abs(int(mirrored.sum()) - 200) < 50  # five sd of 400 fair coins


def test_nothing_is_augmented_unless_asked():
    x = pictures(4).x
    assert augmented(x, (), torch.Generator()) is x


def test_derived_seeds_differ_and_fit_a_generator():
    seeds = {derived_seed(seed, what, step) for seed in range(5) for what in ("order", "noise") for step in range(50)}
    assert len(seeds) == 500 and all(0 <= seed < 2**62 for seed in seeds)
    assert derived_seed(1, "noise", 23) != derived_seed(12, "noise", 3)
