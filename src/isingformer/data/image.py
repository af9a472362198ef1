"""Single images: PNG, JPEG, BMP, GIF (its first frame), WebP, TIFF, PPM and PGM.

An image is grey (Pillow's modes 1, L, LA: one channel) or RGB (RGB, RGBA, P, PA, CMYK, YCbCr: three channels), as its
file says, not as its pixels look: a palette counts as RGB even if its colours are grey, so a GIF always does. 16-bit
grey, 32-bit and floating-point images are refused: there is no single right way to make 8 bits of them. The
orientation in a photo's EXIF data is followed. An alpha channel that is opaque everywhere is dropped; one that is not
is refused, or laid on white where conversion is asked for.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch
from torch import Tensor

from ._reading import reason, require_file, shown
from .dataset import DataError

if TYPE_CHECKING:
    from PIL.Image import Image, Transpose

MOST_PIXELS = 50_000_000
EXTENSIONS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # no others: some run programs of their own
_GREY = ("1", "L", "LA")
_RGB = ("RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr")
_KINDS = {1: "grey", 3: "RGB"}
_JUNK = {"thumbs.db", "desktop.ini", "__macosx"}
_ORIENTATION = 0x0112  # the EXIF tag


def is_junk(name: str) -> bool:
    """Whether a file or folder is one that systems leave about: hidden, or a known name such as Thumbs.db."""
    return name.startswith(".") or name.lower() in _JUNK


def is_image_name(name: str) -> bool:
    """Whether a name ends like an image's."""
    return name.lower().endswith(EXTENSIONS)


def check_channels(channels: int) -> None:
    """Image files have one channel or three."""
    if channels not in _KINDS:
        raise DataError(f"{channels} channels asked of image files; expected 1 (grey) or 3 (RGB): use an .npz file")


@contextmanager
def _opened(file: Path) -> Iterator[Image]:
    """The image in a file, see `_identified`."""
    require_file(file)
    with open(file, "rb") as stream, _identified(stream, shown(file), MOST_PIXELS) as image:
        yield image


@contextmanager
def _identified(stream: BinaryIO, name: str, most_pixels: int) -> Iterator[Image]:
    """An image whose header has been read and checked; whatever goes wrong with it until the end is a DataError."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(stream, formats=_FORMATS) as image:
            _check_header(image, name, most_pixels)
            yield image
    except DataError:
        raise
    except UnidentifiedImageError:
        what = "is no image that can be read" if stream.seek(0, os.SEEK_END) else "is empty (0 bytes)"
        raise DataError(f"{name} {what}; expected {', '.join(_FORMATS)}: remove or replace it") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise DataError(_too_large(name, most_pixels)) from None
    except Exception as error:  # Pillow raises a dozen types for damaged files
        raise DataError(
            f"{name} is damaged or cut short ({reason(error)}); expected a whole image: remove or replace it"
        ) from error


def _check_header(image: Image, name: str, most_pixels: int) -> None:
    """Refuse images that are too large, before they are decoded, and kinds that cannot be read."""
    if image.width * image.height > most_pixels:
        raise DataError(_too_large(name, most_pixels, f"{image.width} x {image.height}, "))
    if image.mode not in _GREY + _RGB:
        raise DataError(
            f"{name} has mode {image.mode}; expected 8-bit grey or RGB: convert it, for example to an 8-bit PNG"
        )


def _too_large(name: str, most_pixels: int, size: str = "") -> str:
    return f"{name} is {size}too large; expected at most {most_pixels:,} pixels: make it smaller"


def channels_of(file: Path) -> int:
    """1 for a grey image, 3 for one in RGB; only the header is read."""
    with _opened(file) as image:
        return 1 if _is_grey(image) else 3


def _is_grey(image: Image) -> bool:
    """Whether an opened image has one channel; Pillow takes a GIF for grey or not by the colours in its palette."""
    return image.mode in _GREY and image.format != "GIF"


def decode(file: Path) -> Image:
    """An image, upright, of mode L or RGB, or LA or RGBA where some pixel is not opaque."""
    with _opened(file) as image:
        return _decoded(image)


def decode_bytes(content: bytes, name: str, most_pixels: int = MOST_PIXELS) -> Image:
    """Likewise what an image file holds; `name` is what errors call it."""
    with _identified(io.BytesIO(content), shown(name), most_pixels) as image:
        return _decoded(image)


def _decoded(image: Image) -> Image:
    image.load()  # Pillow turns TIFF images upright here, and only now has read all EXIF data of a PNG
    turn = _turn(image)
    plain = "L" if _is_grey(image) else "RGB"
    if image.has_transparency_data:
        layered = image.convert("RGBA")
        opaque = layered.getchannel("A").getextrema() == (255, 255)
        image = layered.convert(plain if opaque else plain + "A")
    else:
        image = image.convert(plain)
    return image if turn is None else image.transpose(turn)


def _turn(image: Image) -> Transpose | None:
    """What turns a photo upright, from its EXIF orientation."""
    from PIL.Image import Transpose

    return {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }.get(image.getexif().get(_ORIENTATION, 1))


def convert(image: Image, channels: int, size: tuple[int, int] | None) -> Image:
    """An image with that many channels: transparency laid on white; with `size` (H, W), scaled and cropped to it.

    The image is scaled until it just covers `size`, with one factor for both sides, and cropped to its centre.
    """
    from PIL import Image, ImageOps

    if image.mode.endswith("A"):
        layered = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), layered)
    image = image.convert("L" if channels == 1 else "RGB")
    if size is None or image.size == size[::-1]:
        return image
    return ImageOps.fit(image, size[::-1], Image.Resampling.BILINEAR)  # crops first: a long strip stays small


def describe(size: tuple[int, int], channels: int, transparent: bool = False) -> str:
    """``40 x 30 RGB``, for a size (H, W)."""
    return f"{size[1]} x {size[0]} {_KINDS[channels]}{' with transparency' if transparent else ''}"


def facts(image: Image) -> tuple[tuple[int, int], int, bool]:
    """Of a decoded image: its size (H, W), its channels, whether some pixel is not opaque."""
    return (image.height, image.width), 1 if image.mode in _GREY else 3, image.mode.endswith("A")


def to_tensor(image: Image) -> Tensor:
    """``[C, H, W]`` uint8, from mode L or RGB."""
    pixels = np.array(image)  # [H, W] or [H, W, C]
    return torch.from_numpy(pixels if pixels.ndim == 3 else pixels[:, :, None]).permute(2, 0, 1).contiguous()


def read_image(file: Path, *, channels: int, size: tuple[int, int], resize: bool) -> Tensor:
    """One image as a model reads it, ``[C, H, W]`` uint8.

    Args:
        file: the image; a link to one is followed.
        channels: 1 or 3.
        size: (H, W).
        resize: convert an image of another size or kind, see `convert`; otherwise such an image is an error.

    Raises:
        DataError: for a file that is no whole image, or that does not fit.
        FileNotFoundError: if there is no such file.
    """
    check_channels(channels)
    image = decode(file)
    if resize:
        image = convert(image, channels, size)
    elif facts(image) != (size, channels, False):
        raise DataError(
            f"{shown(file)} is {describe(*facts(image))}; the model reads {describe(size, channels)}; "
            "--resize converts it"
        )
    return to_tensor(image)


def find_images(paths: Iterable[Path]) -> list[Path]:
    """Files as they are given, and for a folder every image below it, sorted by path; nothing twice.

    In folders, names that do not end like an image's, hidden files and links to other folders are passed over.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(_walk(path))
            if not inside:
                raise DataError(
                    f"{shown(path)} holds no images; expected files that end in {', '.join(EXTENSIONS)}: check it"
                )
            found.update(dict.fromkeys(inside))
        elif path.is_file():
            found[path] = None
        else:
            raise DataError(f"{shown(path)} does not exist; expected an image or a folder: check the path")
    return list(found)


def _walk(folder: Path) -> Iterator[Path]:
    """All images below a folder."""

    def stop(error: OSError) -> None:
        raise error  # os.walk would pass over a folder that cannot be opened

    for here, folders, files in os.walk(folder, onerror=stop):
        folders[:] = [name for name in folders if not is_junk(name)]
        yield from (Path(here, name) for name in files if is_image_name(name) and not is_junk(name))
