"""Data sets: readers that never unpickle, downloads that are checked, samples by seed."""

from .dataset import DataError, Dataset, Images
from .fetch import data_folder, fetch, is_here
from .image import find_images, read_image
from .load import describe, load_data
from .resize import resized
from .sources import SOURCES
from .split import split, split_rows, standardise, subset

__all__ = [
    "SOURCES",
    "DataError",
    "Dataset",
    "Images",
    "data_folder",
    "describe",
    "fetch",
    "find_images",
    "is_here",
    "load_data",
    "read_image",
    "resized",
    "split",
    "split_rows",
    "standardise",
    "subset",
]
