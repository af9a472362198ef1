"""The parts of docs/results.md and the README that are made from the trainings that are kept.

A part takes (abouts, cells): the circumstances of every folder, and ``{cell: {score: [a number a replica]}}``. Every
method saw the same training samples in the same order, so that the numbers of two cells are paired by their place.
"""

import dataclasses
import statistics

from isingformer.study.compare import against_paper, with_interval
from isingformer.study.paper import paper_number
from isingformer.study.plan import Plan
from isingformer.study.record import Cell, Entropies
from isingformer.study.summary import BETTER, DATASETS, Summary

SIMPLE, COMPLEX = ("mnist", "fashion-mnist"), ("cifar10", "cifar100")
SMALL, MIDDLE = (250, 300), (5000, 6000)
ISINGS = ("ising-paper", "ising-paper-obd", "ising")
RIVALS = ("dropout", "dropconnect")
SHOWN = (*RIVALS, "ising")


def mean(cells, cell, score):
    return statistics.fmean(value for value in cells[cell][score] if value is not None)


def where(abouts, cells):
    """One paragraph: how much of the grid there is, and where it was made."""
    every = [made for about in abouts for made in about["made"]]
    machines = sorted({f"{made['hardware']}, torch {made['torch']}" for made in every})
    commits = sorted({made["commit"] for made in every})
    methods = ", ".join(f"`{method}`" for method in dict.fromkeys(cell.method for cell in cells))
    plans = [Plan.from_json(about["plan"]) for about in abouts]
    planned = sum({cell: plan.replicas for plan in plans for cell in plan.cells()}.values())
    trainings = sum(len(values["nll"]) for values in cells.values())
    return (
        f"{trainings:,} of {planned:,} trainings, of {methods}; {'; '.join(machines)}; "
        f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}.\n"
    )


def summaries(cells):
    """As the study's own code takes them, without what only records have."""
    found = {}
    for cell, values in cells.items():
        known = {score: [value for value in own if value is not None] for score, own in values.items()}
        found[cell] = Summary(
            cell=cell, replicas=len(values["accuracy"]),
            means={score: statistics.fmean(own) if own else None for score, own in known.items()},
            sds={score: statistics.stdev(own) if len(own) > 1 else None for score, own in known.items()},
            counts={score: len(own) for score, own in known.items()},
            reliability=(), entropies=Entropies((), (), ()), layers={},
        )  # fmt: skip
    return found


def spoken(abouts, cells):
    """The study's verdicts about the paper."""
    return "".join(f"- {verdict.text}\n" for verdict in against_paper(summaries(cells)))


def same_rate(cells):
    """[(a cell of `ising`, [those of both rivals at its rate])] where all three are trained."""
    every = [
        (cell, [Cell(cell.dataset, cell.size, rival, cell.rate) for rival in RIVALS])
        for cell in cells
        if cell.method == "ising"
    ]
    return [(cell, rivals) for cell, rivals in every if all(rival in cells for rival in rivals)]


def better(cells, cell, rival, score, *, clearly=False):
    """Whether a cell is better than another on average; clearly: the 95% interval of the difference excludes 0."""
    sign = 1 if BETTER[score] == "higher" else -1
    pairs = zip(cells[cell][score], cells[rival][score], strict=True)
    average, low, _ = with_interval([sign * (one - other) for one, other in pairs])
    return low is not None and low > 0 if clearly else average > 0


def near(cells, cell, rivals):
    """Whether an accuracy is above the better rival's, or within one of its standard deviations below."""
    best = max(rivals, key=lambda rival: mean(cells, rival, "accuracy"))
    return mean(cells, cell, "accuracy") >= mean(cells, best, "accuracy") - statistics.stdev(cells[best]["accuracy"])


def goals(abouts, cells):
    """How often `ising` is better than both others at the same rate, and than the paper says its method is."""
    whole = same_rate(cells)
    if not whole:
        return "Nothing of `ising` has been trained yet.\n"

    def count(score, clearly):
        return sum(all(better(cells, cell, r, score, clearly=clearly) for r in rivals) for cell, rivals in whole)

    theirs = [(cell, paper_number(cell)) for cell, _ in whole]
    theirs = [(cell, number) for cell, number in theirs if number and number.comparable]
    above = sum(mean(cells, cell, "accuracy") > number.means["accuracy"] for cell, number in theirs)
    rows = [
        *([f"{words} at the same rate", f"{count(score, False)} of {len(whole)}", str(count(score, True))]
          for score, words in (("nll", "NLL lower than that of both"), ("ece", "ECE lower than that of both"),
                               ("accuracy", "accuracy higher than that of both"))),
        ["accuracy higher than the better one's, or within one of its standard deviations below",
         f"{sum(near(cells, *one) for one in whole)} of {len(whole)}", ""],
        ["accuracy higher than the paper's for its method", f"{above} of {len(theirs)}", ""],
    ]  # fmt: skip
    return table(["`ising` against dropout and dropconnect", "cells", "clearly so"], rows)


def best_of(rows):
    """Entries ``[(text, number, lower is better)]`` of a row, the best one bold."""
    numbers = [-number if lower else number for _, number, lower in rows]
    return [f"**{text}**" if value == max(numbers) else text for (text, *_), value in zip(rows, numbers, strict=True)]


def summary(abouts, cells):
    """Accuracy / NLL / ECE with 5,000 or 6,000 training images, and what all sizes say, in a sentence."""
    rows = []
    for cell, rivals in same_rate(cells):
        if cell.size in MIDDLE:
            columns = [
                best_of([(f"{(value := mean(cells, own, score)):.3f}", value, BETTER[score] == "lower")
                         for own in (*rivals, cell)])
                for score in ("accuracy", "nll", "ece")
            ]  # fmt: skip
            entries = [" / ".join(own) for own in zip(*columns, strict=True)]
            rows.append([f"{DATASETS[cell.dataset]}, {cell.size:,}", str(cell.rate), *entries])
    whole = same_rate(cells)

    def count(score):
        return sum(all(better(cells, cell, rival, score) for rival in rivals) for cell, rivals in whole)

    every = {cell for about in abouts for cell in Plan.from_json(about["plan"]).cells()}
    planned = sum(cell.method == "ising" for cell in every)
    rest = "" if planned == len(whole) else f" trained so far, of {planned}"
    return table(["data, images", "rate", *SHOWN], rows) + (
        f"\nIn the {len(whole)} cells of dataset, size and rate{rest}, `ising` has the lowest NLL of the three in "
        f"{count('nll')}, the highest accuracy in {count('accuracy')} and the lowest ECE in {count('ece')}.\n"
    )


def zeros(abouts, cells):
    """The most probable network of `ising`, with its weights that are zero, beside dropconnect at 0.1."""
    rows = []
    for cell in cells:
        dense = Cell(cell.dataset, cell.size, "dropconnect", 0.1)
        if cell.method == "ising" and dense in cells:
            numbers = [mean(cells, cell, "dropped"), mean(cells, cell, "probable_accuracy")]
            entries = [f"{number:.3f}" for number in (*numbers, mean(cells, dense, "accuracy"))]
            rows.append([f"{DATASETS[cell.dataset]}, {cell.size:,}", str(cell.rate), *entries])
    head = ["data, images", "delta", "share of weights zero", "accuracy so", "dropconnect 0.1"]
    return table(head, rows) if rows else "Nothing of `ising` has been trained yet.\n"


def depth(abouts, cells):
    """The mean of q from the patches to the head, of the Ising methods on MNIST with 6,000 images."""
    shown = [cell for cell in cells if (cell.dataset, cell.size) == ("mnist", 6000) and cell.method in ISINGS]
    shown = [cell for cell in shown if "q of head" in cells[cell]]
    names = {score for cell in shown for score in cells[cell] if score.startswith("q of ")}
    rows = [
        [name.removeprefix("q of "), *(f"{mean(cells, cell, name):.3f}" for cell in shown)]
        for name in sorted(names, key=lambda name: (name == "q of head", "block" in name, name))
    ]
    return table(["place", *(f"{cell.method} {cell.rate}" for cell in shown)], rows)


def table(head, rows):
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + "\n"


def by_method(cells, entry):
    """A row a dataset, size and rate, a column a method: what `entry` says of a cell."""
    methods = list(dict.fromkeys(cell.method for cell in cells))
    rows = [
        [f"{DATASETS[dataset]}, {size:,}", str(rate), *(entry(Cell(dataset, size, method, rate)) for method in methods)]
        for dataset, size, rate in dict.fromkeys((cell.dataset, cell.size, cell.rate) for cell in cells)
    ]
    return table(["data, images", "rate", *methods], rows)


def accuracies(abouts, cells):
    """Ours / the paper's."""

    def entry(cell):
        theirs = paper_number(cell)
        own = f"{mean(cells, cell, 'accuracy'):.3f}" if cell in cells else "–"
        mark = "" if theirs.comparable else " †"
        return f"{own} / {theirs.means['accuracy']:.3f}{mark}"

    return by_method(cells, entry)


def calibrations(abouts, cells):
    """NLL / ECE / confidence minus accuracy."""

    def entry(cell):
        if cell not in cells:
            return "–"
        return "{:.3f} / {:.3f} / {:+.3f}".format(*(mean(cells, cell, s) for s in ("nll", "ece", "overconfidence")))

    return by_method(cells, entry)


def claims(abouts, cells):
    """The paper's claims in words, each as a count of cells in which it holds."""

    def holds(claim, chosen, test):
        found = [bool(test(cell)) for cell in cells if chosen(cell)]
        return [[claim, f"{sum(found)} of {len(found)} cells"]] if found else []

    def over(cell):
        return mean(cells, cell, "overconfidence")

    def other(cell, method):
        return Cell(cell.dataset, cell.size, method, cell.rate)

    def both(cell, one, two):
        return cell.method == one and other(cell, two) in cells

    rows = [
        *holds("dropout is overconfident", lambda c: c.method == "dropout", lambda c: over(c) > 0),
        *holds("dropout is overconfident on CIFAR with few images",
               lambda c: c.method == "dropout" and c.dataset in COMPLEX and c.size in SMALL, lambda c: over(c) > 0),
        *holds("dropout's wrong predictions have a lower entropy than dropconnect's",
               lambda c: both(c, "dropout", "dropconnect"),
               lambda c: mean(cells, c, "entropy_wrong") < mean(cells, other(c, "dropconnect"), "entropy_wrong")),
        *holds("dropconnect is more accurate than dropout with few images",
               lambda c: both(c, "dropconnect", "dropout") and c.size in SMALL,
               lambda c: mean(cells, c, "accuracy") > mean(cells, other(c, "dropout"), "accuracy")),
        *holds("dropconnect at 0.5 is underconfident on MNIST and Fashion-MNIST",
               lambda c: c.method == "dropconnect" and c.rate == 0.5 and c.dataset in SIMPLE, lambda c: over(c) < 0),
        *holds("dropconnect is overconfident on CIFAR with few images",
               lambda c: c.method == "dropconnect" and c.dataset in COMPLEX and c.size in SMALL, lambda c: over(c) > 0),
        *holds("dropconnect is underconfident on CIFAR with more images",
               lambda c: c.method == "dropconnect" and c.dataset in COMPLEX and c.size not in SMALL,
               lambda c: over(c) < 0),
    ]  # fmt: skip
    rows += holds("dropconnect at 0.5 is underconfident", lambda c: c.method == "dropconnect" and c.rate == 0.5,
                  lambda c: over(c) < 0)  # fmt: skip
    for ising in ISINGS:
        rows += holds(f"{ising} regularises more than its base rate says: mean q above delta",
                      lambda c, i=ising: c.method == i, lambda c: mean(cells, c, "mean_q") > c.rate)  # fmt: skip
        rows += holds(f"{ising} is more underconfident at 0.5 than at 0.1 on MNIST and Fashion-MNIST",
                      lambda c, i=ising: c.method == i and c.rate == 0.5 and c.dataset in SIMPLE
                      and dataclasses.replace(c, rate=0.1) in cells,
                      lambda c: over(c) < over(dataclasses.replace(c, rate=0.1)))  # fmt: skip
        rows += holds(f"{ising} is underconfident on MNIST and Fashion-MNIST",
                      lambda c, i=ising: c.method == i and c.dataset in SIMPLE, lambda c: over(c) < 0)  # fmt: skip
        rows += holds(f"{ising}: entropies are symmetric: skewness of right and of wrong within 1/2 of 0",
                      lambda c, i=ising: c.method == i and "skew_right" in cells[c],
                      lambda c: max(abs(mean(cells, c, s)) for s in ("skew_right", "skew_wrong")) < 0.5)  # fmt: skip
        rows += holds(
            f"{ising} has a lower ECE than both others on CIFAR with few images",
            lambda c, i=ising: c.dataset in COMPLEX and c.size in SMALL and both(c, i, "dropout")
            and both(c, i, "dropconnect"),
            lambda c: all(
                mean(cells, c, "ece") < mean(cells, other(c, rival), "ece") for rival in ("dropout", "dropconnect")
            ),
        )  # fmt: skip
    return table(["claim", "holds in"], rows)


PARTS = {
    "made": where, "goals": goals, "summary": summary, "zeros": zeros, "depth": depth, "verdicts": spoken,
    "accuracy": accuracies, "calibration": calibrations, "claims": claims,
}  # fmt: skip
