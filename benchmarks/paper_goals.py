"""`ising` against dropout and dropconnect at the same rate: what is better, what is worse, and how surely.

Parts of docs/results.md and of the README, as in `paper_tables.py`. Two cells are compared over the replicas that both
have, paired by their seeds: the same training sample, initial weights and order of batches.
"""

import csv
import io
import statistics

from paper_tables import mean, table

from isingformer.study.compare import with_interval
from isingformer.study.paper import paper_number
from isingformer.study.plan import Plan
from isingformer.study.record import Cell
from isingformer.study.summary import BETTER, DATASETS

RIVALS = ("dropout", "dropconnect")
SHOWN = (*RIVALS, "ising")
MIDDLE = (5000, 6000)
PAPER_RATES = (0.1, 0.5)
NEARLY = 0.02
"""How far the mean of q may be from another method's rate to count as the same."""
COMPARED = {"nll": "NLL lower", "ece": "ECE lower", "accuracy": "accuracy higher"}


def at_paper_rates(cells):
    """Those at the two rates of the paper."""
    return {cell: own for cell, own in cells.items() if cell.rate in PAPER_RATES}


def same_rate(cells):
    """[(a cell of `ising`, [those of both rivals at its rate])] where all three are trained."""
    every = [
        (cell, [Cell(cell.dataset, cell.size, rival, cell.rate) for rival in RIVALS])
        for cell in cells
        if cell.method == "ising"
    ]
    return [(cell, rivals) for cell, rivals in every if all(rival in cells for rival in rivals)]


def difference(cells, cell, rival, score):
    """A cell minus another: (mean, low, high), the 95% interval of the mean of paired differences."""
    ours, theirs = (dict(zip(cells[own]["seed"], cells[own][score], strict=True)) for own in (cell, rival))
    both = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    return with_interval([one - other for one, other in both if one is not None and other is not None])


def standing(cells, cell, rival, score):
    """(whether a cell is better than another on average, whether the interval excludes 0)."""
    average, low, high = difference(cells, cell, rival, score)
    clearly = low is not None and (low > 0 or high < 0)
    return (average > 0) == (BETTER[score] == "higher") and average != 0, clearly


def counts(cells, score, pairs):
    """Of pairs (cell, rivals): how many cells are better than all rivals, clearly so, clearly worse than any."""
    found = [[standing(cells, cell, rival, score) for rival in rivals] for cell, rivals in pairs]
    return {
        "better": sum(all(better for better, _ in both) for both in found),
        "clearly": sum(all(better and clear for better, clear in both) for both in found),
        "worse": sum(any(clear and not better for better, clear in both) for both in found),
    }


def near(cells, cell, rivals):
    """Whether an accuracy is above the better rival's, or within one of its standard deviations below."""
    best = max(rivals, key=lambda rival: mean(cells, rival, "accuracy"))
    spread = statistics.stdev(cells[best]["accuracy"]) if len(cells[best]["accuracy"]) > 1 else 0.0
    return mean(cells, cell, "accuracy") >= mean(cells, best, "accuracy") - spread


def goals(abouts, cells):
    """How often `ising` is better than both others at the same rate, and than the paper says its method is."""
    whole = same_rate(cells)
    if not whole:
        return "Nothing of `ising` has been trained yet.\n"
    rows = []
    for score, words in COMPARED.items():
        found = counts(cells, score, whole)
        rows.append([f"{words} than that of both", f"{found['better']} of {len(whole)}", str(found["clearly"]),
                     str(found["worse"])])  # fmt: skip
    close = sum(near(cells, *one) for one in whole)
    rows.append(["accuracy higher than the better one's, or within one of its standard deviations below",
                 f"{close} of {len(whole)}", "", ""])  # fmt: skip
    head = ["`ising` against dropout and dropconnect", "cells", "clearly so", "clearly worse than one of them or both"]
    return f"{table(head, rows)}\n{above_the_paper(cells)}"


def above_the_paper(cells):
    """A sentence: how often a method's accuracy is above what the paper has for its Ising method."""
    places = [cell for cell, _ in same_rate(cells) if (number := paper_number(cell)) and number.comparable]
    above = {
        method: sum(
            mean(cells, Cell(cell.dataset, cell.size, method, cell.rate), "accuracy")
            > paper_number(cell).means["accuracy"]
            for cell in places
        )
        for method in SHOWN
    }
    return (
        f"In {above['ising']} of {len(places)} cells the accuracy of `ising` is above what the paper reports for its "
        f"Ising method; but so is that of dropconnect in {above['dropconnect']} and that of dropout in "
        f"{above['dropout']}, so that much of this is the network.\n"
    )


def best_of(entries, lower):
    """Numbers of a row as text, the best one bold."""
    best = min(entries) if lower else max(entries)
    return [f"**{value:.3f}**" if value == best else f"{value:.3f}" for value in entries]


def summary(abouts, cells):
    """Accuracy / NLL / ECE with 5,000 or 6,000 training images, and what all sizes say."""
    whole, rows = same_rate(cells), []
    for cell, rivals in whole:
        if cell.size in MIDDLE:
            columns = [
                best_of([mean(cells, own, score) for own in (*rivals, cell)], BETTER[score] == "lower")
                for score in ("accuracy", "nll", "ece")
            ]
            entries = [" / ".join(own) for own in zip(*columns, strict=True)]
            rows.append([f"{DATASETS[cell.dataset]}, {cell.size:,}", str(cell.rate), *entries])
    every = {cell for about in abouts for cell in Plan.from_json(about["plan"]).cells()}
    planned = sum(cell.method == "ising" for cell in every)
    rest = "" if planned == len(whole) else f" trained so far, of {planned}"
    nll, accuracy, ece = (counts(cells, score, whole) for score in ("nll", "accuracy", "ece"))
    return table(["data, images", "rate", *SHOWN], rows) + (
        f"\nIn the {len(whole)} cells of dataset, size and rate{rest}, `ising` has the lowest NLL of the three in "
        f"{nll['better']} (clearly so in {nll['clearly']}), the highest accuracy in {accuracy['better']} "
        f"({accuracy['clearly']}) and the lowest ECE in {ece['better']} ({ece['clearly']}); its ECE is clearly worse "
        f"than one of the others' in {ece['worse']}.\n"
    )


def zeros(abouts, cells):
    """The most probable network of `ising`, with its weights that are zero, beside dropconnect at 0.1."""
    rows = []
    for cell in cells:
        dense = Cell(cell.dataset, cell.size, "dropconnect", 0.1)
        if cell.method == "ising" and dense in cells:
            numbers = [mean(cells, cell, score) for score in ("dropped", "probable_accuracy", "accuracy")]
            entries = [f"{number:.3f}" for number in (*numbers, mean(cells, dense, "accuracy"))]
            rows.append([f"{DATASETS[cell.dataset]}, {cell.size:,}", str(cell.rate), *entries])
    head = ["data, images", "delta", "share of weights zero", "accuracy so", "with all, T = 50", "dropconnect 0.1"]
    return table(head, rows) if rows else "Nothing of `ising` has been trained yet.\n"


def differences(cells):
    """All that is compared, as CSV: `ising` minus a rival, mean and 95% interval over the training samples."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(["dataset", "size", "rate", "score", "rival", "mean", "low", "high", "better", "clear"])
    for cell, rivals in same_rate(cells):
        for score in COMPARED:
            for rival in rivals:
                numbers = [
                    "" if number is None else f"{number:.6f}" for number in difference(cells, cell, rival, score)
                ]
                said = [str(found).lower() for found in standing(cells, cell, rival, score)]
                lines.writerow([cell.dataset, cell.size, cell.rate, score, rival.method, *numbers, *said])
    return out.getvalue()
