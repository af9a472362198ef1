"""T passes of a model to a predictive distribution with its uncertainty, and its temperature."""

from .acquire import acquire
from .passes import activation_bytes, predict
from .prediction import Prediction
from .temperature import LEAST_TEMPERATURE, MOST_TEMPERATURE, fit_temperature

__all__ = [
    "LEAST_TEMPERATURE",
    "MOST_TEMPERATURE",
    "Prediction",
    "acquire",
    "activation_bytes",
    "fit_temperature",
    "predict",
]
