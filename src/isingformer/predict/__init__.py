"""T passes of a model to a predictive distribution with its uncertainty, and its temperature."""

from .passes import activation_bytes, predict
from .prediction import Prediction
from .temperature import LEAST_TEMPERATURE, MOST_TEMPERATURE, fit_temperature

__all__ = [
    "LEAST_TEMPERATURE",
    "MOST_TEMPERATURE",
    "Prediction",
    "activation_bytes",
    "fit_temperature",
    "predict",
]
