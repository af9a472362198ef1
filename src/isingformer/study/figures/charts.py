"""Which figures a study has, what each shows in words, and their files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from torch import Tensor

from ..._files import make_folder, write_bytes
from ..record import Record
from ..summary import Summary, summarise
from . import by_size, calibration, entropy, layers, samples
from .style import Cells, in_order, look, our_settings, rendered, title_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Pictures = Mapping[str, tuple[Tensor, Tensor, Sequence[str]]]
"""By dataset: images ``[N, C, H, W]`` in uint8, labels ``[N]``, the names of the classes."""


@dataclass(frozen=True)
class Chart:
    """One figure, and what it says to those who cannot see it."""

    kind: str
    """``metrics``, ``calibration``, ``entropy``, ``layers`` or ``images``."""
    dataset: str
    size: int | None
    rate: float | None
    title: str
    caption: str
    """How to read it."""
    alt: str
    """What it shows."""
    make: Callable[[], Figure]

    @property
    def name(self) -> str:
        """Of its files, without suffix: ``calibration_mnist_6000_0.1``; odd characters as in a web address."""
        parts = [self.kind, quote(self.dataset, safe=""), self.size, None if self.rate is None else f"{self.rate:g}"]
        return "_".join(str(part) for part in parts if part is not None)

    def figure(self) -> Figure:
        """Draw it."""
        with our_settings():
            return self.make()

    @cached_property
    def files(self) -> dict[str, bytes]:
        """As ``svg`` and ``png``: drawn once, for files and a report alike."""
        figure = self.figure()
        return {kind: rendered(figure, kind) for kind in ("svg", "png")}


def charts(records: Iterable[Record], images: Pictures | None = None) -> list[Chart]:
    """All figures of a study: dataset by dataset, each its images, its metrics, and the figures of its cells."""
    cells = summarise(records)
    datasets = dict.fromkeys([cell.dataset for cell in cells] + list(images or {}))
    found = []
    for dataset in datasets:
        own = {cell: summary for cell, summary in cells.items() if cell.dataset == dataset}
        if images and dataset in images:
            found.append(_images(dataset, *images[dataset]))
        if own:
            found.append(_metrics(dataset, own))
        for size in sorted({cell.size for cell in own}):
            of_size = {cell: summary for cell, summary in own.items() if cell.size == size}
            for rate in by_size.rates_of(of_size):
                found += _of_cells(
                    {cell: summary for cell, summary in of_size.items() if cell.rate in (rate, None)}, rate
                )
    return found


def write_figures(
    records: Iterable[Record],
    folder: str | Path,
    images: Pictures | None = None,
    *,
    drawn: Sequence[Chart] | None = None,
) -> list[Path]:
    """Draw all figures of a study as PNG and SVG; a file is whole or not there.

    Args:
        records: of the study; it need not be finished.
        folder: where the files go; made where it is not there.
        images: some of each dataset's images, for the figures of samples.
        drawn: what `charts` gave for these records, to draw once for the files and for the report.

    Returns:
        The files, in the order of `charts`.
    """
    home = make_folder(Path(folder))
    written = []
    for chart in charts(records, images) if drawn is None else drawn:
        for kind, content in chart.files.items():
            written.append(home / f"{chart.name}.{kind}")
            write_bytes(written[-1], content)
    return written


def _images(dataset: str, x: Tensor, y: Tensor, classes: Sequence[str]) -> Chart:
    title = f"{title_of(dataset)}: sample images"
    more = f" The first {samples.MOST} of {len(classes)} classes." if len(classes) > samples.MOST else ""
    caption = f"The first test images of each class, {x.shape[2]} x {x.shape[3]} pixels.{more}"
    names = ", ".join(map(str, classes[:20])) + (" and so on" if len(classes) > 20 else "")
    alt = f"Images of {title_of(dataset)}, by class: {names}."
    return Chart("images", dataset, None, None, title, caption, alt, partial(samples.draw, x, y, classes, title))


def _metrics(dataset: str, cells: Cells) -> Chart:
    largest = max(cell.size for cell in cells)
    best = [
        f"{method} {value:.3f}" + ("" if cell.rate is None else f" at rate {cell.rate:g}")
        for method in in_order(cell.method for cell in cells)
        for cell, summary in cells.items()
        if cell.method == method and cell.size == largest and (value := summary.means["accuracy"]) is not None
    ]
    alt = (
        f"Line charts of accuracy, recall, precision, F1, false-positive rate, negative log likelihood and calibration "
        f"error by training size on {title_of(dataset)}. Mean accuracy from {largest:,} images: {', '.join(best)}."
    )
    title = f"{title_of(dataset)}: scores by training size"
    return Chart("metrics", dataset, None, None, title, by_size.CAPTION, alt, partial(by_size.draw, cells, dataset))


def _of_cells(cells: Cells, rate: float | None) -> list[Chart]:
    """The three figures of one dataset, size and rate; without drop probabilities, two."""
    dataset, size = next((cell.dataset, cell.size) for cell in cells)
    where = f"{title_of(dataset)}, {size:,} training images" + ("" if rate is None else f", drop rate {rate:g}")
    by_method = {cell.method: summary for cell, summary in cells.items()}
    learned = {cell: summary for cell, summary in cells.items() if layers.has_layers(cell.method)}

    def said(say: Callable[[Summary], str | None], among: Iterable[str] = by_method) -> str:
        found = [f"{look(method).label} {text}" for method in in_order(among) if (text := say(by_method[method]))]
        return "; ".join(found) or "nothing is known"

    def chart(kind: str, caption: str, alt: str, draw: Callable[[Cells, str], Figure], of: Cells = cells) -> Chart:
        title = f"{TITLES[kind]}\n{where}"
        return Chart(kind, dataset, size, rate, title.replace("\n", ": "), caption, alt, partial(draw, of, title))

    found = [
        chart("calibration", calibration.CAPTION,
              f"Reliability curves, {where}. Mean calibration error: {said(_ece)}.", calibration.draw),
        chart("entropy", entropy.CAPTION,
              f"Histograms of entropy, {where}. Mean entropy in nats: {said(_entropies)}.", entropy.draw),
    ]  # fmt: skip
    if any(summary.layers for summary in learned.values()):
        said_q = said(_extremes, [cell.method for cell in learned])
        alt = f"Drop probabilities by layer, {where}. Layer means: {said_q}."
        found.append(chart("layers", layers.CAPTION, alt, layers.draw, learned))
    return found


TITLES = {
    "calibration": "Calibration",
    "entropy": "Entropy of right and wrong predictions",
    "layers": "Drop probability by layer",
}


def _ece(summary: Summary) -> str | None:
    value = summary.means["ece"]
    return None if value is None else f"{value:.3f}"


def _entropies(summary: Summary) -> str | None:
    means = {part: summary.means[f"entropy_{part}"] for part in ("right", "wrong")}
    return ", ".join(f"{part} {mean:.2f}" for part, mean in means.items() if mean is not None) or None


def _extremes(summary: Summary) -> str | None:
    means = [layer.mean_q for layer in summary.layers.values()]
    return f"{min(means):.2f} to {max(means):.2f}" if means else None
