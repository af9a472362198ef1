"""One image's explanation as a figure: the classes, where the model looks, what its answer hangs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from .look import (
    AGAINST,
    FAINT,
    FOR,
    INK,
    UNSURE,
    bare,
    colours,
    new_figure,
    our_settings,
    pixels,
    reach,
    told,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

    from .explanation import Explanation

CLASSES = 6
"""The most probable classes that are shown."""


def image_figure(found: Explanation, image: int = 0, classes: Sequence[str] | None = None) -> Figure:
    """Of one of the explained images.

    Args:
        found: what `explain` returned.
        image: its number among them.
        classes: what the classes are called; None: their numbers.
    """
    from .explanation import class_names

    if not -len(found) <= image < len(found):
        raise ValueError(f"plot: image must be 0 to {len(found) - 1}, got {image}")
    names = class_names(classes, found.prediction.probs.shape[-1])
    rollout, relevance = found.attention.rollout.of(image), found.relevance.patches.of(image)
    level = f"{100 * found.level:g}%"
    with our_settings():
        said = names[int(found.target[image])]
        figure = new_figure(9.2, 5.4, f"Why {said!r}? {len(found.prediction.samples)} drawn networks")
        panels = figure.subplots(2, 4)
        panels[0, 0].imshow(pixels(found.images[image]))
        panels[0, 0].set_title("image")
        most = float(rollout.mean.max())
        _patches(panels[0, 1], found, rollout.mean, "where it looks: rollout", 0, most, image)
        _patches(panels[0, 2], found, rollout.sd, "its sd over networks", 0, reach(rollout.sd), image)
        _sides(panels[0, 3], found, found.attention.regions(found.level)[image], image,
               ("surely looked at", "surely left out", f"unsure ({level})"))  # fmt: skip
        panels[0, 3].set_title("against an even look")
        _classes(panels[1, 0], found, image, names)
        most = reach(relevance.mean)
        _patches(panels[1, 1], found, relevance.mean, "what it hangs on: relevance", -most, most, image)
        _sides(panels[1, 2], found, found.relevance.regions(found.level)[image], image,
               ("surely for it", "surely against it", f"unsure ({level})"))  # fmt: skip
        panels[1, 2].set_title("for or against, surely")
        _heads(panels[1, 3], found.relevance.heads.of(image).mean)
        for axes in (*panels[0], *panels[1, 1:3]):
            bare(axes)
    return figure


def _grid(found: Explanation, values: Tensor) -> Tensor:
    return values.view(found.parts.grid)


def _extent(found: Explanation) -> tuple[float, float, float, float]:
    rows, columns = (side * found.parts.patch for side in found.parts.grid)
    return (-0.5, columns - 0.5, rows - 0.5, -0.5)


def _patches(axes: Axes, found: Explanation, values: Tensor, title: str, low: float, high: float, image: int) -> None:
    """Values of patches laid over the image, with their scale."""
    axes.imshow(pixels(found.images[image]))
    scale = colours("sign" if low < 0 else "share")
    drawn = axes.imshow(_grid(found, values).cpu().numpy(), cmap=scale, vmin=low, vmax=high, extent=_extent(found),
                        alpha=0.7)  # fmt: skip
    axes.set_title(title)
    bar = axes.figure.colorbar(drawn, ax=axes, location="bottom", fraction=0.05, pad=0.03, aspect=18)
    bar.solids.set_alpha(1)  # type: ignore[union-attr]
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=6.5)
    bar.locator = _few(low, high)
    bar.update_ticks()


def _few(low: float, high: float) -> Locator:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(3 if low < 0 else 4)


def _sides(axes: Axes, found: Explanation, sides: Tensor, image: int, words: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    axes.imshow(pixels(found.images[image]))
    axes.imshow(told(_grid(found, sides)), extent=_extent(found), alpha=0.7)
    handles = [Patch(color=colour) for colour in (FOR, AGAINST, UNSURE)]
    axes.legend(handles, words, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=1, fontsize=6.5,
                handlelength=1, handleheight=1, labelspacing=0.25, borderpad=0.2)  # fmt: skip


def _classes(axes: Axes, found: Explanation, image: int, names: Sequence[str]) -> None:
    """The most probable classes with their intervals."""
    mean = found.prediction.probs[image].cpu()
    low, high = (end[image].cpu() for end in found.prediction.interval(found.level))
    shown = mean.argsort(descending=True)[:CLASSES]
    places = range(len(shown))
    axes.barh(
        places, mean[shown].tolist(), color=[FOR if c == int(found.target[image]) else FAINT for c in shown.tolist()]
    )
    axes.hlines(places, low[shown].tolist(), high[shown].tolist(), color=INK, linewidth=1.2)
    axes.set_yticks(places, [names[c] if len(names[c]) < 14 else names[c][:12] + "…" for c in shown.tolist()])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    axes.set_title(f"probability, {100 * found.level:g}% interval")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _heads(axes: Axes, mean: Tensor) -> None:
    """Mean relevance of the heads, ``[L, H]``."""
    most = reach(mean)
    drawn = axes.imshow(mean.cpu().numpy(), cmap=colours("sign"), vmin=-most, vmax=most, aspect="auto")
    axes.set_xticks(range(mean.shape[1]), [str(h + 1) for h in range(mean.shape[1])])
    axes.set_yticks(range(mean.shape[0]), [str(b + 1) for b in range(mean.shape[0])])
    axes.set_xlabel("head")
    axes.set_ylabel("block")
    axes.set_title("relevance of heads")
    bar = axes.figure.colorbar(drawn, ax=axes, location="bottom", fraction=0.05, pad=0.03, aspect=18)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=6.5)
    bar.locator = _few(-most, most)
    bar.update_ticks()
