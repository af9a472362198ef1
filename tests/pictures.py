"""Small images that a small network learns in seconds: a bright square, whose corner is the class."""

import torch

from isingformer.data import Dataset, Images

CORNERS = ("top left", "top right", "bottom left", "bottom right")


def pictures(n, *, side=8, channels=1, classes=4, noise=40, seed=0):
    """`n` images with their labels, the classes in turn."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % classes
    x = torch.randint(0, noise, (n, channels, side, side), generator=generator, dtype=torch.int64)
    half = side // 2
    for image, label in zip(x, y.tolist(), strict=True):
        down, right = divmod(label, 2)
        image[:, down * half : (down + 1) * half, right * half : (right + 1) * half] += 255 - noise
    return Images(x.clamp(0, 255).to(torch.uint8), y)


def corners(train=96, test=40, **changes):
    """A dataset of them."""
    classes = CORNERS[: changes.get("classes", 4)]
    return Dataset("corners", pictures(train, seed=1, **changes), pictures(test, seed=2, **changes), classes)
