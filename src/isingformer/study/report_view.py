"""What the report says, as plain values for its template: no markup here, no arithmetic there."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .compare import Verdict, verdict_list
from .figures import Chart, data_uri, themed
from .record import Cell, Record
from .summary import LABELS, cell_order, measured, summarise
from .table import Table, slug
from .tables import dataset_label

if TYPE_CHECKING:
    from .plan import Plan

Cells = Mapping[Cell, Sequence[Record]]
MOST_NAMED = 12
"""Cells that a note names before it only counts."""
KINDS = {
    "calibration": "Calibration",
    "entropy": "Entropy of right and wrong predictions",
    "layers": "Drop probability by layer",
}


def headline(records: Sequence[Record], plan: Plan | None) -> str:
    """The title of the page."""
    labels = plan.labels if plan is not None else dict.fromkeys(record.cell.dataset for record in records)
    names = ", ".join(dataset_label(label) for label in labels) or "no data yet"
    return f"Study {plan.name}: {names}" if plan is not None else f"Study of {names}"


def verdict_groups(records: Sequence[Record]) -> dict[str, Any]:
    """The verdicts by kind, each with the shares of its bar; pairs by the method they are about."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in ("headline", "pair", "paper", "note")}
    for verdict in verdict_list(records) if records else ():
        metric = LABELS.get(verdict.metric, "")
        found[verdict.kind].append({"verdict": verdict, "metric": metric, "bar": _bar(verdict)})
    pairs = itertools.groupby(found["pair"], key=lambda entry: entry["verdict"].a)
    return {**found, "pair": {method: list(group) for method, group in pairs}}


def _bar(verdict: Verdict) -> list[tuple[str, float]]:
    """(class of the style sheet, percent of the cells) from clearly better to clearly worse."""
    if not verdict.cells or verdict.kind not in ("headline", "pair"):
        return []
    counts = {
        "clearly-better": verdict.clearly_better,
        "better": verdict.better - verdict.clearly_better,
        "equal": verdict.cells - verdict.better - verdict.worse,
        "worse": verdict.worse - verdict.clearly_worse,
        "clearly-worse": verdict.clearly_worse,
    }
    return [(name, round(100 * count / verdict.cells, 3)) for name, count in counts.items() if count]


def progress(cells: Cells, plan: Plan | None) -> dict[str, Any]:
    """Trainings done and planned, and a table of them: a row a dataset and size, a column a method and rate."""
    planned = plan.replicas if plan is not None else None
    grid = sorted({*cells, *(plan.cells() if plan is not None else ())}, key=cell_order)
    columns = sorted({(c.method, c.rate) for c in grid}, key=lambda key: cell_order(Cell("", 0, *key)))
    rows = []
    for (dataset, size), group in itertools.groupby(grid, key=lambda cell: (cell.dataset, cell.size)):
        there = {(cell.method, cell.rate): len(cells.get(cell, ())) for cell in group}
        rows.append({"dataset": dataset, "size": size, "done": [there.get(column) for column in columns]})
    return {
        "done": sum(map(len, cells.values())), "planned": plan.trainings if plan is not None else None,
        "replicas": planned, "columns": columns, "rows": rows, "cells": len(grid),
        "unfinished": sum(len(cells.get(cell, ())) < (planned or 1) for cell in grid),
    }  # fmt: skip


def facts(records: Sequence[Record], plan: Plan | None) -> list[tuple[str, str]]:
    """What was run, with what, on what: (name, value)."""
    if plan is not None:
        sets = [(data.label, data.sizes) for data in plan.datasets]
    else:
        seen = {
            r.cell.dataset: sorted({s.cell.size for s in records if s.cell.dataset == r.cell.dataset}) for r in records
        }
        sets = [(label, tuple(sizes)) for label, sizes in seen.items()]
    tested = {r.cell.dataset: r.test_images for r in records}
    found = [
        (f"Data: {dataset_label(label)}", f"{_listed(f'{size:,}' for size in sizes)} training images"
         + (f", {tested[label]:,} test images" if label in tested else ""))
        for label, sizes in sets
    ]  # fmt: skip
    rates = plan.rates if plan is not None else sorted({r.cell.rate for r in records if r.cell.rate is not None})
    replicas = plan.replicas if plan is not None else max((r.replica + 1 for r in records), default=0)
    found.append(("Drop rates", _listed(f"{rate:g}" for rate in rates) or "none"))
    found.append(("Replicas", f"{replicas} training samples for each dataset and size, the same for every method"))
    found.append(("Passes a prediction", _distinct(r.samples for r in records)))
    for name, values in (("Network", [r.network for r in records]), ("Recipe", [r.recipe for r in records])):
        found.append((name, _common(values)))
    made = {"hardware": "Hardware", "isingformer": "isingformer", "torch": "torch", "python": "Python",
            "commit": "Commit", "date": "Date"}  # fmt: skip
    for key, name in made.items():
        found.append((name, _distinct(r.made.get(key) for r in records)))
    seconds = sum(r.seconds for r in records)
    found.append(
        ("Training time", f"{seconds / 60:,.1f} minutes in all" if seconds >= 60 else f"{seconds:.1f} seconds")
    )
    return [(name, value) for name, value in found if value]


def notes(cells: Cells, plan: Plan | None) -> list[str]:
    """What a reader must know before trusting the numbers."""
    found = []
    records = [record for replicas in cells.values() for record in replicas]
    if not records:
        found.append("No training has finished yet: there is nothing to see but the plan.")
    if plan is not None:
        short = [cell for cell in plan.cells() if len(cells.get(cell, ())) < plan.replicas]
        if short and records:
            named = [f"{cell.name} ({len(cells.get(cell, ()))} of {plan.replicas})" for cell in short]
            found.append(f"Unfinished: {len(short)} of {len(plan.cells())} cells lack replicas, so their means may "
                         f"still move: {_first(named)}.")  # fmt: skip
        if strange := sorted(set(cells) - set(plan.cells()), key=cell_order):
            found.append(f"Not in the plan, but shown: {_first([cell.name for cell in strange])}.")
    elif records:
        found.append("No plan was given, so cells that are missing altogether cannot be told.")
    for key, word in (("commit", "commits"), ("hardware", "kinds of hardware"), ("torch", "versions of torch")):
        if len(values := Counter(str(r.made.get(key)) for r in records)) > 1:
            found.append(f"The trainings come from {len(values)} {word}: {_distinct(values.elements())}.")
    if any("dirty" in str(r.made.get("commit")) for r in records):
        found.append("Some were made by code with changes that no commit holds (marked dirty).")
    if alone := sum(len(replicas) == 1 for replicas in cells.values()):
        found.append(f"Cells with one replica, which tells nothing of the spread: {alone} of {len(cells)}.")
    if certain := sum(r.scores.get("entropy_wrong") is None for r in records):
        found.append(
            f"Trainings that made no mistake, so that the entropy of wrong predictions is not defined: {certain}."
        )
    found.append("ECE is the calibration error of the predicted class in equally wide bins; no temperature was fitted. "
                 "All replicas of a dataset are tested on the same images.")  # fmt: skip
    return found


def tables_by_dataset(tables: Iterable[Table]) -> dict[str, list[Table]]:
    """In the order of the tables."""
    found: dict[str, list[Table]] = {}
    for table in tables:
        found.setdefault(table.dataset, []).append(table)
    return found


def figures_by_dataset(drawn: Iterable[Chart]) -> dict[str, dict[str, Any]]:
    """Of each dataset: those of the whole, then those of its cells, by kind."""
    found: dict[str, dict[str, Any]] = {}
    for chart in drawn:
        own = found.setdefault(chart.dataset, {"whole": [], "kinds": {}})
        entry = {"chart": chart, **_picture(chart)}
        if chart.kind in KINDS:
            rate = "" if chart.rate is None else f", drop rate {chart.rate:g}"
            kind = own["kinds"].setdefault(
                chart.kind, {"title": KINDS[chart.kind], "caption": chart.caption, "figures": []}
            )
            kind["figures"].append({**entry, "label": f"{chart.size:,} training images{rate}"})
        else:
            own["whole"].append(entry)
    return found


def _picture(chart: Chart) -> dict[str, Any]:
    svg = chart.files["svg"].decode()
    size = re.search(r'<svg[^>]*? width="([\d.]+)pt" height="([\d.]+)pt"', svg)
    assert size, "matplotlib writes the size in points"
    return {
        "uri": data_uri(themed(svg)),
        "width": round(float(size[1]) * 4 / 3),
        "height": round(float(size[2]) * 4 / 3),
    }


def cell_details(cells: Cells) -> dict[str, list[dict[str, Any]]]:
    """Everything about every cell, by dataset."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell, summary in summarise(itertools.chain(*cells.values())).items():
        records = cells[cell]
        scores = [(LABELS[m], summary.means[m], summary.sds[m], summary.counts[m]) for m in measured(records)]
        settings = {**_same([r.settings for r in records]), **_same([r.recipe for r in records]),
                    **_same([r.network for r in records])}  # fmt: skip
        found.setdefault(cell.dataset, []).append({
            "cell": cell, "id": f"cell-{slug(cell.name)}", "records": records, "summary": summary, "scores": scores,
            "settings": {name: _plain(value) for name, value in settings.items()},
        })  # fmt: skip
    return found


def reproduce(records: Sequence[Record], command: str | None) -> list[str]:
    """The commands that make the study again."""
    commits = {str(r.made["commit"]) for r in records if r.made.get("commit")}
    commands = [command] if command else sorted({str(r.made["command"]) for r in records if r.made.get("command")})
    checkout = [f"git checkout {commits.pop().removesuffix('-dirty')}"] if len(commits) == 1 else []
    return [*checkout, "make install", *commands] if commands else []


def _listed(words: Iterable[str]) -> str:
    found = list(words)
    return " and ".join([", ".join(found[:-1]), found[-1]]) if len(found) > 1 else "".join(found)


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def _distinct(values: Iterable[Any]) -> str:
    """Every value, with how many trainings have it where there are several."""
    counts = Counter(_plain(value) for value in values if value is not None)
    return (
        next(iter(counts), "") if len(counts) < 2 else _first([f"{value} ({n})" for value, n in counts.most_common()])
    )


def _same(values: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The settings that all have alike."""
    first = values[0] if values else {}
    return {name: value for name, value in first.items() if all(name in v and v[name] == value for v in values)}


def _common(values: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{name} {_plain(value)}" for name, value in _same(values).items() if value is not None)


def _plain(value: Any) -> str:
    return (value or "none") if isinstance(value, str) else json.dumps(value, default=str)
