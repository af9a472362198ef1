"""isingformer: one posterior over masks for any transformer."""

from ._version import __version__
from .methods import (
    Attached,
    DropConnect,
    Dropout,
    Ising,
    Method,
    WeightPosterior,
    attach,
    attached_to,
    load,
    sampled,
    save,
)
from .nn import ViT, clip_grad_norm_, stack, unstack
from .predict import Prediction, predict

__all__ = [
    "Attached",
    "DropConnect",
    "Dropout",
    "Ising",
    "Method",
    "Prediction",
    "ViT",
    "WeightPosterior",
    "__version__",
    "attach",
    "attached_to",
    "clip_grad_norm_",
    "load",
    "predict",
    "sampled",
    "save",
    "stack",
    "unstack",
]
