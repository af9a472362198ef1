"""Colours of this room's pictures, in figures and in pages: the same scales, all safe for the colour-blind.

    share, keep     cividis: dark blue is little, yellow is much
    sign            blue speaks for, orange against, pale is nothing
    surely          the two ends and grey: which side of a reference, or not sure

matplotlib's own settings are left as they are: ours hold only while a figure is drawn or saved.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

Scale = Literal["share", "sign"]
INK, QUIET, FAINT = "#22262b", "#5f6670", "#c9cdd3"
FOR, AGAINST, UNSURE = "#0f4fb5", "#c8500a", "#9aa1ab"
"""Above a reference, below it, and neither for sure."""
FONT = "DejaVu Sans"
STOPS = 9
"""Colours that a page's legend is made of."""


@functools.cache
def colours(scale: Scale) -> Colormap:
    """The colours of a scale."""
    import matplotlib
    from matplotlib.colors import LinearSegmentedColormap

    if scale == "share":
        return matplotlib.colormaps["cividis"]
    return LinearSegmentedColormap.from_list("sign", ["#8f3600", "#e8924f", "#f3f1ec", "#6f9fe0", "#0b3d91"])


def painted(values: Tensor, low: float, high: float, scale: Scale = "share") -> np.ndarray:
    """Values ``[rows, columns]`` as uint8 ``[rows, columns, RGBA]``; outside low ... high, the end's colour."""
    place = (values.detach().cpu().double() - low) / max(high - low, 1e-12)
    return np.asarray(colours(scale)(place.clamp(0, 1).numpy(), bytes=True))


def reduced(values: Tensor, side: int) -> Tensor:
    """Values ``[rows, columns]`` averaged over the cells of a grid with at most `side` rows and columns."""
    size = (min(side, values.shape[0]), min(side, values.shape[1]))
    return values if tuple(values.shape) == size else F.adaptive_avg_pool2d(values[None, None].float(), size)[0, 0]


def told(sides: Tensor) -> np.ndarray:
    """What `Spread.against` found, ``[rows, columns]``, as uint8 ``[rows, columns, RGBA]``."""
    table = torch.tensor([_rgba(AGAINST), _rgba(UNSURE), _rgba(FOR)], dtype=torch.uint8)
    return table[sides.cpu().long() + 1].numpy()


def pixels(image: Tensor, ends: tuple[float, float] | None = None) -> np.ndarray:
    """An image ``[channels, rows, columns]`` as uint8 ``[rows, columns, RGBA]``.

    `ends` are what is shown black and white; None: its extremes.
    """
    image = image.detach().cpu().double()
    if image.shape[0] not in (1, 3):
        image = image.mean(0, keepdim=True)
    low, high = ends or (float(image.min()), float(image.max()))
    grey = ((image - low) * (255 / max(high - low, 1e-12))).clamp(0, 255).round().to(torch.uint8).expand(3, -1, -1)
    return torch.cat([grey, torch.full_like(grey[:1], 255)]).permute(1, 2, 0).numpy()


def data_uri(picture: np.ndarray) -> str:
    """A picture ``[rows, columns, RGBA]`` without transparency as an address that holds it as a PNG."""
    from PIL import Image

    found, places = np.unique(picture.reshape(-1, 4)[:, :3], axis=0, return_inverse=True)
    if len(found) <= 256:  # a scale's colours and no others: a byte a pixel, and nothing is lost
        image = Image.fromarray(places.reshape(picture.shape[:2]).astype(np.uint8)).convert("P")
        image.putpalette(found.astype(np.uint8).tobytes())
    else:
        image = Image.fromarray(np.ascontiguousarray(picture[..., :3]))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def gradient(scale: Scale) -> str:
    """A scale as the colours of a CSS gradient."""
    found = colours(scale)(np.linspace(0, 1, STOPS), bytes=True)
    return ", ".join(f"#{r:02x}{g:02x}{b:02x}" for r, g, b, _ in np.asarray(found).tolist())


def reach(values: Tensor) -> float:
    """The largest |value|, and no less than a number that a scale can be drawn with."""
    return max(float(values.abs().max()), 1e-12)


def _rgba(colour: str) -> list[int]:
    return [*bytes.fromhex(colour.removeprefix("#")), 255]


@contextlib.contextmanager
def our_settings() -> Iterator[None]:
    """matplotlib with its defaults and our few changes, whatever the user's settings are; they come back after."""
    import matplotlib.style

    ticks = {"labelsize": 7.5, "color": QUIET, "labelcolor": QUIET, "major.size": 2.5, "major.width": 0.7}
    ours: dict[str, Any] = {f"{axis}tick.{name}": value for axis in "xy" for name, value in ticks.items()} | {
        "font.family": [FONT], "font.size": 8.5, "text.color": INK, "text.parse_math": False,
        "axes.labelcolor": INK, "axes.edgecolor": QUIET, "axes.linewidth": 0.7, "axes.titlesize": 9,
        "axes.titlelocation": "left", "figure.titlesize": 10, "figure.titleweight": "bold", "legend.frameon": False,
        "legend.fontsize": 7.5, "image.interpolation": "nearest", "figure.facecolor": "white",
        "savefig.facecolor": "white",
    }  # fmt: skip
    with matplotlib.style.context(["default", ours]):
        yield


def new_figure(width: float, height: float, title: str = "") -> Figure:
    """An empty figure, in inches; it belongs to no window and no list."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.05)  # type: ignore[union-attr,call-arg]
    if title:
        figure.suptitle(title, x=0.01, ha="left")
    return figure


def bare(axes: Axes) -> None:
    """Without ticks, as pictures are."""
    axes.set_xticks([])
    axes.set_yticks([])
