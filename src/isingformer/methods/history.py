"""How q moved during training: a recorder that a training loop calls, and what it kept.

Axes: F frames, L layers in the model's order.

    recorder = Recorder(method, every=10)
    for x, y in loader:
        ...
        method.step()
        recorder()
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from .._files import read_tensors, write_tensors
from .attached import Attached

Frame = tuple[int, Tensor, dict[str, Tensor]]
"""A step, the layers' means, and their pictures."""
MOST_FRAMES = 32
THUMBNAIL = 24
"""The longer side of a layer's small picture, at most."""


@dataclass(frozen=True)
class History:
    """q at some steps of a training."""

    steps: Tensor
    """After which training steps, int64 ``[F]``."""
    layers: tuple[str, ...]
    mean: Tensor
    """Mean q by layer, float32 ``[F, L]``."""
    pictures: dict[str, Tensor]
    """q of every layer, averaged over cells of a grid, as uint8 0 ... 255 for 0 ... 1, ``[F, rows, columns]``."""

    def __len__(self) -> int:
        return len(self.steps)

    def until(self, step: int) -> History:
        """The frames up to a training step."""
        kept = self.steps <= step
        pictures = {name: picture[kept] for name, picture in self.pictures.items()}
        return History(self.steps[kept], self.layers, self.mean[kept], pictures)

    def save(self, file: str | Path) -> None:
        """Write it as safetensors, whole or not at all."""
        tensors = {"steps": self.steps, "mean": self.mean}
        pictures = {f"picture.{name}": picture for name, picture in self.pictures.items()}
        write_tensors(Path(file), tensors | pictures, {"layers": json.dumps(self.layers)})

    @classmethod
    def load(cls, file: str | Path) -> History:
        """Read what `save` wrote."""
        tensors, notes = read_tensors(Path(file))
        try:
            layers = tuple(json.loads(notes["layers"]))
            pictures = {name: tensors[f"picture.{name}"] for name in layers}
            return cls(tensors["steps"], layers, tensors["mean"], pictures)
        except KeyError as error:
            raise ValueError(f"{file} is no history of q: {error} is missing; give what History.save wrote") from None


class Recorder:
    """Takes a frame of q every so many calls; light enough to be called at every step.

    Where they become too many, every second frame goes, and from then on they are taken half as often.

    Args:
        method: what `attach` returned.
        every: calls between frames, at first.
        most: frames to keep, at most.
        history: frames that an earlier recorder took of the same training, to go on from.
    """

    def __init__(
        self, method: Attached, *, every: int = 10, most: int = MOST_FRAMES, history: History | None = None
    ) -> None:
        if every < 1 or most < 2:
            raise ValueError(f"Recorder: every must be 1 or more and most 2 or more, got {every} and {most}")
        layers = tuple(method.parts.posteriors)
        if history is not None and history.layers != layers:
            raise ValueError(
                f"Recorder: the history is of {len(history.layers)} layers, {history.layers[0]!r} first, the model has "
                f"{len(layers)}, {layers[0]!r} first; give that of the same model"
            )
        self.method, self.every, self.most = method, every, most
        self._calls = 0
        self._frames: list[Frame] = [] if history is None else _frames(history)

    def __call__(self) -> None:
        """A training step is done."""
        if self._calls % self.every == 0:
            if len(self._frames) >= self.most:
                self._frames, self.every = self._frames[::2], 2 * self.every
            if self._calls % self.every == 0:
                self.record()
        self._calls += 1

    @torch.no_grad()
    def record(self) -> None:
        """Take a frame now, whatever `every` and `most` say."""
        drops = self.method.parts.drops()
        means = torch.stack([q.float().mean() for q in drops.values()]).cpu()
        self._frames.append((self.method.steps, means, {name: small_picture(q) for name, q in drops.items()}))

    @property
    def last(self) -> int | None:
        """After which training step the last frame was taken; None: there is none yet."""
        return self._frames[-1][0] if self._frames else None

    @property
    def history(self) -> History:
        """What was kept so far."""
        if not self._frames:
            raise ValueError("Recorder: nothing is recorded yet; call it after every training step")
        layers = tuple(self.method.parts.posteriors)
        steps, means, pictures = zip(*self._frames, strict=True)
        stacked = {name: torch.stack([picture[name] for picture in pictures]) for name in layers}
        return History(torch.tensor(steps), layers, torch.stack(means), stacked)


def _frames(history: History) -> list[Frame]:
    return [
        (int(step), history.mean[f], {name: picture[f] for name, picture in history.pictures.items()})
        for f, step in enumerate(history.steps)
    ]


def small_picture(q: Tensor, side: int = THUMBNAIL) -> Tensor:
    """q averaged over the cells of a grid with at most `side` rows and columns, uint8 0 ... 255 for 0 ... 1.

    Of a stack it is the mean over the replicas.
    """
    size = (min(side, q.shape[-2]), min(side, q.shape[-1]))
    cells = F.adaptive_avg_pool2d(q.float().view(-1, 1, *q.shape[-2:]), size).mean((0, 1))
    return (cells * 255).round().to(torch.uint8).cpu()
