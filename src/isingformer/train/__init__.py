"""One training loop, its schedule, its checkpoints, and the run that comes out. Start with `loop.py`."""

from .device import find_device
from .evaluation import Evaluation
from .loop import Diverged
from .recipe import Recipe
from .run import Run
from .training import train

__all__ = ["Diverged", "Evaluation", "Recipe", "Run", "find_device", "train"]
