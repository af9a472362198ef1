"""Explaining images: what a model says, where it looks, what its answer hangs on, and how sure each of these is.

Axes: T drawn networks, N images, P patches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as File
from typing import TYPE_CHECKING

from torch import Tensor

from ..predict import Prediction
from .anatomy import Anatomy
from .architecture import Architecture
from .attention import AttentionSpread
from .paths import Path
from .relevance import RelevanceSpread
from .table import Table, interval_ends

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..methods import History
    from .bottlenecks import Bottlenecks

STRONGEST = 10


@dataclass(frozen=True)
class Explanation:
    """What T drawn networks say of N images, and of the network itself."""

    parts: Anatomy
    images: Tensor
    """As the model read them, ``[N, channels, rows, columns]``."""
    target: Tensor
    """The class that is traced back, ``[N]``."""
    prediction: Prediction
    """The same T networks' probabilities; ``samples`` is ``[T, N, classes]``."""
    attention: AttentionSpread
    relevance: RelevanceSpread
    paths: tuple[tuple[Path, ...], ...]
    """The strongest ones of each image, best first."""
    architecture: Architecture
    level: float
    """Of the credible intervals in pictures and pages."""

    def __len__(self) -> int:
        return len(self.images)

    def image_table(self, image: int = 0, classes: Sequence[str] | None = None) -> Table:
        """The classes of an image from the most probable on, with intervals."""
        low, high = self.prediction.interval(self.level)
        mean = self.prediction.probs[image]
        names = class_names(classes, len(mean))
        rows = tuple((names[c], float(mean[c]), float(low[image, c]), float(high[image, c]))
                     for c in mean.argsort(descending=True).tolist())  # fmt: skip
        return Table("Probability of each class", ("class", "mean", *interval_ends(self.level)), rows)

    def carrier_table(self, image: int = 0, count: int = STRONGEST) -> Table:
        """The heads and hidden units with the largest |mean relevance| for an image, with intervals."""
        found: list[tuple[str, float, float, float]] = []
        for word, spread in (("head", self.relevance.heads), ("unit", self.relevance.units)):
            own = spread.of(image)
            low, high = own.interval(self.level)
            for place in own.mean.abs().flatten().argsort(descending=True)[:count].tolist():
                block, number = divmod(place, own.mean.shape[1])
                name = f"block {block + 1}, {word} {number + 1}"
                mean, least, most = (float(part.flatten()[place]) for part in (own.mean, low, high))
                found.append((name, mean, least, most))
        found.sort(key=lambda row: -abs(row[1]))
        return Table(
            "Heads and units that carry it", ("part", "relevance", *interval_ends(self.level)), tuple(found[:count])
        )

    def path_table(self, image: int = 0) -> Table:
        """The strongest paths of an image."""
        rows = tuple((self.path_name(path), path.share, path.low, path.high, path.survival)
                     for path in self.paths[image])  # fmt: skip
        return Table(
            "Strongest paths", ("from the class back to a patch", "share", *interval_ends(self.level), "survives"), rows
        )

    def path_name(self, path: Path) -> str:
        """A path in words; where it stays in a token from block to block, that is said once."""
        depth, name = len(path.moves), self.parts.token_name
        steps = [name(path.tokens[0])]
        for step, move in enumerate(path.moves):
            if move < self.parts.heads:
                steps.append(f"block {depth - step} head {move + 1} {name(path.tokens[step + 1])}")
        return " ← ".join(steps)

    def plot(self, image: int = 0, classes: Sequence[str] | None = None) -> Figure:
        """One image's explanation as a figure; `architecture.plot()` draws the network."""
        from .image_figure import image_figure

        return image_figure(self, image, classes)

    def html(
        self,
        *,
        title: str = "What the model sees",
        classes: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        history: History | None = None,
        bottlenecks: Bottlenecks | None = None,
    ) -> str:
        """A page that holds everything it shows; see `write_page`."""
        from .page import rendered_page

        return rendered_page(
            self, title=title, classes=classes, names=names, history=history, bottlenecks=bottlenecks
        )  # fmt: skip

    def write_page(
        self,
        file: str | File,
        *,
        title: str = "What the model sees",
        classes: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        history: History | None = None,
        bottlenecks: Bottlenecks | None = None,
    ) -> File:
        """Write one HTML file that opens from disk and asks nothing of the network.

        Args:
            file: where it goes; its folder is made where it is not there.
            title: of the page.
            classes: what the classes are called; None: their numbers.
            names: what the images are called; None: their numbers.
            history: how q moved during training, shown with a slider.
            bottlenecks: what `bottlenecks` found, as a table.
        """
        from .page import write_page

        return write_page(
            self, File(file), title=title, classes=classes, names=names, history=history, bottlenecks=bottlenecks
        )  # fmt: skip


def class_names(classes: Sequence[str] | None, count: int) -> list[str]:
    """The names given, or numbers; as many as there are classes."""
    if classes is not None and len(classes) != count:
        raise ValueError(f"explain: classes must be {count} names, as the model has, got {len(classes)}")
    return [str(name) for name in (classes if classes is not None else range(count))]
