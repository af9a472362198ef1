"""A smaller network out of the posterior. Start with `compression.py`, then `compact.py` and `remove.py`."""

from .compact import CompactViT
from .compression import compress, plan
from .export import export, probability_graph
from .latency import latency_ms
from .recover import recover
from .remove import remove
from .report import CompressionReport, class_probabilities, compression_report, norm_changes
from .run import CompactRun, Compressed, compress_run, open_run
from .scores import Score
from .selection import Selection
from .shape import Shape, count_macs, count_weights
from .sparse import probable_masks, share_masks, sparsify, to_semi_structured, two_of_four_masks
from .storage import load_compact, save_compact

__all__ = [
    "CompactRun",
    "CompactViT",
    "Compressed",
    "CompressionReport",
    "Score",
    "Selection",
    "Shape",
    "class_probabilities",
    "compress",
    "compress_run",
    "compression_report",
    "count_macs",
    "count_weights",
    "export",
    "latency_ms",
    "load_compact",
    "norm_changes",
    "open_run",
    "plan",
    "probability_graph",
    "probable_masks",
    "recover",
    "remove",
    "save_compact",
    "share_masks",
    "sparsify",
    "to_semi_structured",
    "two_of_four_masks",
]
