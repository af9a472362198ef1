"""How methods look, the same in every figure, and how a figure is made and saved.

A method has a colour that the colour-blind can tell from the others, a lightness and a dash that tell it apart in grey,
and a marker. matplotlib's own settings are left as they are: ours hold only while a figure is drawn or saved.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..record import Cell
from ..summary import DATASETS, Summary, method_order

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, QUIET, FAINT = "#22262b", "#5f6670", "#c9cdd3"
"""Words and axes; lesser words; lines that only guide the eye."""
DARK_INK, DARK_QUIET, DARK_FAINT = "#e8eaed", "#a6adb8", "#4a505a"
"""The same on a dark page."""

FONT = "DejaVu Sans"  # matplotlib brings it along
PRINT_DPI = 200

Cells = Mapping[Cell, Summary]
"""What a figure is drawn from."""


@dataclass(frozen=True)
class Look:
    """What a method looks like in every figure."""

    label: str
    colour: str
    dark: str
    """The colour on a dark page."""
    marker: str
    dash: Any
    """As matplotlib's linestyle."""


LOOKS = {
    "plain": Look("plain", "#7d7d7d", "#a9a9a9", ".", (0, (1, 1.4))),
    "dropout": Look("dropout", "#c8500a", "#ff9a57", "^", (0, (3.4, 1.5))),
    "dropconnect": Look("dropconnect", "#12a37a", "#4fd1a5", "P", (0, (5, 1.4, 1, 1.4))),
    "ising": Look("ising", "#0f2f80", "#8fb4ff", "o", "solid"),
    "ising-paper": Look("ising-paper", "#7a3aa8", "#c79bf0", "s", (0, (7.5, 2))),
    "ising-paper-obd": Look("ising-paper-obd", "#cf6ba6", "#f7bcd9", "D", (0, (4, 1.2, 1, 1.2, 1, 1.2))),
}
"""By method."""

SPARE = (
    ("#8a6d00", "#d8bb4a", "v", (0, (2, 1))),
    ("#2b7bb9", "#7cc0f5", "p", (0, (7, 1.2, 2, 1.2))),
    ("#5d3a1a", "#c9a27e", "h", (0, (3, 2))),
    ("#a01c3c", "#ff8fa6", "*", (0, (1, 2.4))),
)
"""Colour, colour on a dark page, marker and dash for methods that are not ours."""


def look(method: str) -> Look:
    """Of a method by its name; one that is not ours gets a look of its own, the same in every figure of every study."""
    if method in LOOKS:
        return LOOKS[method]
    return Look(shown(method), *SPARE[sum(method.encode()) % len(SPARE)])


def in_order(methods: Iterable[str]) -> list[str]:
    """Each method once, in the order of the tables."""
    return sorted(set(methods), key=method_order)


def title_of(dataset: str) -> str:
    """What people call a dataset."""
    return shown(DATASETS.get(dataset, dataset))


def shown(text: str) -> str:
    """A name as a figure shows it: characters that no drawing can hold become question marks."""
    return "".join(character if character.isprintable() else "?" for character in text)


@contextlib.contextmanager
def our_settings() -> Iterator[None]:
    """matplotlib with its defaults and our few changes, whatever the user's settings are; they come back after."""
    import matplotlib.style

    ticks = {"labelsize": 7.5, "color": QUIET, "labelcolor": QUIET, "major.size": 3, "major.width": 0.7}
    ours = {f"{axis}tick.{name}": value for axis in "xy" for name, value in ticks.items()} | {
        "font.family": [FONT], "font.size": 8.5, "text.color": INK, "text.parse_math": False,
        "axes.labelcolor": INK, "axes.edgecolor": QUIET, "axes.linewidth": 0.7, "axes.titlesize": 9,
        "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
        "axes.grid": True, "grid.color": FAINT, "grid.linewidth": 0.5, "grid.alpha": 0.6,
        "figure.titlesize": 10, "figure.titleweight": "bold", "legend.frameon": False, "legend.fontsize": 8.5,
        "lines.linewidth": 1.5, "lines.markersize": 5, "hatch.linewidth": 0.6,
        "axes.facecolor": "none", "figure.facecolor": "none", "savefig.facecolor": "none",
        "svg.fonttype": "none", "svg.hashsalt": "isingformer", "path.simplify": True,
    }  # fmt: skip
    with matplotlib.style.context(["default", ours]), warnings.catch_warnings():
        # A class name in a script that the font lacks: the SVG still holds the text, the PNG shows boxes.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        yield


def rendered(figure: Figure, kind: str) -> bytes:
    """A figure as a ``png`` on white or an ``svg`` without background; the same figure always gives the same bytes."""
    buffer = io.BytesIO()
    with our_settings():
        if layout := figure.get_layout_engine():  # once for both kinds: it takes most of the time
            layout.execute(figure)
            figure.set_layout_engine("none")
        if kind == "svg":
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        else:
            figure.savefig(buffer, format="png", dpi=PRINT_DPI, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def legend(figure: Figure, title: str, methods: Iterable[str], notes: Mapping[str, str], *, columns: int) -> None:
    """The figure's title and one entry a method below it, as its lines look, with a note behind the name."""
    from matplotlib.lines import Line2D

    names = list(methods)
    handles = [Line2D([], [], color=look(m).colour, linestyle=look(m).dash, marker=look(m).marker) for m in names]
    labels = [look(m).label + notes.get(m, "") for m in names]
    figure.legend(handles, labels, loc="outside upper left", title=title, alignment="left",
                  title_fontproperties={"weight": "bold", "size": 10}, ncols=min(columns, len(names)), handlelength=4,
                  columnspacing=1.6, borderaxespad=0.2)  # fmt: skip
