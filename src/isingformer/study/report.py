"""The report of a study: one HTML file that opens from disk, with everything it needs inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._files import make_folder, write_text
from .figures import Chart, Pictures, charts, in_order, look
from .record import Record
from .report_view import (
    cell_details,
    facts,
    figures_by_dataset,
    headline,
    notes,
    progress,
    reproduce,
    tables_by_dataset,
    verdict_groups,
)  # fmt: skip
from .summary import by_cell
from .table import NOTHING
from .tables import build_tables, dataset_label

if TYPE_CHECKING:
    from .plan import Plan

TEMPLATES = Path(__file__).parent / "templates"

MARKS = {"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚", ".": "•", "p": "⬟", "h": "⬢", "*": "★"}
"""The markers of figures as characters."""


def write_report(
    records: Iterable[Record],
    folder: str | Path,
    *,
    plan: Plan | None = None,
    images: Pictures | None = None,
    command: str | None = None,
    drawn: Sequence[Chart] | None = None,
) -> Path:
    """Write ``report.html``: verdicts, what was run, tables, figures, every cell, how to reproduce it.

    It holds its styles, its script and its figures, asks nothing of the network, and follows the reader's light or dark
    setting.

    Args:
        records: of the study; it need not be finished, and the report says what is missing.
        folder: where the file goes; made where it is not there.
        plan: of the study, to tell what is missing; None: what the records show.
        images: some of each dataset's images, for the figures of samples.
        command: that made the study; None: the one in the records.
        drawn: what `charts` gave for these records, to draw once for `write_figures` and for the report.
    """
    found = list(records)
    page = rendered_page(found, charts(found, images) if drawn is None else drawn, plan=plan, command=command)
    file = make_folder(Path(folder)) / "report.html"
    write_text(file, page)
    return file


def rendered_page(
    records: Sequence[Record], drawn: Sequence[Chart], *, plan: Plan | None = None, command: str | None = None
) -> str:
    """The page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["number"] = number
    cells = by_cell(records)
    tables = (
        build_tables(records) if plan is None else build_tables(records, cells=plan.cells(), replicas=plan.replicas)
    )
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8").strip()
    values: dict[str, Any] = {
        "title": headline(records, plan), "verdicts": verdict_groups(records), "progress": progress(cells, plan),
        "facts": facts(records, plan), "notes": notes(cells, plan), "methods": _methods(records, plan),
        "tables": tables_by_dataset(tables), "figures": figures_by_dataset(drawn), "cells": cell_details(cells),
        "commands": reproduce(records, command), "plan": None if plan is None else plan.to_json(),
    }  # fmt: skip
    return environment.get_template("report.html").render(
        **values, script=script, policy=_policy(script), dataset_label=dataset_label, NOTHING=NOTHING
    )


def number(value: float | None, digits: int = 3) -> str:
    """A number for people; a dash where there is none."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def _methods(records: Sequence[Record], plan: Plan | None) -> dict[str, Any]:
    """How each method is marked: a class of the style sheet, a character, a look."""
    names = in_order([record.cell.method for record in records] + list(plan.methods if plan is not None else ()))
    looks = {name: look(name) for name in names}
    return {
        name: {"key": f"m{place}", "mark": MARKS[found.marker], "colour": found.colour, "dark": found.dark}
        for place, (name, found) in enumerate(looks.items())
    }


def _policy(script: str) -> str:
    """What the page may do: run this one script, show what it holds itself, ask nobody for anything."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
