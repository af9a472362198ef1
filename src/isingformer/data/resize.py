"""Images of another size, grey or in colour, to give a model what it was not trained on.

Axes: N images, C channels, H rows, W columns.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .dataset import DataError, Images


def resized(images: Images, size: int | tuple[int, int] | None = None, channels: int | None = None) -> Images:
    """Images of this size with this many channels, as `read_image` would make them of image files.

    Colour becomes grey by the weights of ITU-R BT.601, L = 0.299 R + 0.587 G + 0.114 B (for uint8 in Pillow's whole
    numbers, to the bit); grey becomes colour by three equal channels. An image is then scaled until it just covers the
    new size, with one factor for both sides, and cropped to its centre: bilinear, averaging where it shrinks.

    Args:
        images: uint8 or float32.
        size: (H, W), or one number for a square; None leaves the size.
        channels: 1 or 3; None leaves the channels.

    Raises:
        DataError: The size is below 1 or more than the memory holds, or the channels are not 1 and 3 where they would
            have to change.
    """
    height, width = images.x.shape[2:] if size is None else (size, size) if isinstance(size, int) else size
    if min(height, width) < 1:
        raise DataError(f"cannot resize images to {width} x {height}; expected at least 1 x 1 pixels")
    x = images.x if channels is None else _with_channels(images.x, channels)
    return Images(x if tuple(x.shape[2:]) == (height, width) else _fitted(x, height, width), images.y)


def _with_channels(x: Tensor, channels: int) -> Tensor:
    """``[N, C, H, W]`` to ``[N, channels, H, W]``."""
    found = x.shape[1]
    if found == channels:
        return x
    if {found, channels} != {1, 3}:
        raise DataError(f"cannot turn {found} channels into {channels}; expected 1 (grey) and 3 (RGB) in either order")
    if channels == 3:
        return x.expand(-1, 3, -1, -1).contiguous()
    grey = torch.empty((len(x), 1, *x.shape[2:]), dtype=x.dtype)
    for some, out in zip(x.split(1024), grey.split(1024), strict=True):  # wider numbers only a chunk at a time
        if x.dtype == torch.uint8:
            red, green, blue = some.int().unbind(1)
            out[:, 0] = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
        else:
            red, green, blue = some.unbind(1)
            out[:, 0] = 0.299 * red + 0.587 * green + 0.114 * blue
    return grey


def _fitted(x: Tensor, height: int, width: int) -> Tensor:
    """``[N, C, H, W]`` to ``[N, C, height, width]``, each channel an image of its own to Pillow."""
    from PIL import Image, ImageOps

    try:
        out = torch.empty((*x.shape[:2], height, width), dtype=x.dtype)
    except RuntimeError:
        raise DataError(
            f"{len(x):,} images of {width:,} x {height:,} pixels do not fit the memory; resize to less"
        ) from None
    planes, targets = x.flatten(0, 1).numpy(), out.flatten(0, 1).numpy()
    for plane, target in zip(planes, targets, strict=True):
        fitted = ImageOps.fit(Image.fromarray(plane), (width, height), Image.Resampling.BILINEAR)
        target[...] = np.asarray(fitted)
    return out
