"""Differences between methods, paired over the training samples they share, and what they say in plain words.

For the differences d_r = a_r - b_r of the n replicas that both cells have, with their mean d and standard deviation s:

    95% interval = d -+ t(n - 1, 0.975) s / sqrt(n)

It describes other training samples and seeds on the same test images. There is none for one pair, nor for pairs that
all differ by the same, whose spread says nothing. "Clearly" always means that the interval excludes 0.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .paper import PAPER_METHODS, WHY_NOT_COMPARABLE, PaperNumbers, paper_number
from .record import Cell, Record
from .summary import BETTER, LABELS, Summary, by_cell, cell_order, check_metric, method_order, summarise, value_of

COMPARED = ("accuracy", "nll", "ece")
"""The scores that verdicts are about."""

ROUNDING = 1e-12
"""Differences and spreads below it are rounding."""


@dataclass(frozen=True)
class Difference:
    """Cell `a` minus cell `b` in one metric, over the replicas in which both have it."""

    a: Cell
    b: Cell
    metric: str
    pairs: int
    unpaired: int
    """Replicas of either cell that are left out: no partner, or the metric is not defined in one of the two."""
    mean: float | None
    low: float | None
    """The 95% interval; None where there is none."""
    high: float | None

    @property
    def better(self) -> bool | None:
        """Whether a is better than b on average; None for no difference and for a metric without a better direction."""
        if self.mean is None or abs(self.mean) < ROUNDING or self.metric not in BETTER:
            return None
        return (self.mean > 0) == (BETTER[self.metric] == "higher")

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Verdict:
    """A sentence, and the counts behind it."""

    kind: Literal["headline", "pair", "paper", "note"]
    """One method against both baselines; against one other; against the paper's numbers; how to read the rest."""
    text: str
    a: str = ""
    b: str = ""
    metric: str = ""
    cells: int = 0
    better: int = 0
    clearly_better: int = 0
    worse: int = 0
    clearly_worse: int = 0


def with_interval(differences: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Their mean, and the two ends of its 95% interval; None for what there is not."""
    mean = statistics.fmean(differences) if differences else None
    if mean is None or len(differences) < 2 or (spread := statistics.stdev(differences)) <= ROUNDING:
        return mean, None, None
    from scipy.special import stdtrit  # the quantile of Student's t

    half = float(stdtrit(len(differences) - 1, 0.975)) * spread / math.sqrt(len(differences))
    return mean, mean - half, mean + half


def paired(a: Sequence[Record], b: Sequence[Record], metric: str) -> Difference:
    """The records of any two cells compared; partners have the same replica and seed."""
    if not a or not b:
        raise ValueError(f"expected records on both sides, got {len(a)} and {len(b)}")
    ours, theirs = ({(r.replica, r.seed): value_of(r, metric) for r in records} for records in (a, b))
    both = [(ours[key], theirs[key]) for key in sorted(ours.keys() & theirs.keys())]
    found = [x - y for x, y in both if x is not None and y is not None]
    mean, low, high = with_interval(found)
    return Difference(
        a[0].cell, b[0].cell, metric, len(found), len(ours) + len(theirs) - 2 * len(found), mean, low, high
    )


def compare(records: Iterable[Record], a: str, b: str, metric: str) -> list[Difference]:
    """Method `a` minus method `b`, one difference for every data set, size and rate that has both.

    A method without a rate, such as `plain`, is compared with the other one at each of its rates.
    """
    if a == b:
        raise ValueError(f"expected two methods, got {a!r} twice")
    check_metric(metric)
    return _differences(by_cell(records), a, b, metric)


def comparisons(records: Iterable[Record]) -> list[tuple[str, str]]:
    """Every ising method against every other kind, in the order of verdicts and tables; plain comes last."""
    methods = sorted({record.cell.method for record in records}, key=method_order)
    others = sorted((m for m in methods if not m.startswith("ising")), key=lambda m: (m == "plain", method_order(m)))
    return [(a, b) for a in methods if a.startswith("ising") for b in others]


def verdict(differences: Sequence[Difference]) -> Verdict:
    """What the differences between two methods in one metric say, taken over all cells."""
    first = differences[0]
    a, b, metric = first.a.method, first.b.method, first.metric
    if metric not in BETTER:
        raise ValueError(f"metric: expected one that has a better direction, {', '.join(BETTER)}, got {metric!r}")
    counted = [d for d in differences if d.pairs > 1]
    if not counted:
        return Verdict("pair", f"{a} against {b}, {_label(metric)}: no verdict from one replica a cell.", a, b, metric)
    counts = _counts([(d,) for d in counted])
    equal = len(counted) - counts["better"] - counts["worse"]
    text = f"{a} has a {BETTER[metric]} {_label(metric)} than {b} {_standing(counts, 'the 95% interval excludes 0')}"
    text += f", equal in {equal}" if equal else ""
    if few := len(differences) - len(counted):
        text += f"; {few} with fewer than two shared replicas not counted"
    return Verdict("pair", f"{text}.", a, b, metric, **counts)


def verdict_list(records: Iterable[Record]) -> list[Verdict]:
    """All verdicts of a study: against both baselines, each other method, the paper; and how to read them."""
    records = list(records)
    cells, pairs = by_cell(records), comparisons(records)
    found = {(a, b, m): d for a, b in pairs for m in COMPARED if (d := _differences(cells, a, b, m))}
    summaries = summarise(records)
    headlines = [_headline(found, a, m, summaries) for a in dict.fromkeys(a for a, _ in pairs) for m in COMPARED]
    verdicts = [v for v in headlines if v is not None] + [verdict(d) for d in found.values()]
    verdicts += against_paper(summaries)
    if not pairs:
        verdicts.append(Verdict("note", "No ising method together with another method: nothing to compare yet."))
    if found:
        verdicts.append(_how_to_read(list(itertools.chain(*found.values()))))
    return verdicts


def verdicts(records: Iterable[Record]) -> list[str]:
    """The sentences of `verdict_list`."""
    return [found.text for found in verdict_list(records)]


def _differences(cells: Mapping[Cell, list[Record]], a: str, b: str, metric: str) -> list[Difference]:
    left, right = ([cell for cell in cells if cell.method == method] for method in (a, b))
    return [
        paired(cells[x], cells[y], metric)
        for x, y in itertools.product(left, right)
        if (x.dataset, x.size) == (y.dataset, y.size) and (x.rate == y.rate or None in (x.rate, y.rate))
    ]


def _headline(
    found: Mapping[tuple[str, str, str], list[Difference]], a: str, metric: str, summaries: Mapping[Cell, Summary]
) -> Verdict | None:
    """One method against dropout and dropconnect at the same rate, cell by cell; None where one of them is missing."""
    against = [{d.a: d for d in found.get((a, b, metric), []) if d.pairs > 1} for b in ("dropout", "dropconnect")]
    cells = sorted(against[0].keys() & against[1].keys(), key=cell_order)
    if not cells:
        return None
    counts = _counts([tuple(of[cell] for of in against) for cell in cells])
    text = f"{a} has a {BETTER[metric]} {_label(metric)} than both dropout and dropconnect "
    text += _standing(counts, "both 95% intervals exclude 0", "worse than both")
    if metric == "accuracy":
        near = sum(_near_the_better([of[cell] for of in against], summaries) for cell in cells)
        text += f"; higher than or within one standard deviation of the better of them in {near}"
    return Verdict("headline", f"{text}.", a, "dropout and dropconnect", metric, **counts)


def _near_the_better(differences: list[Difference], summaries: Mapping[Cell, Summary]) -> bool:
    """Whether a's accuracy is no more than the better one's standard deviation below it."""
    gap, better = min((d.mean, d.b) for d in differences if d.mean is not None)
    return gap >= -(summaries[better].sds["accuracy"] or 0.0)


def _counts(cells: Sequence[tuple[Difference, ...]]) -> dict[str, int]:
    """In how many cells every difference of the cell is (clearly) better or worse."""
    return {
        "cells": len(cells),
        "better": sum(all(d.better is True for d in cell) for cell in cells),
        "clearly_better": sum(all(d.better is True and d.clear for d in cell) for cell in cells),
        "worse": sum(all(d.better is False for d in cell) for cell in cells),
        "clearly_worse": sum(all(d.better is False and d.clear for d in cell) for cell in cells),
    }


def against_paper(summaries: Mapping[Cell, Summary]) -> list[Verdict]:
    """Accuracy beside the paper's, to the three decimals it prints, in cells of two replicas or more."""
    beside = [(s, p) for cell, s in summaries.items() if (p := paper_number(cell)) and s.replicas > 1]
    rows = {s.cell: (s, p) for s, p in beside if p.comparable}
    methods = sorted({cell.method for cell in rows}, key=method_order)
    found = [_level(method, [row for cell, row in rows.items() if cell.method == method]) for method in methods]
    variants: list[tuple[str, ...]] = [(m,) for m in methods if m.startswith("ising")] or [()]
    found += [v for more in variants if (v := _ranks(rows, ("dropout", "dropconnect", *more)))]
    if len(beside) > len(rows):
        found.append(
            Verdict("note", f"CIFAR-100 at 15,000 is left out of the comparison with the paper: {WHY_NOT_COMPARABLE}.")
        )
    return found


def _level(method: str, rows: list[tuple[Summary, PaperNumbers]]) -> Verdict:
    gaps = [round(_accuracy(s) - p.means["accuracy"], 3) for s, p in rows]
    near = sum(abs(gap) <= 2 * p.sds["accuracy"] for gap, (_, p) in zip(gaps, rows, strict=True))
    higher, lower = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    text = (
        f"{method}: our accuracy is higher than the paper's {PAPER_METHODS[method]} {_of(higher, len(gaps))}, lower in "
        f"{_or_none(lower)}; within two of the paper's standard deviations in {_or_none(near)}; on average "
        f"{statistics.fmean(gaps):+.3f}."
    )
    return Verdict("paper", text, method, "paper", "accuracy", len(gaps), higher, worse=lower)


def _ranks(rows: Mapping[Cell, tuple[Summary, PaperNumbers]], methods: tuple[str, ...]) -> Verdict | None:
    """How often methods stand in the paper's order; it prints no two accuracies of a cell as equal."""
    groups: dict[tuple[str, int, float | None], dict[str, tuple[Summary, PaperNumbers]]] = {}
    for cell, row in rows.items():
        if cell.method in methods:
            groups.setdefault((cell.dataset, cell.size, cell.rate), {})[cell.method] = row
    kept: list[list[bool]] = []
    for group in groups.values():
        pairs = itertools.combinations((group[m] for m in methods), 2) if len(group) == len(methods) else ()
        signs = [
            (round(_accuracy(s) - _accuracy(t), 3), p.means["accuracy"] - q.means["accuracy"])
            for (s, p), (t, q) in pairs
        ]
        kept.append([ours * theirs > 0 for ours, theirs in signs])
    kept = [agree for agree in kept if agree]
    if not kept:
        return None
    whole, right = sum(all(agree) for agree in kept), sum(map(sum, kept))
    names = f"{', '.join(methods[:-1])} and {methods[-1]}"
    text = (
        f"By accuracy, {names} stand in the paper's order {_of(whole, len(kept))}; of {sum(map(len, kept))} pairs of "
    )
    return Verdict("paper", f"{text}methods, {right} do.", methods[-1], "paper order", "accuracy", len(kept), whole)


def _how_to_read(differences: list[Difference]) -> Verdict:
    pairs = sorted(d.pairs for d in differences)
    if pairs[-1] < 2:
        return Verdict("note", "No comparison has two shared training samples yet: nothing can be told from chance.")
    span = f"{pairs[0]}" if pairs[0] == pairs[-1] else f"{pairs[0]} to {pairs[-1]}"
    intervals = sum(d.low is not None for d in differences)
    by_chance = f"about {0.05 * intervals:.0f}" if intervals >= 20 else "fewer than one"
    text = (
        f"Differences are paired over {span} shared training samples a cell; clearly means that the 95% interval "
        f"excludes 0. There are {intervals} such intervals, each on its own, not corrected for their number: if no "
        f"method differed from another, {by_chance} would exclude 0 by chance. They describe other training samples "
        "and seeds on the same test images, not other data."
    )
    if alone := sum(d.unpaired > 0 for d in differences):
        text += f" In {alone} of {len(differences)} comparisons of cells, replicas without a partner are left out."
    return Verdict("note", text)


def _accuracy(summary: Summary) -> float:
    mean = summary.means["accuracy"]
    assert mean is not None, "accuracy is always defined"
    return mean


def _standing(counts: Mapping[str, int], clearly: str, worse: str = "worse") -> str:
    text = _of(counts["better"], counts["cells"])
    text += f", clearly so in {_or_none(counts['clearly_better'])} ({clearly})" if counts["better"] else ""
    text += f", {worse} in {_or_none(counts['worse'])}"
    return text + (f", clearly in {_or_none(counts['clearly_worse'])}" if counts["worse"] else "")


def _of(part: int, whole: int) -> str:
    return f"in {_or_none(part)} of {whole} cell{'s' if whole != 1 else ''}"


def _or_none(count: int) -> str:
    return str(count) if count else "none"


def _label(metric: str) -> str:
    return metric if metric in ("accuracy", "recall", "precision") else LABELS[metric]
