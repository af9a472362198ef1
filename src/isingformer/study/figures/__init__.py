"""The figures of a study: metrics by training size, calibration, entropies, drop probabilities, sample images."""

from .charts import Chart, Pictures, charts, write_figures
from .style import LOOKS, Look, in_order, look
from .theme import data_uri, themed

__all__ = ["LOOKS", "Chart", "Look", "Pictures", "charts", "data_uri", "in_order", "look", "themed", "write_figures"]
