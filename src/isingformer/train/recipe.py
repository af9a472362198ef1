"""How a model is trained: every setting besides the data and the method."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..nn.vit import ViT

Precision = Literal["auto", "float32", "bfloat16"]
SMALL_IMAGE = 16
"""Images with fewer rows than this get the small network."""
REFERENCE = {"width": 128, "depth": 6, "heads": 4, "mlp": 256}
SMALL = {"width": 64, "depth": 4, "heads": 4, "mlp": 128}
MOST_PATCHES = 8
"""Patches a side that the default patch size allows."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a training. None means: chosen by the rule given here.

    Args:
        epochs: passes over the training images.
        batch: images a step. None: 128, less where an epoch would have fewer than 20 steps, at least 16.
        lr: the peak learning rate of AdamW. None: 1e-3, and 2e-3 for the small network.
        weight_decay: of AdamW, on the matrices of the linear layers alone.
        lr_warmup: share of the steps over which the learning rate rises, before it falls by a cosine.
        clip: largest norm of the gradient; None: no clipping.
        augment: what is done to training images: nothing, ``flip`` (left-right), ``crop`` (shifted by up to an eighth
            of the side, black outside), or both as ``flip,crop``.
        precision: ``float32``, ``bfloat16`` (autocast), or ``auto``: bfloat16 on a GPU that has it, else float32.
        patience: stop when the validation NLL has not improved for so many epochs, and keep the best; None: train to
            the end and keep the last.
        train_size: train on a sample of so many images; None: on all that validation leaves.
        validation: images held out of the training file, a number (int) or a share of the training images (float).
        stratified: draw samples with the classes in proportion; False: at random.
        likelihood: ``softmax``, or ``binary``: two classes by a single logit.
        width, depth, heads, mlp, patch, pool: the network. None: width 128, depth 6, 4 heads, MLP 256; for images
            below 16 rows width 64, depth 4, MLP 128; the smallest patch, from 2 on, that gives at most 8 x 8 of them.
        seed: initial weights, order of the batches, augmentation, noise, and the sample unless `sample_seed` is given.
        sample_seed: of the training and validation sample.
        deterministic: make a GPU repeat itself bit by bit, at some cost in speed. A CPU always does.
    """

    epochs: int = 30
    batch: int | None = None
    lr: float | None = None
    weight_decay: float = 0.05
    lr_warmup: float = 0.05
    clip: float | None = 1.0
    augment: str = ""
    precision: Precision = "auto"
    patience: int | None = None
    train_size: int | None = None
    validation: int | float = 0.1
    stratified: bool = True
    likelihood: str = "softmax"
    width: int | None = None
    depth: int | None = None
    heads: int | None = None
    mlp: int | None = None
    patch: int | None = None
    pool: str = "class"
    seed: int = 0
    sample_seed: int | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        """Check every setting; an error names the value and what is allowed."""
        for name in ("epochs", "batch", "width", "depth", "heads", "mlp", "patch", "patience", "train_size"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            self._check(name, (value is None and name != "epochs") or whole, "a whole number from 1 on")
        self._check("lr", self.lr is None or 0 < self.lr < math.inf, "above 0")
        self._check("weight_decay", 0 <= self.weight_decay < math.inf, "zero or more")
        self._check("lr_warmup", 0 <= self.lr_warmup < 1, "a share of the steps, in [0, 1)")
        self._check("clip", self.clip is None or 0 < self.clip < math.inf, "above 0, or None")
        self._check("augment", set(self.augmentations) <= {"flip", "crop"}, "'flip', 'crop', 'flip,crop' or ''")
        known = ("auto", "float32", "bfloat16")
        self._check("precision", self.precision in known, "'auto', 'float32' or 'bfloat16'")
        share = isinstance(self.validation, int) or self.validation < 1
        self._check("validation", self.validation >= 0 and share, "a number of images, or a share below 1")
        self._check("likelihood", self.likelihood in ("softmax", "binary"), "'softmax' or 'binary'")
        self._check("pool", self.pool in ("class", "mean"), "'class' or 'mean'")
        for name in ("seed", "sample_seed"):
            value = getattr(self, name)
            fine = (value is None and name == "sample_seed") or (isinstance(value, int) and 0 <= value < 2**62)
            self._check(name, fine, "a whole number from 0 on")
        if self.patience is not None:
            self._check("validation", self.validation > 0, "above 0 where patience is given")

    def _check(self, name: str, fine: bool, expected: str) -> None:
        if not fine:
            raise ValueError(f"{name} must be {expected}, got {getattr(self, name)!r}")

    @property
    def augmentations(self) -> tuple[str, ...]:
        """The single augmentations."""
        return tuple(part.strip() for part in self.augment.split(",") if part.strip())

    @property
    def seed_of_sample(self) -> int:
        """`sample_seed`, or `seed` where that is not given."""
        return self.seed if self.sample_seed is None else self.sample_seed

    def batch_for(self, examples: int) -> int:
        """Images a step, for so many training images."""
        if self.batch is not None:
            return min(self.batch, examples)
        fitting = 2 ** int(math.log2(max(1, examples / 20)))
        return min(examples, max(16, min(128, fitting)))

    def network(self, *, size: tuple[int, int], channels: int, classes: int) -> dict[str, Any]:
        """The arguments of `ViT` for images of this size."""
        height, width = size
        if height != width:
            raise ValueError(
                f"images are {width} x {height}; expected square ones; --resize N (resize=N) makes them N x N"
            )
        if self.likelihood == "binary" and classes != 2:
            raise ValueError(f"likelihood 'binary' is for two classes, the data have {classes}; use 'softmax'")
        own = SMALL if height < SMALL_IMAGE else REFERENCE
        chosen = {name: getattr(self, name) or default for name, default in own.items()}
        return {
            **chosen, "image_size": height, "channels": channels, "patch": self.patch or default_patch(height),
            "classes": 1 if self.likelihood == "binary" else classes, "pool": self.pool,
        }  # fmt: skip

    def rate(self, network: Mapping[str, Any]) -> float:
        """The peak learning rate for a network."""
        if self.lr is not None:
            return self.lr
        return 2e-3 if network["width"] <= SMALL["width"] else 1e-3

    def settings(self) -> dict[str, Any]:
        """The settings as plain values, for JSON."""
        return dataclasses.asdict(self)


def default_patch(side: int) -> int:
    """The smallest divisor of the side, from 2 on, that gives at most 8 patches a side; a side of 1 is one patch."""
    return next((p for p in range(2, side + 1) if side % p == 0 and side // p <= MOST_PATCHES), side)


def build(network: Mapping[str, Any]) -> ViT:
    """The network, with initial weights from torch's default generator."""
    return ViT(**network)


def schedule(step: int, *, steps: int, warmup: float) -> float:
    """The factor of the learning rate at step number `step` (from 0): a linear rise, then half a cosine down to 0.

    f(t) = (t + 1) / w                       for t < w = round(warmup * steps)
           (1 + cos(pi (t - w) / (T - w))) / 2    else
    """
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))
