"""The mathematics of the method as pure functions on tensors. Start with `field.py`, then `sweep.py`."""

from .divergence import kl_masks, kl_weights, slab_cost, slab_cost_beyond, spike_cost
from .field import evidence, logit, prior_field, slab_minus_spike
from .sweep import Reading, Sweep, Wiring, backward_order, sweep
from .two_way import stationary_sweep

__all__ = [
    "Reading",
    "Sweep",
    "Wiring",
    "backward_order",
    "evidence",
    "kl_masks",
    "kl_weights",
    "logit",
    "prior_field",
    "slab_cost",
    "slab_cost_beyond",
    "slab_minus_spike",
    "spike_cost",
    "stationary_sweep",
    "sweep",
]
