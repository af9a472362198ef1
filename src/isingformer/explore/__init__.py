"""A page on this machine to try images on a run, and watch its answer move. Start with `explorer.py`."""

from .edits import Edits, blurred, rotated
from .explorer import Explorer, Question
from .growing import Growing, Seen
from .pool import Pool, pools_of
from .server import ExploreServer

__all__ = [
    "Edits",
    "ExploreServer",
    "Explorer",
    "Growing",
    "Pool",
    "Question",
    "Seen",
    "blurred",
    "pools_of",
    "rotated",
]
