"""isingformer: one posterior over masks for any transformer."""

from ._version import __version__
from .data import Dataset, Images, load_data
from .methods import (
    Attached,
    DropConnect,
    Dropout,
    Ising,
    Method,
    Plain,
    WeightPosterior,
    attach,
    attached_to,
    load,
    sampled,
    save,
)
from .nn import ViT, clip_grad_norm_, stack, unstack
from .predict import Prediction, fit_temperature, predict
from .train import Diverged, Evaluation, Recipe, Run, train

__all__ = [
    "Attached",
    "Dataset",
    "Diverged",
    "DropConnect",
    "Dropout",
    "Evaluation",
    "Images",
    "Ising",
    "Method",
    "Plain",
    "Prediction",
    "Recipe",
    "Run",
    "ViT",
    "WeightPosterior",
    "__version__",
    "attach",
    "attached_to",
    "clip_grad_norm_",
    "fit_temperature",
    "load",
    "load_data",
    "predict",
    "sampled",
    "save",
    "stack",
    "train",
    "unstack",
]
