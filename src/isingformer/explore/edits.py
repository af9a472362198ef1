"""What is done to an image before a model sees it: turned, blurred, covered.

Axes: C channels, H rows, W columns, P patches in reading order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..explain import covered

REACH = 3
"""Standard deviations of a blur after which its kernel ends."""
NO_BLUR = 1e-3
"""The standard deviation in pixels below which a blur is none: its neighbours' weights are 0 in any precision."""


@dataclass(frozen=True)
class Edits:
    """Turned first, then blurred, then covered, so that a cover stays where it was put."""

    rotate: float = 0.0
    """Degrees, clockwise."""
    blur: float = 0.0
    """Standard deviation in pixels."""
    cover: tuple[int, ...] = ()
    """The patches that are hidden."""

    def apply(self, image: Tensor, *, side: int, fill: Tensor) -> Tensor:
        """An image ``[C, H, W]``, changed, of its own dtype; whole numbers are rounded.

        Args:
            image: pixels.
            side: of a patch in pixels.
            fill: what a hidden pixel becomes, by channel ``[C]``.
        """
        found = image.double()
        if self.rotate % 360:
            found = rotated(found, self.rotate)
        if self.blur:
            found = blurred(found, self.blur)
        found = self.hide(found, side=side, fill=fill.double().view(-1, 1, 1))
        return found.to(image.dtype) if image.is_floating_point() else found.round().to(image.dtype)

    def hide(self, image: Tensor, *, side: int, fill: float | Tensor) -> Tensor:
        """An image ``[C, H, W]`` whose covered patches are `fill`, a number or what broadcasts with the image."""
        if not self.cover:
            return image
        hidden = torch.zeros(1, image.shape[1] // side * (image.shape[2] // side), dtype=torch.bool)
        hidden[0, list(self.cover)] = True
        return covered(image[None], hidden, side, fill)[0]


def rotated(image: Tensor, degrees: float) -> Tensor:
    """An image ``[C, H, W]`` turned clockwise about its centre.

        out(x, y) = image(x cos a + y sin a, y cos a - x sin a),        a the angle, y downward, (0, 0) the centre

    Between pixels bilinear; beyond the edge, the nearest pixel of the edge.
    """
    angle = math.radians(degrees)
    height, width = image.shape[-2:]
    y, x = (torch.arange(n, dtype=image.dtype) - (n - 1) / 2 for n in (height, width))
    from_x = x * math.cos(angle) + y[:, None] * math.sin(angle)  # [H, W]
    from_y = y[:, None] * math.cos(angle) - x * math.sin(angle)
    grid = torch.stack([from_x * (2 / width), from_y * (2 / height)], -1)  # -1 and 1 are the image's edges
    return F.grid_sample(image[None], grid[None], mode="bilinear", padding_mode="border", align_corners=False)[0]


def blurred(image: Tensor, sd: float) -> Tensor:
    """An image ``[C, H, W]`` under a Gaussian kernel, along rows and then along columns.

        weight of the pixel k away ∝ exp(-k² / (2 sd²)),        |k| ≤ ⌈3 sd⌉, weights sum to 1

    Beyond the edge, the nearest pixel of the edge.
    """
    if sd < NO_BLUR:  # whose square may be 0
        return image
    away = math.ceil(REACH * sd)
    k = torch.arange(-away, away + 1, dtype=image.dtype)
    kernel = torch.exp(-k.square() / (2 * sd * sd))
    kernel = (kernel / kernel.sum()).view(1, 1, 1, -1)
    found = image[:, None]  # every channel is an image of its own
    for _ in range(2):
        found = F.conv2d(F.pad(found, (away, away, 0, 0), mode="replicate"), kernel).transpose(-1, -2)
    return found[:, 0]
