"""What the page says of the network and its training, as plain values for its template; of images, `image_view.py`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .look import data_uri, painted, reduced
from .network_map import Tile, keep_range, tiles
from .table import shown

if TYPE_CHECKING:
    from ..methods import History
    from .architecture import Architecture
    from .bottlenecks import Bottlenecks

LARGEST = 256
"""Rows and columns of a matrix's picture, at most: a page of a large model is to stay small enough to open."""


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
    tables = [found.count_table(level), found.head_table(), found.layer_table(), found.weight_table(level)]
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
