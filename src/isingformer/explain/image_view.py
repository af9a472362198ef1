"""What a page says of an image, as plain values for its template: no markup here, no arithmetic there.

Axes: T drawn networks, N images, P patches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..predict import Prediction
from .look import Scale, data_uri, painted, pixels, reach, told
from .spread import Spread
from .table import shown

if TYPE_CHECKING:
    from .explanation import Explanation

CLASSES = 6
"""The most probable classes that are shown."""
MANY_TIMES = 5
"""The even share of attention, times this, gets the brightest colour in the maps of heads."""
Grid = tuple[int, int]


def image_view(found: Explanation, n: int, name: str, classes: Sequence[str] | None) -> dict[str, Any]:
    """Everything about one image."""
    from .explanation import class_names

    prediction, parts, target = found.prediction, found.parts, int(found.target[n])
    names = class_names(classes, prediction.probs.shape[-1])
    said = names[target]
    return {
        "name": name, "said": said, "likely": f"{float(prediction.probs[n, target]):.3f}",
        "uri": data_uri(pixels(found.images[n])),
        "classes": class_bars(prediction, n, target, found.level, names),
        "uncertainty": uncertainty(prediction, n),
        "attention": attention_tiles(found.attention.rollout.of(n), parts.grid, found.level, name),
        "relevance": relevance_tiles(found.relevance.patches.of(n), parts.grid, found.level, said, name),
        "heads": _heads(found, n, name),
        "tables": [found.carrier_table(n), found.path_table(n)],
    }  # fmt: skip


def attention_tiles(rollout: Spread, grid: Grid, level: float, name: str) -> list[dict[str, Any]]:
    """Where an image is looked at: the rollout ``[T, P]`` by its mean, its sd, and against an even look."""
    mean, even = rollout.mean, 1 / rollout.samples.shape[-1]
    return [
        _over("Rollout, mean", mean, grid, 0.0, float(mean.max()),
              f"Mean attention rollout over the patches of {name}"),
        _over("Rollout, sd", rollout.sd, grid, 0.0, reach(rollout.sd),
              f"Standard deviation of attention rollout of {name}"),
        _sides("Against an even look", rollout.against(even, level), grid,
               ("surely looked at", "surely left out", "unsure"),
               f"Stable and unstable regions of attention of {name}"),
    ]  # fmt: skip


def relevance_tiles(relevance: Spread, grid: Grid, level: float, said: str, name: str) -> list[dict[str, Any]]:
    """What a class hangs on: the relevance ``[T, P]`` by its mean, its sd, and on which side of 0 it surely is."""
    widest = reach(relevance.mean)
    return [
        _over("Relevance, mean", relevance.mean, grid, -widest, widest,
              f"Mean relevance of the patches for {said} of {name}"),
        _over("Relevance, sd", relevance.sd, grid, 0.0, reach(relevance.sd),
              f"Standard deviation of relevance of {name}"),
        _sides("For or against", relevance.against(0.0, level), grid, ("surely for", "surely against", "unsure"),
               f"Patches that speak surely for or against the class of {name}"),
    ]  # fmt: skip


def class_bars(
    prediction: Prediction, n: int, target: int, level: float, names: Sequence[str],
    shown_classes: Sequence[int] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """A bar a class: its probability with an interval, in numbers and in percent of the bar's track.

    Args:
        prediction: ``samples`` is ``[T, N, classes]``.
        n: which image.
        target: the class that is traced back.
        level: of the intervals.
        names: of the classes.
        shown_classes: which ones, in this order; None: the most probable ones.
    """
    mean = prediction.probs[n]
    low, high = (end[n] for end in prediction.interval(level))
    order = mean.argsort(descending=True)[:CLASSES].tolist() if shown_classes is None else shown_classes
    return [
        {
            "class": c, "name": names[c], "mean": f"{float(mean[c]):.3f}", "traced": c == target,
            "ends": f"{float(low[c]):.3f} to {float(high[c]):.3f}", "width": _percent(mean[c]),
            "left": _percent(low[c]), "reach": _percent(high[c] - low[c]),
        }
        for c in order
    ]  # fmt: skip


def uncertainty(prediction: Prediction, n: int) -> list[tuple[str, str]]:
    """Total, aleatoric and epistemic of image n, in nats."""
    parts = (("total", prediction.entropy), ("aleatoric", prediction.aleatoric), ("epistemic", prediction.epistemic))
    return [(word, shown(float(values[n]))) for word, values in parts]


def _over(title: str, values: Tensor, grid: Grid, low: float, high: float, about: str) -> dict[str, Any]:
    """Values of patches ``[P]`` as a picture to lay over the image, with its scale."""
    scale: Scale = "sign" if low < 0 else "share"
    picture = data_uri(painted(values.view(grid), low, high, scale))
    return {"title": title, "uri": picture, "scale": scale, "ends": (shown(low), shown(high)), "alt": f"{about}."}


def _sides(title: str, values: Tensor, grid: Grid, words: tuple[str, str, str], about: str) -> dict[str, Any]:
    """Sure and unsure patches ``[P]`` likewise, with how many there are of each."""
    counts = [int((values == side).sum()) for side in (1, -1, 0)]
    key = list(zip(("above", "below", "unsure"), words, counts, strict=True))
    alt = f"{about}: {', '.join(f'{count} patches {word}' for _, word, count in key)}."
    return {"title": title, "uri": data_uri(told(values.view(grid))), "key": key, "alt": alt}


def _percent(share: Tensor) -> float:
    return round(100 * float(share), 2)


def _heads(found: Explanation, n: int, name: str) -> dict[str, Any]:
    """Attention of every head by its mean and its sd, each on one scale, with the head's entropy."""
    attention, entropy = found.attention.heads.of(n), found.attention.entropy.of(n)
    mean, most = attention.mean, float(attention.mean.max())
    capped = min(most, MANY_TIMES * found.attention.uniform)  # else one sharp head leaves the others dark
    top = shown(capped) if capped == most else f"{shown(capped)} and more"
    widest = reach(attention.sd)

    def maps(values: Tensor, high: float, word: str, captions: list[list[str]]) -> list[list[dict[str, str]]]:
        return [
            [
                {
                    "uri": data_uri(painted(one.view(found.parts.grid), 0.0, high)), "caption": caption,
                    "alt": f"{word} of block {block + 1}, head {number + 1} over the patches of {name}.",
                }
                for number, (one, caption) in enumerate(zip(row, captions[block], strict=True))
            ]
            for block, row in enumerate(values)
        ]  # fmt: skip

    entropies = [
        [f"{h:.2f} ± {sd:.2f}" for h, sd in zip(*row, strict=True)]
        for row in zip(entropy.mean.tolist(), entropy.sd.tolist(), strict=True)
    ]
    largest = [[f"up to {shown(h)}" for h in row] for row in attention.sd.amax(-1).tolist()]
    return {
        "most": f"{math.log(found.parts.tokens):.2f}",
        "views": [
            {"word": "Mean attention", "blocks": maps(mean, capped, "Mean attention", entropies), "ends": ("0", top)},
            {"word": "Sd of attention", "ends": ("0", shown(widest)),
             "blocks": maps(attention.sd, widest, "Standard deviation of attention", largest)},
        ],
    }  # fmt: skip
