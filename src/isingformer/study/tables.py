"""The tables of a study, built once and written as Markdown, LaTeX and CSV; the report shows the same `Table`s."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from .._files import make_folder, write_text
from .compare import COMPARED, Difference, compare, comparisons, verdicts
from .paper import PAPER_SCORES, WHY_NOT_COMPARABLE, paper_number
from .record import Cell, Record
from .summary import (
    BETTER,
    DATASETS,
    LABELS,
    Summary,
    by_cell,
    cell_order,
    measured,
    method_order,
    summarise,
    value_of,
)
from .table import DAGGER, MINUS, NOTHING, Entry, Table, latex, markdown, slug

SCORES = tuple(PAPER_SCORES)
"""The columns of the paper's tables."""
CALIBRATION = ("nll", "ece", "brier", "error_auroc", "mean_q", "dropped")
"""The columns of the second kind of table."""

_TITLES = {"scores": "scores", "calibration": "calibration and drop probabilities"}


def build_tables(
    records: Iterable[Record], *, cells: Iterable[Cell] | None = None, replicas: int | None = None
) -> list[Table]:
    """Scores and calibration for each data set and rate, then the paired differences of each ising method.

    Args:
        records: of a study, finished or not.
        cells: the cells of the whole study, so that those without a record show as a dash; None: every method and rate
            that a data set has, at every size that it has.
        replicas: of each cell in the finished study; None: as many as there are different ones.
    """
    records = list(records)
    summaries = summarise(records)
    grid = sorted(_grid(summaries) if cells is None else {*cells, *summaries}, key=cell_order)
    whole = replicas if replicas is not None else len({record.replica for record in records})
    tables = []
    for _, members in itertools.groupby(grid, key=lambda cell: cell.dataset):
        rows = list(members)
        rates: list[float | None] = [*sorted({cell.rate for cell in rows if cell.rate is not None})]
        for rate in rates or [None]:
            chosen = [cell for cell in rows if cell.rate in (None, rate)]  # plain stands in the table of every rate
            tables.append(_score_table("scores", SCORES, rate, chosen, summaries, whole))
            tables.append(_score_table("calibration", CALIBRATION, rate, chosen, summaries, whole))
    return tables + _difference_tables(records)


def write_tables(
    records: Iterable[Record], folder: str | Path, *, cells: Iterable[Cell] | None = None, replicas: int | None = None
) -> list[Path]:
    """Write `build_tables` as Markdown and LaTeX, and cells, replicas and differences as CSV, a row each."""
    records = list(records)
    tables = build_tables(records, cells=cells, replicas=replicas)
    said = "\n".join(f"- {sentence}" for sentence in verdicts(records))
    columns = measured(records)
    pairs = itertools.product(comparisons(records), [metric for metric in BETTER if metric in columns])
    found = {
        "tables.md": "\n\n".join(["## Verdicts", said, "## Tables", *map(markdown, tables)]) + "\n",
        "tables.tex": "\n\n".join(["% needs \\usepackage{booktabs}", *map(latex, tables)]) + "\n",
        "cells.csv": cells_csv(summarise(records), columns),
        "replicas.csv": replicas_csv(records),
        "differences.csv": differences_csv(d for (a, b), metric in pairs for d in compare(records, a, b, metric)),
    }
    home = make_folder(Path(folder))
    for name, text in found.items():
        write_text(home / name, text)
    return [home / name for name in found]


def cells_csv(summaries: Mapping[Cell, Summary], columns: Sequence[str]) -> str:
    """One row a cell in full precision: mean, sd and number of replicas of every score, then the paper's numbers."""
    names = [f"{metric}{end}" for metric in columns for end in ("", "_sd", "_n")]
    theirs = [f"paper_{score}{end}" for score in SCORES for end in ("", "_sd")]
    rows: list[list[object]] = [["dataset", "size", "method", "rate", "replicas", *names, *theirs, "paper_comparable"]]
    for cell, s in summaries.items():
        row: list[object] = [*dataclasses.astuple(cell), s.replicas]
        for metric in columns:
            row += [s.means[metric], s.sds[metric], s.counts[metric]]
        paper = paper_number(cell)
        for score in SCORES:
            row += [paper.means[score], paper.sds[score]] if paper else [None, None]
        rows.append([*row, paper.comparable if paper else None])
    return _csv(rows)


def replicas_csv(records: Iterable[Record]) -> str:
    """One row a training in full precision: its place, its seed and all that is summarised."""
    records = list(records)
    columns = measured(records)
    rows: list[list[object]] = [["dataset", "size", "method", "rate", "replica", "seed", *columns]]
    for cell, replicas in by_cell(records).items():
        for record in replicas:
            values = [value_of(record, metric) for metric in columns]
            rows.append([*dataclasses.astuple(cell), record.replica, record.seed, *values])
    return _csv(rows)


def differences_csv(differences: Iterable[Difference]) -> str:
    """One row a difference a - b in full precision."""
    place = ["dataset", "size", "metric", "a", "rate_a", "b", "rate_b"]
    rows: list[list[object]] = [[*place, "pairs", "unpaired", "mean", "low", "high", "better", "clear"]]
    for d in differences:
        where = [d.a.dataset, d.a.size, d.metric, d.a.method, d.a.rate, d.b.method, d.b.rate]
        rows.append([*where, d.pairs, d.unpaired, d.mean, d.low, d.high, d.better, d.clear])
    return _csv(rows)


def dataset_label(name: str) -> str:
    """What people call a data set."""
    return DATASETS.get(name, name)


def _csv(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)  # None is an empty field; a float keeps all its digits
    return text.getvalue()


def _grid(seen: Iterable[Cell]) -> set[Cell]:
    pairs = itertools.product(list(seen), repeat=2)
    return {Cell(x.dataset, x.size, y.method, y.rate) for x, y in pairs if x.dataset == y.dataset}


def _score_table(
    kind: Literal["scores", "calibration"], metrics: Sequence[str], rate: float | None, cells: Sequence[Cell],
    summaries: Mapping[Cell, Summary], whole: int,
) -> Table:  # fmt: skip
    done = {cell: summaries[cell].replicas if cell in summaries else 0 for cell in cells}
    finished = all(number >= whole for number in done.values())
    rows: list[tuple[Entry, ...]] = []
    for size, members in itertools.groupby(cells, key=lambda cell: cell.size):
        group = sorted(members, key=cell_order)
        columns = [_marked([_entry(cell, summaries.get(cell), metric) for cell in group], metric) for metric in metrics]
        for cell, *entries in zip(group, *columns, strict=True):
            replicas = [] if finished else [Entry(f"{done[cell]}/{whole}", done[cell], sort=done[cell])]
            rows.append((_size(size), _method(cell.method), *replicas, *entries))
    dataset, at = cells[0].dataset, "" if rate is None else f"{rate:g}"
    return Table(
        name="-".join(filter(None, [kind, slug(dataset), at])),
        kind=kind,
        dataset=dataset,
        title=f"{dataset_label(dataset)}{at and ', rate '}{at}: {_TITLES[kind]}",
        caption=_caption(rows, whole, None if finished else (sum(done.values()), whole * len(cells))),
        header=("Size", "Method", *([] if finished else ["Replicas"]), *(LABELS[metric] for metric in metrics)),
        rows=tuple(rows),
    )


def _size(size: int) -> Entry:
    return Entry(f"{size:,}", size, sort=size)


def _method(method: str) -> Entry:
    place, name = method_order(method)
    return Entry(method, sort=f"{place} {name}")


def _entry(cell: Cell, summary: Summary | None, metric: str) -> Entry:
    paper, beside = paper_number(cell), ""
    if paper and metric in paper.means:
        mark = "" if paper.comparable else DAGGER
        beside = f"{paper.means[metric]:.3f} ({paper.sds[metric]:.3f}){mark}"
    if summary is None or (mean := summary.means[metric]) is None:
        return Entry(NOTHING, beside=beside)
    sd, count = summary.sds[metric], summary.counts[metric]
    text = f"{mean:.3f}" if sd is None else f"{mean:.3f} ({sd:.3f})"
    text += f" n={count}" if count < summary.replicas else ""
    return Entry(text, mean, sd, beside=beside, sort=mean)


def _marked(entries: list[Entry], metric: str) -> list[Entry]:
    """The best of a group in bold, with all that print the same number; one replica is not enough to be chosen."""
    values = [entry.value for entry in entries if entry.value is not None and entry.sd is not None]
    if metric not in BETTER or len(values) < 2:
        return entries
    best = f"{max(values) if BETTER[metric] == 'higher' else min(values):.3f}"
    return [dataclasses.replace(e, bold=e.sd is not None and f"{e.value:.3f}" == best) for e in entries]


def _caption(rows: Sequence[Sequence[Entry]], whole: int, unfinished: tuple[int, int] | None) -> str:
    entries = [entry for row in rows for entry in row]
    if unfinished:
        said = [
            f"Unfinished: mean (standard deviation) over the {unfinished[0]} of {unfinished[1]} replicas there are."
        ]
    else:
        said = ["One replica." if whole == 1 else f"Mean (standard deviation) over {whole} replicas."]
    if any(entry.text == NOTHING for entry in entries):
        said.append(f"{NOTHING}: no number.")
    if any(" n=" in entry.text for entry in entries):
        said.append("n: defined in so many replicas only.")
    if any(entry.bold for entry in entries):
        said.append("Bold: the best of each size, of those with two replicas or more.")
    if any(DAGGER in entry.beside for entry in entries):
        said.append(f"{DAGGER} Not comparable: {WHY_NOT_COMPARABLE}.")
    return " ".join(said)


def _difference_tables(records: Sequence[Record]) -> list[Table]:
    """For each data set and ising method: against each other method at the same rate, with 95% intervals."""
    groups: dict[tuple[str, str], dict[tuple[Cell, Cell], list[Difference]]] = {}
    for (a, b), metric in itertools.product(comparisons(records), COMPARED):
        for d in compare(records, a, b, metric):
            groups.setdefault((d.a.dataset, a), {}).setdefault((d.a, d.b), []).append(d)
    order = sorted(groups, key=lambda key: cell_order(Cell(key[0], 0, key[1], None)))
    return [_difference_table(*key, groups[key]) for key in order]


def _difference_table(dataset: str, a: str, found: Mapping[tuple[Cell, Cell], list[Difference]]) -> Table:
    rows = []
    for x, y in sorted(found, key=_pair_order):
        at = x.rate if x.rate is not None else y.rate
        rate = Entry(NOTHING) if at is None else Entry(f"{at:g}", at, sort=at)
        pairs = found[x, y][0].pairs
        count = Entry(str(pairs), pairs, sort=pairs)
        rows.append((_size(x.size), rate, _method(y.method), count, *map(_difference, found[x, y])))
    return Table(
        name=f"differences-{slug(dataset)}-{slug(a)}",
        kind="differences",
        dataset=dataset,
        title=f"{dataset_label(dataset)}: {a} minus the other methods",
        caption="Mean difference [95% interval], paired over the shared training samples; bold where the interval "
        "excludes 0. In accuracy a difference above 0 is in favour of the first, in NLL and ECE one below 0.",
        header=("Size", "Rate", "Against", "Pairs", *(LABELS[metric] for metric in COMPARED)),
        rows=tuple(rows),
    )


def _pair_order(pair: tuple[Cell, Cell]) -> tuple[object, ...]:
    x, y = pair
    at = x.rate if x.rate is not None else y.rate
    return (x.size, -1.0 if at is None else at, y.method == "plain", method_order(y.method))


def _difference(d: Difference) -> Entry:
    if d.mean is None:
        return Entry(NOTHING)
    text = f"{d.mean:+.4f}"
    if d.low is not None and d.high is not None:
        text += f" [{d.low:+.4f}, {d.high:+.4f}]"
    return Entry(text.replace("-", MINUS), d.mean, bold=d.clear, sort=d.mean)
