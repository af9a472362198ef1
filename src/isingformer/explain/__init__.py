"""Seeing what a network learned, and how sure it is of it. Start with `passes.py`."""

from ..methods import History, Recorder
from .anatomy import Anatomy, anatomy
from .architecture import Architecture, architecture
from .attention import AttentionSpread
from .bottlenecks import Bottlenecks, bottlenecks
from .explanation import Explanation
from .faithful import Curve, covered, curve, order_of, random_order
from .passes import explain
from .paths import Path
from .relevance import RelevanceSpread
from .spread import Spread
from .table import Table

__all__ = [
    "Anatomy",
    "Architecture",
    "AttentionSpread",
    "Bottlenecks",
    "Curve",
    "Explanation",
    "History",
    "Path",
    "Recorder",
    "RelevanceSpread",
    "Spread",
    "Table",
    "anatomy",
    "architecture",
    "bottlenecks",
    "covered",
    "curve",
    "explain",
    "order_of",
    "random_order",
]
