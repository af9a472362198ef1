"""Networks and the posterior of a layer. Start with `vit.py`, then `posterior.py`."""

from .masked import MaskedLinear, posteriors
from .posterior import Posterior, Sampling
from .stacked import StackedLayerNorm, StackedLinear, clip_grad_norm_
from .vit import ViT, stack, unstack

__all__ = [
    "MaskedLinear",
    "Posterior",
    "Sampling",
    "StackedLayerNorm",
    "StackedLinear",
    "ViT",
    "clip_grad_norm_",
    "posteriors",
    "stack",
    "unstack",
]
