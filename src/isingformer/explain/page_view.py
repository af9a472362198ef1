"""What the page says of the network and its training, as plain values for its template; of images, `image_view.py`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .anatomy import Anatomy
from .look import data_uri, painted
from .network_map import Tile, keep_range, tiles
from .table import shown

if TYPE_CHECKING:
    from .architecture import Architecture
    from .bottlenecks import Bottlenecks
    from .history import History


def network_view(found: Architecture, level: float, bottlenecks: Bottlenecks | None) -> dict[str, Any]:
    """The network itself."""
    low, high = keep_range(found.drop)

    def tile(one: Tile) -> dict[str, Any]:
        keep = 1 - one.of(found.drop[one.layer])
        alt = f"Keep probability of {one.layer}, {one.title}: mean {float(keep.mean()):.3f}."
        return {"title": one.title, "across": one.across, "uri": data_uri(painted(keep, low, high)), "alt": alt,
                "mean": f"{float(keep.mean()):.3f}"}  # fmt: skip

    image = found.image_of_pixels().mean(0)
    tables = [found.count_table(level), found.head_table(), found.layer_table()]
    return {
        "map": [(name, [tile(one) for one in row]) for name, row in tiles(found.parts)],
        "ends": (shown(low), shown(high)), "heads": found.parts.heads,
        "pixels": {"uri": data_uri(painted(image, low, high)), "alt": "Keep probability of every pixel of the image "
                   f"through the embedding: {shown(float(image.min()))} to {shown(float(image.max()))}."},
        "entropy": f"{found.entropy:,.0f}",
        "entropy_most": f"{100 * found.entropy / max(found.masks * math.log(2), 1e-12):.0f}%",
        "tables": tables if bottlenecks is None else [*tables, bottlenecks.table()],
    }  # fmt: skip


def training_view(parts: Anatomy, history: History) -> dict[str, Any]:
    """How 1 - q moved: a strip of small pictures for every layer, and the mean of every layer in time."""
    missing = [name for name in parts.layers if name not in history.pictures]
    if missing:
        raise ValueError(
            f"write_page: the history lacks layer {missing[0]!r}; give that of the model that is explained"
        )
    least = 1 - max(max(int(picture.max()) for picture in history.pictures.values()) / 255, 0.05)
    rows = []
    for name, row in tiles(parts):
        own = {tile.layer: tile for tile in row}
        rows.append((name, [_strip(layer, tile, history, least) for layer, tile in own.items()]))
    order = [history.layers.index(name) for name in parts.layers]
    return {
        "rows": rows, "steps": history.steps.tolist(), "frames": len(history), "ends": (shown(least), "1"),
        "course": {
            "uri": data_uri(painted(1 - history.mean[:, order].T, least, 1.0)), "layers": parts.layers,
            "alt": f"Mean keep probability of {len(order)} layers after {len(history)} steps of training.",
        },
    }  # fmt: skip


def _strip(layer: str, tile: Tile, history: History, least: float) -> dict[str, Any]:
    frames = history.pictures[layer]  # [F, rows, columns]
    frames = frames.transpose(1, 2) if tile.turned else frames
    picture = painted(1 - frames.flatten(0, 1).double() / 255, least, 1.0)
    alt = f"Keep probability of {layer} during training, one frame for every position of the slider."
    return {"title": layer.rsplit(".", 1)[-1], "uri": data_uri(picture), "alt": alt}
