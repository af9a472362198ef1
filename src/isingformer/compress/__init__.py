"""A smaller network out of the posterior. Start with `compression.py`, then `compact.py` and `remove.py`."""

from .compact import CompactViT
from .compression import compress, plan
from .latency import latency_ms
from .recover import recover
from .remove import remove
from .report import CompressionReport, class_probabilities, compression_report, norm_changes
from .scores import Score
from .selection import Selection
from .shape import Shape, count_macs, count_weights
from .sparse import probable_masks, share_masks, sparsify, to_semi_structured, two_of_four_masks
from .storage import load_compact, save_compact

__all__ = [
    "CompactViT",
    "CompressionReport",
    "Score",
    "Selection",
    "Shape",
    "class_probabilities",
    "compress",
    "compression_report",
    "count_macs",
    "count_weights",
    "latency_ms",
    "load_compact",
    "norm_changes",
    "plan",
    "probable_masks",
    "recover",
    "remove",
    "save_compact",
    "share_masks",
    "sparsify",
    "to_semi_structured",
    "two_of_four_masks",
]
