"""Answers as plain values for the page: all numbers and colours are made here, the page only puts them in place."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..explain.image_view import attention_tiles, class_bars, relevance_tiles, uncertainty
from ..explain.look import data_uri, pixels
from ..explain.spread import Spread
from ..explain.table import shown
from .explorer import Explorer, Question, packed
from .growing import Seen
from .pool import Pool

ALL_CLASSES = 12
"""Up to so many classes are all shown, each in its place; of more, the most probable ones."""
THUMBNAILS = 24


def answer_view(explorer: Explorer, question: Question) -> dict[str, Any]:
    """What the page shows in answer to a question."""
    image, seen = explorer.see(question)
    prediction, level, names = seen.prediction.to("cpu"), explorer.level, explorer.classes
    said = names[seen.target]
    order = range(len(names)) if len(names) <= ALL_CLASSES else None
    likely = int(prediction.classes)
    low, high = (float(end[0, likely]) for end in prediction.interval(level))
    maps = (seen.rollout, seen.relevance)
    return {
        "passes": len(prediction.samples),
        "picture": data_uri(pixels(image, _ends(question.image))),
        "label": question.label,
        "likely": {
            "name": names[likely], "mean": f"{float(prediction.probs[0, likely]):.3f}",
            "ends": f"{low:.3f} to {high:.3f}",
        },
        "traced": said,
        "bars": class_bars(prediction, 0, seen.target, level, names, order),
        "uncertainty": _split(seen, len(names)),
        "course": seen.course(level),
        "attention": seen.rollout and attention_tiles(seen.rollout, explorer.grid, level, "the image"),
        "relevance": seen.relevance and relevance_tiles(seen.relevance, explorer.grid, level, said, "the image"),
        "patches": [patch_words(*row) for row in zip(*(_intervals(one, level) for one in maps if one), strict=True)],
    }  # fmt: skip


def _split(seen: Seen, classes: int) -> list[dict[str, Any]]:
    """Total, aleatoric and epistemic, in nats and in percent of the most that there can be, log(classes)."""
    prediction = seen.prediction.to("cpu")
    values = (prediction.entropy, prediction.aleatoric, prediction.epistemic)
    return [
        {"name": word, "nats": text, "width": round(100 * float(value[0]) / math.log(max(classes, 2)), 2)}
        for (word, text), value in zip(uncertainty(prediction, 0), values, strict=True)
    ]


def _intervals(spread: Spread, level: float) -> list[tuple[float, float, float]]:
    """(mean, low, high) of every patch."""
    low, high = spread.interval(level)
    return list(zip(spread.mean.tolist(), low.tolist(), high.tolist(), strict=True))


def patch_words(rollout: tuple[float, float, float], relevance: tuple[float, float, float]) -> str:
    """One patch in words, from (mean, low, high) of its attention and of its relevance."""
    words = (f"{shown(mean)} ({shown(low)} to {shown(high)})" for mean, low, high in (rollout, relevance))
    return "attention {}, relevance {}".format(*words)


def gallery_view(pool: Pool, start: int, label: int | None) -> dict[str, Any]:
    """Some of the images to choose from, the first of them at place `start`."""
    rows = pool.rows(label)
    if not 0 <= start <= max(len(rows) - 1, 0):
        raise ValueError(f"start must be 0 to {max(len(rows) - 1, 0)}, got {start}")
    return {
        "total": len(rows), "start": start, "step": THUMBNAILS,
        "images": [
            {"index": n, "label": pool.label(n), "uri": data_uri(pixels(pool.images.x[n], _ends(pool.images.x[n])))}
            for n in rows[start : start + THUMBNAILS]
        ],
    }  # fmt: skip


def fitted_view(explorer: Explorer, content: bytes) -> dict[str, Any]:
    """An image that was sent, as a question may hold it."""
    image, was = explorer.fitted(content)
    return {"pixels": packed(image), "was": was}


def _ends(image: Tensor) -> tuple[float, float]:
    """What is shown black and white, whatever is done to the image: of 8-bit pixels 0 and 255, else its extremes."""
    return (float(image.min()), float(image.max())) if image.is_floating_point() else (0.0, 255.0)
