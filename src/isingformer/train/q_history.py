"""How q moved during a training: a few frames of it in the run's folder, for the slider of `isingformer explain`.

Frames are taken at moments that follow from the length of the training alone, and the file is written with each. So it
holds every frame up to any checkpoint, and a training that goes on drops those that came after its own: it ends with
the frames of one that was never interrupted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from ..methods import Attached, History, Recorder
from .checkpoint import Progress

FRAMES = 20


class QHistory:
    """Keeps the file in step with a training; one of the loop's watchers.

    Args:
        file: to write, and to go on from where the training does.
        method: on the model that trains, as the checkpoint left it.
        steps: of the whole training.
        frames: how many to take, 2 or more.
    """

    def __init__(self, file: Path, method: Attached, *, steps: int, frames: int = FRAMES) -> None:
        self.file, self.method = file, method
        self.moments = moments(steps, frames)
        self.recorder = Recorder(method, history=_earlier(file, method))
        self._look()

    def step(self, progress: Progress, figures: Callable[[], dict[str, float]]) -> None:
        """Take a frame where one is due: at its moment, and when early stopping ends the training."""
        self._look(ended=progress.stopped)

    def epoch(self, progress: Progress, row: dict[str, float]) -> None:
        """Nothing: frames have moments of their own."""

    def _look(self, *, ended: bool = False) -> None:
        step = self.method.steps
        if (ended or step in self.moments) and self.recorder.last != step:
            self.recorder.record()
            self.recorder.history.save(self.file)


def moments(steps: int, frames: int) -> frozenset[int]:
    """After which steps frames are taken: 0, the last, and evenly between; fewer frames where steps are fewer."""
    return frozenset(round(k * steps / (frames - 1)) for k in range(frames))


def _earlier(file: Path, method: Attached) -> History | None:
    """The frames of the same training up to where it stands; None where there are none that can be read."""
    if not file.exists():
        return None
    with contextlib.suppress(ValueError):  # damaged: pictures are no reason to refuse to go on
        found = History.load(file).until(method.steps)
        if len(found) and found.layers == tuple(method.parts.posteriors):
            return found
    return None
