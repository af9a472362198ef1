"""What the page of an explanation says, as plain values for its template: no markup here, no arithmetic there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .look import data_uri, painted, pixels, reach, reduced, told
from .network_map import Tile, keep_range, tiles
from .table import shown

if TYPE_CHECKING:
    from ..methods import History
    from .architecture import Architecture
    from .bottlenecks import Bottlenecks
    from .explanation import Explanation

CLASSES = 6
"""The most probable classes that are shown."""
LARGEST = 256
"""Rows and columns of a matrix's picture, at most: a page of a large model is to stay small enough to open."""
MANY_TIMES = 5
"""The even share of attention, times this, gets the brightest colour in the maps of heads."""


def image_view(found: Explanation, n: int, name: str, classes: Sequence[str] | None) -> dict[str, Any]:
    """Everything about one image."""
    from .explanation import class_names

    prediction, grid = found.prediction, found.parts.grid
    names = class_names(classes, prediction.probs.shape[-1])
    rollout, relevance = found.attention.rollout.of(n), found.relevance.patches.of(n)
    most, widest = float(rollout.mean.max()), reach(relevance.mean)
    said = names[int(found.target[n])]

    def over(title: str, values: Tensor, low: float, high: float, about: str) -> dict[str, Any]:
        scale = "sign" if low < 0 else "share"
        picture = painted(values.view(grid), low, high, scale)  # type: ignore[arg-type]
        ends = (shown(low), shown(high))
        return {"title": title, "uri": data_uri(picture), "scale": scale, "ends": ends, "alt": f"{about} of {name}."}

    def sides(title: str, values: Tensor, words: tuple[str, str, str], about: str) -> dict[str, Any]:
        counts = [int((values == side).sum()) for side in (1, -1, 0)]
        key = list(zip(("above", "below", "unsure"), words, counts, strict=True))
        alt = f"{about} of {name}: {', '.join(f'{count} patches {word}' for _, word, count in key)}."
        return {"title": title, "uri": data_uri(told(values.view(grid))), "key": key, "alt": alt}

    return {
        "name": name, "said": said, "likely": f"{float(prediction.probs[n, int(found.target[n])]):.3f}",
        "uri": data_uri(pixels(found.images[n])),
        "classes": _class_bars(found, n, names),
        "uncertainty": [
            ("total", shown(float(prediction.entropy[n]))), ("aleatoric", shown(float(prediction.aleatoric[n]))),
            ("epistemic", shown(float(prediction.epistemic[n]))),
        ],
        "attention": [
            over("Rollout, mean", rollout.mean, 0.0, most, "Mean attention rollout over the patches"),
            over("Rollout, sd", rollout.sd, 0.0, reach(rollout.sd), "Standard deviation of attention rollout"),
            sides("Against an even look", found.attention.regions(found.level)[n],
                  ("surely looked at", "surely left out", "unsure"), "Stable and unstable regions of attention"),
        ],
        "relevance": [
            over("Relevance, mean", relevance.mean, -widest, widest, f"Mean relevance of the patches for {said}"),
            over("Relevance, sd", relevance.sd, 0.0, reach(relevance.sd), "Standard deviation of relevance"),
            sides("For or against", found.relevance.regions(found.level)[n],
                  ("surely for", "surely against", "unsure"), "Patches that speak surely for or against the class"),
        ],
        "heads": _heads(found, n, name),
        "tables": [found.carrier_table(n), found.path_table(n)],
    }  # fmt: skip


def _class_bars(found: Explanation, n: int, names: Sequence[str]) -> list[dict[str, Any]]:
    mean = found.prediction.probs[n]
    low, high = (end[n] for end in found.prediction.interval(found.level))
    return [
        {
            "name": names[c], "mean": f"{float(mean[c]):.3f}", "traced": c == int(found.target[n]),
            "ends": f"{float(low[c]):.3f} to {float(high[c]):.3f}", "width": _percent(mean[c]),
            "left": _percent(low[c]), "reach": _percent(high[c] - low[c]),
        }
        for c in mean.argsort(descending=True)[:CLASSES].tolist()
    ]  # fmt: skip


def _percent(share: Tensor) -> float:
    return round(100 * float(share), 2)


def _heads(found: Explanation, n: int, name: str) -> dict[str, Any]:
    """Mean attention of every head, on one scale, with its entropy."""
    attention, entropy = found.attention.heads.of(n), found.attention.entropy.of(n)
    mean, most = attention.mean, float(attention.mean.max())
    capped = min(most, MANY_TIMES * found.attention.uniform)  # else one sharp head leaves the others dark
    blocks = []
    for block, (maps, own, sd) in enumerate(zip(mean, entropy.mean, entropy.sd, strict=True)):
        heads = [
            {
                "uri": data_uri(painted(one.view(found.parts.grid), 0.0, capped)),
                "entropy": f"{float(h):.2f} ± {float(spread):.2f}",
                "alt": f"Mean attention of block {block + 1}, head {number + 1} over the patches of {name}.",
            }
            for number, (one, h, spread) in enumerate(zip(maps, own, sd, strict=True))
        ]
        blocks.append(heads)
    top = shown(capped) if capped == most else f"{shown(capped)} and more"
    return {"blocks": blocks, "ends": ("0", top), "most": f"{math.log(found.parts.tokens):.2f}"}


def network_view(found: Architecture, level: float, bottlenecks: Bottlenecks | None) -> dict[str, Any]:
    """The network itself."""
    low, high = keep_range(found.drop)

    def tile(one: Tile) -> dict[str, Any]:
        keep = 1 - one.of(found.drop[one.layer])
        alt = f"Keep probability of {one.layer}, {one.title}: mean {float(keep.mean()):.3f}."
        picture = painted(reduced(keep, LARGEST), low, high)
        return {"title": one.title, "across": one.across, "uri": data_uri(picture), "alt": alt,
                "mean": f"{float(keep.mean()):.3f}"}  # fmt: skip

    image = found.image_of_pixels().mean(0)
    tables = [found.count_table(level), found.head_table(), found.layer_table()]
    return {
        "map": [(name, [tile(one) for one in row]) for name, row in tiles(found.parts)],
        "ends": (shown(low), shown(high)), "heads": found.parts.heads,
        "reduced": max(max(q.shape) for q in found.drop.values()) > LARGEST,
        "pixels": {"uri": data_uri(painted(image, low, high)), "alt": "Keep probability of every pixel of the image "
                   f"through the embedding: {shown(float(image.min()))} to {shown(float(image.max()))}."},
        "entropy": f"{found.entropy:,.0f}",
        "entropy_most": f"{100 * found.entropy / max(found.masks * math.log(2), 1e-12):.0f}%",
        "tables": tables if bottlenecks is None else [*tables, bottlenecks.table()],
    }  # fmt: skip


def training_view(found: Architecture, history: History) -> dict[str, Any]:
    """How 1 - q moved: a strip of small pictures for every layer that has a q, and the mean of each in time."""
    layers = [name for name in found.parts.layers if name in found.masked]
    missing = [name for name in layers if name not in history.pictures]
    if missing:
        raise ValueError(
            f"write_page: the history lacks layer {missing[0]!r}; give that of the model that is explained"
        )
    least = 1 - max(max(int(picture.max()) for picture in history.pictures.values()) / 255, 0.05)
    rows: list[tuple[str, list[dict[str, Any]]]] = []
    called: dict[str, str] = {}
    for name, row in tiles(found.parts):
        own = {tile.layer: tile for tile in row if tile.layer in layers}
        titles = {layer: _title(layer, row) for layer in own}
        strips = [_strip(tile, titles[layer], history, least) for layer, tile in own.items()]
        rows.extend([(name, strips)] if strips else [])
        called |= {layer: f"{name} {title}" if name.startswith("block") else title for layer, title in titles.items()}
    order = [history.layers.index(name) for name in layers]
    return {
        "rows": rows, "steps": history.steps.tolist(), "frames": len(history), "ends": (shown(least), "1"),
        "columns": max(len(strips) for _, strips in rows),
        "course": {
            "uri": data_uri(painted(1 - history.mean[:, order].T, least, 1.0)),
            "layers": [called[name] for name in layers],
            "alt": f"Mean keep probability of {len(order)} layers after {len(history)} steps of training.",
        },
    }  # fmt: skip


def _title(layer: str, row: list[Tile]) -> str:
    """What a layer is called in its row of the map: one that is several tiles computes queries, keys and values."""
    own = [tile.title for tile in row if tile.layer == layer]
    return own[0] if len(own) == 1 else "qkv"


def _strip(tile: Tile, title: str, history: History, least: float) -> dict[str, Any]:
    frames = history.pictures[tile.layer]  # [F, rows, columns]
    frames = frames.transpose(1, 2) if tile.turned else frames
    picture = painted(1 - frames.flatten(0, 1).double() / 255, least, 1.0)
    alt = f"Keep probability of {tile.layer} during training, one frame for every position of the slider."
    return {"title": title, "uri": data_uri(picture), "alt": alt}
