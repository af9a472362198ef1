"""What a study reads, and whether all of it can be trained: what cannot is told at once, not when its turn comes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from ..data import Dataset, Images, load_data, subset
from .plan import Plan
from .record import Cell
from .stack import Stack


def data_for(plan: Plan, label: str, *, data_dir: str | None, download: bool) -> tuple[Dataset, Images]:
    """A dataset of a plan and the test images of the study.

    Args:
        plan: the grid.
        label: what its cells call the dataset.
        data_dir: as `load_data` takes it.
        download: likewise.
    """
    about = plan.dataset(label)
    dataset = load_data(about.source, data_dir=data_dir, download=download, resize=about.resize)
    most, there = max(about.sizes), len(dataset.train)
    if most > there:
        raise ValueError(f"{label} has {there:,} training images, too few for its size {most:,}; take that out")
    if about.test_images is None:
        return dataset, dataset.test
    if about.test_images > len(dataset.test):
        raise ValueError(
            f"{label} has {len(dataset.test):,} test images, too few for test_images = {about.test_images:,}; lower it"
        )
    return dataset, subset(dataset.test, about.test_images, seed=plan.test_seed(label))


def check_beforehand(
    plan: Plan, cells: Iterable[Cell], *, data_dir: str | None, download: bool, told: Callable[[], None]
) -> None:
    """Raise if any of these cells cannot be trained, as far as reading its data and making its network tell.

    Of the sizes of a dataset and method the smallest is tried: what goes wrong for few images alone, as holding some of
    them out, goes wrong there.

    Args:
        plan: the grid.
        cells: what is to be trained.
        data_dir: as `load_data` takes it.
        download: likewise.
        told: called after each dataset.

    Raises:
        ValueError: One line says which dataset and method, what is wrong, and what to do.
    """
    smallest: dict[str, dict[str, Cell]] = {}
    for cell in sorted(cells, key=lambda cell: -cell.size):
        smallest.setdefault(cell.dataset, {})[cell.method] = cell
    for label, of_method in smallest.items():
        dataset, _ = data_for(plan, label, data_dir=data_dir, download=download)
        for method, cell in of_method.items():
            try:
                Stack(dataset, plan.method_for(cell), [plan.recipe_for(cell, 0)], device=torch.device("cpu"))
            except ValueError as error:
                raise ValueError(f"{label} with {method}: {error}") from None
        told()
