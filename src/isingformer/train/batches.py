"""Training batches: which images, in which order, standardised and augmented on the device.

Everything random about a step follows from (seed, step) alone, so a training that was cut off goes on as if it had not
been, from any step, without a generator's state having been kept.

Axes: N images, B images of a batch, C channels, H rows, W columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ..data import Images
from .held_out import HeldOut

SHARE_OF_MEMORY = 0.25
"""The data live on the device where they take at most this share of its free memory."""
EVALUATION_BATCH = 512


def derived_seed(*parts: int | str) -> int:
    """A seed from numbers and words, unlike that of any other ones: the first 62 bits of their SHA-256."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


class Batches:
    """The images of a training on its device.

    Args:
        images: the training sample.
        batch: B. Images that do not fill a batch are left out of an epoch, others in every epoch.
        mean, sd: of every channel, ``[C]``.
        augment: ``flip``, ``crop``, both or none.
        seed: of the order and of the augmentation.
        device: where batches are wanted.
        share: (number, how many) of the processes that train together: each sees its part of every batch, so that all
            see what one alone would have seen.
        held_out: images that the first epochs leave out.
    """

    def __init__(
        self, images: Images, *, batch: int, mean: Tensor, sd: Tensor, augment: tuple[str, ...], seed: int,
        device: torch.device, share: tuple[int, int] = (0, 1), held_out: HeldOut | None = None,
    ) -> None:  # fmt: skip
        number, many = share
        self.share, self.held_out = share, held_out or HeldOut()
        if batch < many:
            raise ValueError(f"a batch of {batch} images cannot be shared by {many} processes; start fewer")
        self.part = slice(number * batch // many, (number + 1) * batch // many)
        self.batch, self.augmentations, self.seed, self.device = batch, augment, seed, device
        self.mean, self.sd = mean, sd
        self.resident = fits(images.x, device)
        self.x = images.x.to(device) if self.resident else images.x.pin_memory()
        self.y = images.y.to(device) if self.resident else images.y.pin_memory()
        self._order: tuple[int, Tensor] | None = None
        self.outside, self.inside = self.held_out.rows(len(images.y), derived_seed(seed, "held out"))

    @property
    def per_epoch(self) -> int:
        """Steps an epoch."""
        return len(self.y) // self.batch

    def rows(self, step: int) -> Tensor:
        """Which images step number `step` (from 0) sees, ``[B]``, on the CPU."""
        epoch, place = divmod(step, self.per_epoch)
        if self._order is None or self._order[0] != epoch:
            generator, needed = Generator().manual_seed(derived_seed(self.seed, "order", epoch)), self.per_epoch
            self._order = (
                epoch,
                self.held_out.order(
                    epoch, self.inside, total=len(self.y), needed=needed * self.batch, generator=generator
                ),
            )
        return self._order[1][place * self.batch : (place + 1) * self.batch]

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """This process's images ``[B, C, H, W]``, as the network reads them, and labels ``[B]`` of step `step`."""
        rows = self.rows(step)
        if self.resident:
            rows = rows.to(self.device, non_blocking=True)
        x = self.x[rows].to(self.device, non_blocking=True)
        y = self.y[rows].to(self.device, non_blocking=True)
        generator = Generator().manual_seed(derived_seed(self.seed, "augment", step))
        # The whole batch is augmented: who trains along must not change what an image looks like.
        return standardised(augmented(x, self.augmentations, generator)[self.part], self.mean, self.sd), y[self.part]

    def outsiders(self) -> tuple[Tensor, Tensor]:
        """This process's part of the held-out images, and their labels, as they are."""
        number, many = self.share
        rows = self.outside[number::many].to(self.x.device)
        x, y = self.x[rows].to(self.device), self.y[rows].to(self.device)
        return standardised(x, self.mean, self.sd), y


def fits(x: Tensor, device: torch.device) -> bool:
    """Whether the data may live on the device: always on the CPU, where they are already."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return x.numel() * x.element_size() <= SHARE_OF_MEMORY * free


def standardised(x: Tensor, mean: Tensor, sd: Tensor) -> Tensor:
    """(x - mean) / sd by channel, float32 ``[N, C, H, W]``."""
    shape = (1, -1, 1, 1)
    return (x.float() - mean.to(x.device).view(shape)) / sd.to(x.device).view(shape)


def in_chunks(images: Images, mean: Tensor, sd: Tensor, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """All images in order, standardised, a chunk at a time on the device."""
    for x, y in zip(images.x.split(EVALUATION_BATCH), images.y.split(EVALUATION_BATCH), strict=True):
        yield standardised(x.to(device), mean, sd), y.to(device)


def augmented(x: Tensor, kinds: tuple[str, ...], generator: Generator) -> Tensor:
    """Images flipped left to right half of the time, and shifted by up to an eighth of their side, black outside.

    Args:
        x: ``[B, C, H, W]``.
        kinds: ``flip``, ``crop``, both or none.
        generator: a CPU generator, so that a GPU draws the same.
    """
    if "flip" in kinds:
        flip = torch.rand(len(x), generator=generator) < 0.5
        x = torch.where(flip.to(x.device).view(-1, 1, 1, 1), x.flip(-1), x)
    if "crop" in kinds:
        x = shifted(x, *torch.randint(0, 2 * margin(x) + 1, (2, len(x)), generator=generator))
    return x


def margin(x: Tensor) -> int:
    """How far `crop` shifts at most: an eighth of the side, at least one pixel."""
    return max(1, x.shape[-1] // 8)


def shifted(x: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Every image's own window, `down` and `right` from the corner of the image with a black margin around it."""
    around = margin(x)
    wide = F.pad(x, (around,) * 4)
    height, width = x.shape[-2:]
    rows = down.to(x.device).view(-1, 1, 1) + torch.arange(height, device=x.device).view(1, -1, 1)  # [B, H, 1]
    columns = right.to(x.device).view(-1, 1, 1) + torch.arange(width, device=x.device)  # [B, 1, W]
    image = torch.arange(len(x), device=x.device).view(-1, 1, 1)
    return wide[image, :, rows, columns].movedim(-1, 1)  # [B, H, W, C] to [B, C, H, W]
