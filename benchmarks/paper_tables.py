"""Parts of docs/results.md that are made from the trainings that are kept: what was trained, and the paper beside it.

A part takes (abouts, cells): the circumstances of every folder, and ``{cell: {score: [a number a replica]}}``.
"""

import statistics

from isingformer.study.compare import against_paper
from isingformer.study.paper import paper_number
from isingformer.study.plan import Plan
from isingformer.study.record import Cell, Entropies
from isingformer.study.summary import DATASETS, Summary

WHICH = ("replica", "seed")
"""What stands among the scores of a cell and is none: which training a number is of."""
ISINGS = ("ising-paper", "ising-paper-obd", "ising")


def mean(cells, cell, score):
    """Over the replicas in which it is defined."""
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
        f"{trainings:,} of the grid's {planned:,} trainings, of {methods}; {'; '.join(machines)}; "
        f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}.\n"
    )


def summaries(cells):
    """As the study's own code takes them, without what only records have."""
    found = {}
    for cell, values in cells.items():
        known = {
            score: [value for value in own if value is not None] for score, own in values.items() if score not in WHICH
        }
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


def depth(abouts, cells):
    """The mean of q from the patches to the head, of the Ising methods on MNIST with 6,000 images."""
    shown = [cell for cell in cells if (cell.dataset, cell.size) == ("mnist", 6000) and cell.method in ISINGS]
    shown = [cell for cell in shown if "q of head" in cells[cell]]
    names = {score for cell in shown for score in cells[cell] if score.startswith("q of ")}
    rows = [
        [name.removeprefix("q of "), *(f"{mean(cells, cell, name):.3f}" for cell in shown)]
        for name in sorted(names, key=lambda name: (name == "q of head", len(name), name))  # block 10 after block 9
    ]
    return table(["place", *(f"{cell.method} {cell.rate}" for cell in shown)], rows)


def table(head, rows):
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + "\n"


def paragraphs(*parts):
    """Those that say something, with an empty line between."""
    return "\n".join(filter(None, parts))


def by_method(cells, entry):
    """A row a dataset, size and rate, a column a method: what `entry` says of it and its mark for fewer samples."""
    methods = list(dict.fromkeys(cell.method for cell in cells))
    samples = {cell: len(own["accuracy"]) for cell, own in cells.items()}
    most = max(samples.values(), default=0)
    marks = {cell: f" ({number})" for cell, number in samples.items() if number < most}
    rows = []
    for dataset, size, rate in dict.fromkeys((cell.dataset, cell.size, cell.rate) for cell in cells):
        own = [Cell(dataset, size, method, rate) for method in methods]
        entries = [entry(cell, marks.get(cell, "")) for cell in own]
        rows.append([f"{DATASETS[dataset]}, {size:,}", str(rate), *entries])
    note = f"In brackets, the number of training samples where it is not {most}.\n" if marks else ""
    return paragraphs(table(["data, images", "rate", *methods], rows), note)


def accuracies(abouts, cells):
    """Ours / the paper's."""

    def entry(cell, fewer):
        theirs = paper_number(cell)
        own = f"{mean(cells, cell, 'accuracy'):.3f}{fewer}" if cell in cells else "–"
        mark = "" if theirs.comparable else " †"
        return f"{own} / {theirs.means['accuracy']:.3f}{mark}"

    return by_method(cells, entry)


def calibrations(abouts, cells):
    """NLL / ECE / confidence minus accuracy."""

    def entry(cell, fewer):
        if cell not in cells:
            return "–"
        numbers = (mean(cells, cell, score) for score in ("nll", "ece", "overconfidence"))
        return "{:.3f} / {:.3f} / {:+.3f}".format(*numbers) + fewer

    return by_method(cells, entry)
