"""A run that answers questions about images, one at a time: what `server.py` asks and a page shows.

Axes: C channels, H rows, W columns, P patches in reading order.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..data import DataError
from ..data.image import convert, decode_bytes, describe, facts, to_tensor
from ..explain import anatomy
from ..nn import ViT
from ..train import Run
from ..train.device import threads, threads_for
from .edits import Edits
from .growing import Growing, Seen
from .pool import Pool

MOST_PIXELS = 24_000_000
"""Of an image that is sent; it is decoded before it is made small."""
MOST_BLUR = 0.25
"""Standard deviation of the strongest blur, as a share of the shorter side."""
KEPT = 24
"""Images whose passes are remembered, so that more of them can be added."""


@dataclass(frozen=True)
class Question:
    """What is asked of a run; checked against it by `Explorer.question`."""

    image: Tensor
    """Pixels as the training data had them, ``[C, H, W]``."""
    label: str | None
    """What the image is said to show, where that is known."""
    edits: Edits
    passes: int
    target: int | None
    """The class to trace back; None: the most probable one."""


class Explorer:
    """A run and the images to choose from. Questions may come from several threads; the model answers one at a time.

    Args:
        run: a finished run, compressed or not. Of a compressed one there are predictions only.
        pools: see `pools_of`.
        most: the largest T that may be asked for.
        level: of the credible intervals.
        seed: of the drawn networks; `predict` and `explain` with the same one draw the same.
    """

    def __init__(
        self, run: Run, pools: Sequence[Pool] = (), *, most: int = 200, level: float = 0.9, seed: int = 0
    ) -> None:
        if not 0 < level < 1:
            raise ValueError(f"level must be in (0, 1), got {level}")
        about = run.about["data"]
        self.run, self.pools, self.most, self.level = run, tuple(pools), most, level
        self.size: tuple[int, int] = (about["size"][0], about["size"][1])
        self.channels: int = about["channels"]
        self.classes = run.classes
        model = run.model
        self.parts = anatomy(model) if isinstance(model, ViT) else None
        self.side: int = run.about["network"]["patch"]
        self.grid = (self.size[0] // self.side, self.size[1] // self.side)
        mean = torch.tensor(about["mean"])
        self.fill = mean.round() if about["pixels"] == "uint8" else mean
        # As `Networks.draw` would, and `predict`: the key is the first number of a generator with this seed.
        self._key = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(seed)))
        self._threads = threads_for(run.about["network"], run.device)
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, Growing] = OrderedDict()

    @property
    def most_blur(self) -> float:
        """The strongest blur that may be asked for, its standard deviation in pixels."""
        return MOST_BLUR * min(self.size)

    @property
    def takes_images(self) -> bool:
        """Whether image files mean anything to the run: not where it was trained on numbers of some other kind."""
        return self.run.about["data"]["pixels"] == "uint8" and self.channels in (1, 3)

    def see(self, question: Question) -> tuple[Tensor, Seen]:
        """The changed image ``[C, H, W]`` and what the networks say of it."""
        changed = question.edits.apply(question.image, side=self.side, fill=self.fill)
        key = hashlib.sha256(changed.numpy().tobytes() + repr(question.edits.cover).encode()).digest()
        with self._lock, threads(self._threads):
            growing = self._kept.pop(key, None)
            if growing is None:
                # Whole pixels are not quite the mean that relevance counts from; what is hidden is to have none at all.
                x = question.edits.hide(self.run.inputs(changed[None])[0], side=self.side, fill=0.0)
                growing = Growing(self.run.model, self.parts, x, self._key)
            self._kept[key] = growing  # the last one to be asked for is the last to be forgotten
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return changed, growing.upto(question.passes, question.target)

    def fitted(self, content: bytes, name: str = "the file") -> tuple[Tensor, str]:
        """What an image file holds as the run reads it, ``[C, H, W]`` uint8, and what it was, in words.

        It is scaled until it covers the run's size, and cropped to its centre; of an animation, the first picture.
        """
        if not self.takes_images:
            raise ValueError("this run was not trained on pixels of image files; choose one of its own images")
        with self._lock:  # a large image takes much memory while it is made small: one at a time
            image = decode_bytes(content, name, MOST_PIXELS)
            was = describe(*facts(image))
            return to_tensor(convert(image, self.channels, self.size)), was

    def pool(self, name: str) -> Pool:
        """The images of this name."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise ValueError(f"there are no images {name!r}; expected one of {[pool.name for pool in self.pools]}")

    def question(self, asked: Any) -> Question:
        """What a page sends, checked.

        ``{"image": {"set": name, "index": n} or {"pixels": base64}, "rotate": degrees, "blur": pixels,
        "cover": [patch, ...], "passes": T, "target": class or null}``
        """
        if not isinstance(asked, Mapping):
            raise ValueError(f"a question must be an object, got {type(asked).__name__}")
        image, label = self._image(asked.get("image"))
        cover = asked.get("cover", [])
        if not isinstance(cover, list):
            raise ValueError(f"cover must be a list of patches, got {type(cover).__name__}")
        patches = self.grid[0] * self.grid[1]
        target = asked.get("target")
        return Question(
            image, label,
            Edits(
                _number(asked.get("rotate", 0), "rotate", -180, 180),
                _number(asked.get("blur", 0), "blur", 0, self.most_blur),
                tuple(sorted({_whole(one, "cover", 0, patches - 1) for one in cover})),
            ),
            _whole(asked.get("passes"), "passes", 1, self.most),
            None if target is None else _whole(target, "target", 0, len(self.classes) - 1),
        )  # fmt: skip

    def _image(self, given: Any) -> tuple[Tensor, str | None]:
        if isinstance(given, Mapping) and "set" in given:
            pool = self.pool(str(given["set"]))
            index = _whole(given.get("index"), "index", 0, len(pool.images) - 1)
            return pool.images.x[index], pool.label(index)
        if isinstance(given, Mapping) and isinstance(given.get("pixels"), str) and self.takes_images:
            return self._unpacked(given["pixels"]), None
        raise ValueError('image must be {"set": name, "index": number} or {"pixels": base64}')

    def _unpacked(self, text: str) -> Tensor:
        try:
            content = base64.b64decode(text, validate=True)
        except binascii.Error:
            raise ValueError("pixels must be base64") from None
        shape = (self.channels, *self.size)
        if len(content) != math.prod(shape):
            raise DataError(f"pixels must be {math.prod(shape)} bytes, {list(shape)}, got {len(content)}")
        return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(shape)


def packed(image: Tensor) -> str:
    """Pixels ``[C, H, W]`` uint8 as base64, as a question may hold them."""
    return base64.b64encode(image.contiguous().numpy().tobytes()).decode()


def _number(value: Any, name: str, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ValueError(f"{name} must be a number from {least:g} to {most:g}, got {str(value)[:40]!r}")
    return float(value)


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, got {str(value)[:40]!r}")
    return value
