"""isingformer: one posterior over masks for any transformer."""

from ._version import __version__
from .methods import Attached, DropConnect, Dropout, Ising, Method, WeightPosterior, attach, load, sampled, save
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
    "clip_grad_norm_",
    "load",
    "predict",
    "sampled",
    "save",
    "stack",
    "unstack",
]
