"""The methods and how they get onto a model. Start with `ising.py`, then `attached.py`."""

from .attach import attach, sampled
from .attached import Attached, attached_to
from .dropconnect import DropConnect
from .dropout import Dropout
from .history import History, Recorder
from .ising import Ising
from .method import Method
from .named import METHODS, called, named_method
from .plain import Plain
from .posthoc import fit_posterior
from .storage import load, save
from .weights import WeightPosterior

__all__ = [
    "METHODS",
    "Attached",
    "DropConnect",
    "Dropout",
    "History",
    "Ising",
    "Method",
    "Plain",
    "Recorder",
    "WeightPosterior",
    "attach",
    "attached_to",
    "called",
    "fit_posterior",
    "load",
    "named_method",
    "sampled",
    "save",
]
