"""`ising` against dropout and dropconnect at the same rate: what is better, what is worse, and how surely.

Parts of docs/results.md and of the README, as in `paper_tables.py`. Two cells are compared over the replicas that both
have, paired by their seeds: the same training sample, initial weights and order of batches. So the means in a row of a
table are over the replicas that all its cells have.
"""

import collections
import csv
import io
import statistics

from paper_tables import mean, paragraphs, table

from isingformer.study.compare import with_interval
from isingformer.study.paper import paper_number
from isingformer.study.plan import Plan
from isingformer.study.record import Cell
from isingformer.study.summary import BETTER, DATASETS

RIVALS = ("dropout", "dropconnect")
SHOWN = (*RIVALS, "ising")
MIDDLE = (5000, 6000)
LARGER = "from 5,000 images on"
PAPER_RATES = (0.1, 0.5)
REPLICAS = 10
"""Training samples of a cell in the paper: a table says where it has fewer."""
NEARLY = 0.02
"""How far the mean of q may be from another method's rate to count as the same."""
COMPARED = ("nll", "ece", "accuracy")
NOTHING = (
    "There is nothing to compare yet: `ising`, dropout and dropconnect are nowhere all trained at the same rate on the "
    "same samples.\n"
)
SAID = {
    "nll": "NLL lower", "ece": "ECE lower", "accuracy": "accuracy higher", "brier": "Brier score lower",
    "f1": "F1 higher", "error_auroc": "AUROC of errors higher", "aurc": "area under risk-coverage lower",
}  # fmt: skip


def named(dataset, size):
    """A place of the grid for people."""
    return f"{DATASETS[dataset]}, {size:,}"


def at_paper_rates(cells):
    """Those at the two rates of the paper."""
    return {cell: own for cell, own in cells.items() if cell.rate in PAPER_RATES}


def common(cells, *own):
    """The seeds of the replicas that all of these have."""
    return set.intersection(*(set(cells[cell]["seed"]) for cell in own))


def comparable(cells, *own):
    """Whether all of these are trained, on some training sample in common."""
    return all(cell in cells for cell in own) and bool(common(cells, *own))


def paired(cells, *own):
    """These cells alone, with the replicas that all of them have."""
    seeds = common(cells, *own)
    return {
        cell: {
            score: [value for value, seed in zip(values, cells[cell]["seed"], strict=True) if seed in seeds]
            for score, values in cells[cell].items()
        }
        for cell in own
    }


def over(rows, counted=False):
    """A sentence: how many training samples the rows of a table are over; nothing where each is over all ten.

    Args:
        rows: what `paired` gave for each.
        counted: whether there are counts beside the table, for which only two cells at a time are compared.
    """
    numbers = [len(next(iter(own.values()))["seed"]) for own in rows]
    if all(number >= REPLICAS for number in numbers):
        return ""
    (fewest, times), *others = sorted(collections.Counter(numbers).items())
    said = f"{fewest} in {f'{times} of {len(rows)} rows' if others else 'each'}"
    said += "".join(f", {number} in {times}" for number, times in others)
    also = " Counts are over those that the two compared have." if counted else ""
    return f"Means are over the training samples that all in a row have: {said}.{also}\n"


def same_rate(cells):
    """[(a cell of `ising`, [those of both rivals at its rate])] where all three can be compared."""
    every = [
        (cell, [Cell(cell.dataset, cell.size, rival, cell.rate) for rival in RIVALS])
        for cell in cells
        if cell.method == "ising"
    ]
    return [(cell, rivals) for cell, rivals in every if comparable(cells, cell, *rivals)]


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
    cells = paired(cells, cell, *rivals)
    best = max(rivals, key=lambda rival: mean(cells, rival, "accuracy"))
    spread = statistics.stdev(cells[best]["accuracy"]) if len(cells[best]["accuracy"]) > 1 else 0.0
    return mean(cells, cell, "accuracy") >= mean(cells, best, "accuracy") - spread


def by_rate(pairs):
    """The pairs at each of the paper's rates, where there are any."""
    groups = [[pair for pair in pairs if pair[0].rate == rate] for rate in PAPER_RATES]
    return [group for group in groups if group]


def both_lower(cells, pairs):
    """In how many of the pairs both NLL and ECE are lower than all rivals', and in how many clearly so."""
    found = [
        [standing(cells, cell, rival, score) for rival in rivals for score in ("nll", "ece")] for cell, rivals in pairs
    ]
    return {
        "better": sum(all(better for better, _ in own) for own in found),
        "clearly": sum(all(better and clear for better, clear in own) for own in found),
    }


def goals(abouts, cells):
    """How often `ising` is better than both others at the same rate, by rate, and than the paper says its method is."""
    whole = same_rate(cells)
    if not whole:
        return NOTHING
    rates = {f"at {own[0][0].rate:g}": own for own in by_rate(whole)}
    larger = {title: [pair for pair in own if pair[0].size >= min(MIDDLE)] for title, own in rates.items()}
    groups = {**rates, "at both": whole, **{f"{title}, {LARGER}": own for title, own in larger.items() if own}}

    def counted(found):
        worse = f", {found['worse']}" if "worse" in found else ""
        return f"{found['better']} ({found['clearly']}{worse})"

    rows = [
        [f"{words} than that of both", *(counted(counts(cells, score, own)) for own in groups.values())]
        for score, words in SAID.items()
    ]
    rows.insert(2, ["both NLL and ECE lower", *(counted(both_lower(cells, own)) for own in groups.values())])
    rows.insert(4, ["accuracy higher than the better one's, or within one of its standard deviations below",
                    *(str(sum(near(cells, *pair) for pair in own)) for own in groups.values())])  # fmt: skip
    head = ["`ising` against dropout and dropconnect", *(f"{title}: of {len(own)}" for title, own in groups.items())]
    return f"{table(head, rows)}\n{above_the_paper(cells)}"


def above_counts(cells):
    """(of how many cells beside the paper, {method: in how many its accuracy is above the paper's Ising})."""
    places = [cell for cell, _ in same_rate(cells) if (number := paper_number(cell)) and number.comparable]
    return len(places), {
        method: sum(
            mean(cells, Cell(cell.dataset, cell.size, method, cell.rate), "accuracy")
            > paper_number(cell).means["accuracy"]
            for cell in places
        )
        for method in SHOWN
    }


def above_the_paper(cells):
    """A sentence: how often a method's accuracy is above what the paper has for its Ising method."""
    places, above = above_counts(cells)
    return (
        f"In {above['ising']} of {places} cells the accuracy of `ising` is above what the paper reports for its "
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
    if not whole:
        return NOTHING
    for cell, rivals in whole:
        if cell.size in MIDDLE:
            own = paired(cells, *rivals, cell)
            columns = [
                best_of([mean(own, one, score) for one in own], BETTER[score] == "lower")
                for score in ("accuracy", "nll", "ece")
            ]
            entries = [" / ".join(entry) for entry in zip(*columns, strict=True)]
            rows.append([named(cell.dataset, cell.size), str(cell.rate), *entries])
    every = {cell for about in abouts for cell in Plan.from_json(about["plan"]).cells()}
    planned = sum(cell.method == "ising" for cell in every)
    rest = "" if planned == len(whole) else f" trained so far, of {planned}"
    groups = by_rate(whole)
    said = []
    for score, words in (("nll", "lowest NLL"), ("accuracy", "highest accuracy"), ("ece", "lowest ECE")):
        found = [(own, counts(cells, score, own)) for own in groups]
        said.append(f"the {words} in " + " and ".join(
            f"{one['better']} of {len(own)} at {own[0][0].rate:g} ({one['clearly']} clearly)" for own, one in found
        ))  # fmt: skip
    worse = [counts(cells, score, whole)["worse"] for score in COMPARED]
    return table(["data, images", "rate", *SHOWN], rows) + (
        f"\nIn the {len(whole)} cells of dataset, size and rate{rest}, `ising` has {', '.join(said[:2])}, "
        f"and {said[2]}. Dropout, dropconnect or both are clearly better in {worse[0]} by NLL, in {worse[1]} by ECE "
        f"and in {worse[2]} by accuracy. Clearly: the 95% interval of the paired difference excludes 0.\n"
    )


def zeros(abouts, cells):
    """The most probable network of `ising`, with its weights that are zero, beside both others at 0.1 with all."""
    rows, every = [], []
    for cell in cells:
        dense = [Cell(cell.dataset, cell.size, rival, 0.1) for rival in RIVALS]
        if cell.method == "ising" and comparable(cells, cell, *dense):
            own = paired(cells, cell, *dense)
            numbers = [mean(own, cell, score) for score in ("dropped", "probable_accuracy", "accuracy")]
            entries = [f"{number:.3f}" for number in (*numbers, *(mean(own, one, "accuracy") for one in dense))]
            rows.append([named(cell.dataset, cell.size), str(cell.rate), *entries])
            every.append(own)
    head = ["data, images", "delta", "share of zeros", "accuracy with zeros", "accuracy with all, T = 50",
            *(f"{rival} 0.1" for rival in RIVALS)]  # fmt: skip
    return paragraphs(table(head, rows), over(every)) if rows else "Nothing of `ising` has been trained yet.\n"


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
