"""From a store to what people read: tables, figures and the report, in the study's folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..data import DataError, load_data
from .figures import Pictures, charts, write_figures
from .plan import Plan
from .report import write_report
from .store import Store
from .tables import write_tables

SHOWN_IMAGES = 200
"""Test images of each dataset that the samples are picked from."""


@dataclass(frozen=True)
class Written:
    """What was written."""

    report: Path
    tables: list[Path]
    figures: list[Path]


def write_results(store: Store, *, command: str | None = None, data_dir: str | None = None) -> Written:
    """Write ``tables/``, ``figures/`` and ``report.html`` of a study, finished or not, into its folder.

    Args:
        store: the study.
        command: that made it, for the report; None: the one in the records.
        data_dir: where the datasets are, for the figures of sample images; those that are not at hand are left out.
    """
    plan, records = store.plan, store.records()
    if not records:
        raise ValueError(f"{store.path} has no records yet; run `isingformer study` with it first")
    drawn = charts(records, sample_images(plan, {record.cell.dataset for record in records}, data_dir))
    tables = write_tables(records, store.path / "tables", cells=plan.cells(), replicas=plan.replicas)
    figures = write_figures(records, store.path / "figures", drawn=drawn)
    report = write_report(records, store.path, plan=plan, command=command, drawn=drawn)
    return Written(report, tables, figures)


def sample_images(plan: Plan, labels: set[str], data_dir: str | None) -> Pictures:
    """Some test images of each dataset that is at hand, with their labels and what the classes are called."""
    found = {}
    for label in sorted(labels):
        about = plan.dataset(label)
        try:
            dataset = load_data(about.source, data_dir=data_dir, download=False, resize=about.resize)
        except (DataError, OSError):  # a report can be written where the data are not
            continue
        found[label] = (dataset.test.x[:SHOWN_IMAGES], dataset.test.y[:SHOWN_IMAGES], dataset.classes)
    return found
