"""How a model is trained: every setting besides the data and the method."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..methods.method import make_plain

Precision = Literal["auto", "float32", "bfloat16"]
SMALL_IMAGE = 16
"""Images with fewer rows than this get the small network."""
REFERENCE = {"width": 128, "depth": 6, "heads": 4, "mlp": 256}
SMALL = {"width": 64, "depth": 4, "heads": 4, "mlp": 128}
MOST_PATCHES = 8
FEWEST_PATCHES = 3
"""Patches a side that the default patch size allows, and that it must give."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a training. None means: chosen by the rule given here.

    Args:
        epochs: passes over the training images.
        batch: images a step. None: 128; where an epoch would have fewer than 20 steps, the largest power of two that
            gives 20, at least 16.
        lr: the peak learning rate of AdamW. None: 1e-3, and 2e-3 for networks of width up to 64.
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
        deterministic: make a GPU repeat itself bit by bit, at some cost in speed. A CPU always does, on the same
            number of threads.
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
        make_plain(self)
        for name in ("epochs", "batch", "width", "depth", "heads", "mlp", "patch", "patience", "train_size"):
            value = getattr(self, name)
            self._check(name, (value is None and name != "epochs") or whole(value, 1), "a whole number from 1 on")
        self._check("lr", self.lr is None or (_real(self.lr) and self.lr > 0), "a finite number above 0")
        self._check(
            "weight_decay", _real(self.weight_decay) and self.weight_decay >= 0, "a finite number, zero or more"
        )
        self._check("lr_warmup", _real(self.lr_warmup) and 0 <= self.lr_warmup < 1, "a share of the steps, in [0, 1)")
        self._check(
            "clip", self.clip is None or (_real(self.clip) and self.clip > 0), "a finite number above 0, or None"
        )
        text = isinstance(self.augment, str)
        fine = text and set(self.augmentations) <= {"flip", "crop"}
        self._check("augment", fine, "'flip', 'crop', 'flip,crop' or ''")
        known = ("auto", "float32", "bfloat16")
        self._check("precision", self.precision in known, "'auto', 'float32' or 'bfloat16'")
        share = _real(self.validation) and (isinstance(self.validation, int) or self.validation < 1)
        self._check("validation", share and self.validation >= 0, "a number of images, or a share below 1")
        for name in ("stratified", "deterministic"):
            self._check(name, isinstance(getattr(self, name), bool), "True or False")
        self._check("likelihood", self.likelihood in ("softmax", "binary"), "'softmax' or 'binary'")
        self._check("pool", self.pool in ("class", "mean"), "'class' or 'mean'")
        for name in ("seed", "sample_seed"):
            value = getattr(self, name)
            fine = (value is None and name == "sample_seed") or (whole(value, 0) and value < 2**62)
            self._check(name, fine, "a whole number from 0 on, below 2^62")
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
            **chosen, "image_size": height, "channels": channels, "patch": self.patch or _checked_patch(height),
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


def whole(value: object, least: int) -> bool:
    """Whether something is a whole number that is not too small, nor too large for torch."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**62


def _real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def default_patch(side: int) -> int:
    """The smallest divisor of the side, from 2 on, that gives at most 8 patches a side; a side of 1 is one patch."""
    return next((p for p in range(2, side + 1) if side % p == 0 and side // p <= MOST_PATCHES), side)


def _checked_patch(side: int) -> int:
    patch = default_patch(side)
    if side // patch < FEWEST_PATCHES and side >= 2 * FEWEST_PATCHES:
        better = -(-side // MOST_PATCHES) * MOST_PATCHES
        raise ValueError(
            f"images are {side} x {side}, which only patches of {patch} divide, {side // patch} a side: too few for "
            f"attention; --resize {better} (resize={better}) gives {MOST_PATCHES} a side, or name a patch"
        )
    return patch


def schedule(step: int, *, steps: int, warmup: float) -> float:
    """The factor of the learning rate at step number `step` (from 0): a linear rise, then half a cosine down to 0.

    f(t) = (t + 1) / w                       for t < w = round(warmup * steps)
           (1 + cos(pi (t - w) / (T - w))) / 2    else
    """
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))
