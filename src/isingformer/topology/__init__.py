"""Who reads whom: for every masked layer, the layers whose columns are the nodes it writes. Start with `find.py`."""

from .find import Topology, find_topology
from .select import maskable_layers, selected_layers

__all__ = ["Topology", "find_topology", "maskable_layers", "selected_layers"]
