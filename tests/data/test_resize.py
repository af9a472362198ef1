"""Sizes and colours against Pillow, and against `read_image` on the same picture in a file."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from isingformer.data import DataError, Images, read_image, resized


def pictures(channels, height, width, n=4, seed=0, dtype=torch.uint8):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (n, channels, height, width), generator=generator).to(dtype)
    return Images(x, torch.arange(n))


def pillow(image):
    """``[C, H, W]`` uint8 as a Pillow image."""
    pixels = image.permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


SIZES = [(5, 5), (8, 8), (32, 32), (8, 13), (13, 8), (1, 1), (40, 3)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("channels", "wanted"), [(1, 1), (3, 3), (3, 1), (1, 3)])
def test_the_same_as_a_file_read_at_that_size(tmp_path, size, channels, wanted):
    images = pictures(channels, 16, 12)
    found = resized(images, size, wanted)
    assert found.x.dtype == torch.uint8 and torch.equal(found.y, images.y)
    for number, image in enumerate(images.x):
        file = tmp_path / f"{number}.png"
        pillow(image).save(file)
        assert torch.equal(found.x[number], read_image(file, channels=wanted, size=size, resize=True))


def test_every_colour_becomes_pillows_grey():
    levels = torch.arange(0, 256, 5, dtype=torch.uint8)
    x = torch.cartesian_prod(levels, levels, levels).T.reshape(1, 3, 52, -1)
    grey = resized(Images(x, torch.zeros(1, dtype=torch.long)), channels=1).x[0, 0]
    assert np.array_equal(grey.numpy(), np.asarray(pillow(x[0]).convert("L")))


def test_colours_of_many_images_are_converted_alike():
    images = pictures(3, 2, 2, n=2500)
    grey = resized(images, channels=1)
    for row in (0, 1023, 1024, 2499):
        assert np.array_equal(grey.x[row, 0].numpy(), np.asarray(pillow(images.x[row]).convert("L")))


@pytest.mark.parametrize("size", SIZES)
def test_floats_stay_floats(size):
    images = pictures(3, 16, 12, dtype=torch.float32)
    images = Images(images.x / 255 - 0.5, images.y)
    found = resized(images, size)
    assert found.x.dtype == torch.float32
    for image, result in zip(images.x, found.x, strict=True):
        for channel, plane in zip(image, result, strict=True):
            fitted = ImageOps.fit(Image.fromarray(channel.numpy()), size[::-1], Image.Resampling.BILINEAR)
            np.testing.assert_allclose(plane, np.asarray(fitted), atol=1e-6)


def test_floats_become_grey_by_the_weights():
    x = torch.rand(2000, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    grey = resized(Images(x, torch.zeros(2000, dtype=torch.long)), channels=1).x
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64).view(1, 3, 1, 1)
    torch.testing.assert_close(grey.double(), (weights * x.double()).sum(1, keepdim=True), atol=1e-6, rtol=0)


def test_shrinking_averages():
    """Half the size weights four pixels a side by a triangle; every second pixel would miss the odd columns."""
    stripes = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    stripes[..., ::2] = 200
    small = resized(Images(stripes, torch.zeros(1, dtype=torch.long)), 4).x
    assert (small[0, 0, :, 1:3].int() - 100).abs().max() <= 1


def test_the_centre_is_kept():
    x = torch.zeros(1, 1, 4, 8, dtype=torch.uint8)
    x[..., 2:6] = 255
    assert torch.equal(resized(Images(x, torch.zeros(1, dtype=torch.long)), 4).x, torch.full((1, 1, 4, 4), 255).byte())


def test_nothing_asked_nothing_changed():
    images = pictures(3, 5, 7)
    assert torch.equal(resized(images).x, images.x)
    assert torch.equal(resized(images, (5, 7), 3).x, images.x)
    before = images.x.clone()
    resized(images, 3, 1)
    assert torch.equal(images.x, before)


def test_no_images_stay_none():
    assert resized(pictures(3, 5, 7, n=0), 4, 1).x.shape == (0, 1, 4, 4)


def test_any_number_of_channels_can_be_scaled():
    images = pictures(5, 16, 12)
    assert torch.equal(resized(images, 8).x[:, 3:4], resized(Images(images.x[:, 3:4], images.y), 8).x)


@pytest.mark.parametrize(("have", "want"), [(2, 3), (3, 2), (1, 4), (4, 1), (3, 0)])
def test_other_channels_are_refused(have, want):
    with pytest.raises(DataError, match=f"cannot turn {have} channels into {want}"):
        resized(pictures(have, 4, 4), channels=want)


@pytest.mark.parametrize("size", [0, -1, (0, 4), (4, 0)])
def test_a_size_must_be_positive(size):
    with pytest.raises(DataError, match="at least 1 x 1"):
        resized(pictures(1, 4, 4), size)


def test_a_size_beyond_the_memory_is_said_in_words():
    with pytest.raises(DataError, match="images of 50,000,000 x 50,000,000 pixels do not fit the memory"):
        resized(pictures(1, 4, 4), 50_000_000)
