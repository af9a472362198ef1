"""What was set out to be reached and what is; every difference of `ising` from the two others; the printed method.

Parts of docs/results.md, as in `paper_tables.py`.
"""

from paper_goals import (
    COMPARED,
    NOTHING,
    RIVALS,
    above_counts,
    at_paper_rates,
    both_lower,
    comparable,
    counts,
    difference,
    named,
    near,
    paired,
    same_rate,
    standing,
)
from paper_others import TRIALS, at_mean_q, chosen, rows_of
from paper_tables import ISINGS, mean, table

from isingformer.study.record import Cell

CELLS, PLACES, COMPARABLE = 24, 12, 22
"""Of the grid: datasets, sizes and rates; datasets and sizes; the first but for CIFAR-100 at 15,000."""
ENOUGH_ZEROS = 0.8


def verdict(reached, possible, wanted):
    """``met``, ``missed``, or ``open`` while what is not trained yet decides.

    Args:
        reached: in how many cells so far.
        possible: in how many at most, with those that are not trained.
        wanted: in how many.
    """
    return "met" if reached >= wanted else "open" if possible >= wanted else "missed"


def reached(abouts, cells):
    """A row a goal: whether it is met, and by how much."""
    whole = same_rate(at_paper_rates(cells))
    left = CELLS - len(whole)
    both = both_lower(cells, whole)["better"]
    alone = {score: counts(cells, score, whole)["better"] for score in ("nll", "ece")}
    close = sum(near(cells, *pair) for pair in whole)
    beside, above = above_counts(at_paper_rates(cells))
    same, others, untrained = at_mean_q(cells)
    lower = counts(cells, "nll", same + others)["better"]
    rows = [
        ["NLL and ECE lower than those of dropout and dropconnect at the same rate, in 24 of 24 cells",
         verdict(both, both + left, CELLS), f"both in {both}, NLL in {alone['nll']}, ECE in {alone['ece']}"],
        ["accuracy higher than the better one's at the same rate or within one standard deviation below, in 24 of 24",
         verdict(close, close + left, CELLS), f"{close}"],
        ["accuracy above the paper's Ising, in 22 of 22 cells that can be compared",
         verdict(above["ising"], COMPARABLE - beside + above["ising"], COMPARABLE), f"{above['ising']}"],
        ["NLL lower than that of both others at a rate that is the mean of `q`, in 24 of 24",
         verdict(lower, lower + untrained + left, CELLS),
         f"{lower} of the {len(same) + len(others)} trained; in {len(same)} of them the mean of `q` is about `delta`"],
        *at_best_rates(cells),
        ["four weights in five zero, as accurate as dropconnect at 0.1 with all of them, in 12 of 12", *sparse(cells)],
    ]  # fmt: skip
    return table(["goal", "verdict", "in how many cells"], rows)


def at_best_rates(cells):
    """A row a score: against each of the two others, every method at the rate that validation images chose."""
    found = chosen(cells, rows_of(TRIALS))
    left, rows = PLACES - len(found), []
    for score, words in (("nll", "NLL lower"), ("accuracy", "accuracy higher")):
        every = [counts(cells, score, [(own["ising"], [own[rival]]) for own in found.values()]) for rival in RIVALS]
        fewest = min(one["better"] for one in every)
        said = (f"{one['better']} ({one['clearly']} clearly) against {rival}" for one, rival in zip(
            every, RIVALS, strict=True))  # fmt: skip
        rows.append([
            f"every method at its best rate on validation images: {words} than dropout's in 8 of 12, and than "
            "dropconnect's in 8 of 12",
            verdict(fewest, fewest + left, 8), f"{', '.join(said)}, of {len(found)}" if found else "not trained",
        ])  # fmt: skip
    return rows


def sparse(cells):
    """(verdict, words): the largest share of zeros at which the most probable network is as accurate, by place.

    About delta of the weights go, so that a place is tried where a delta of as much as is wanted is trained.
    """
    shares, tried = {}, set()
    for cell in cells:
        dense = Cell(cell.dataset, cell.size, "dropconnect", 0.1)
        if cell.method == "ising" and comparable(cells, cell, dense) and "probable_accuracy" in cells[cell]:
            own = paired(cells, cell, dense)
            as_good = mean(own, cell, "probable_accuracy") >= mean(own, dense, "accuracy")
            place = (cell.dataset, cell.size)
            shares[place] = max(shares.get(place, 0.0), mean(own, cell, "dropped") if as_good else 0.0)
            if cell.rate >= ENOUGH_ZEROS:
                tried.add(place)
    if not shares:
        return "open", "not trained"
    place, most = max(shares.items(), key=lambda item: item[1])
    enough, untried = sum(shares[one] >= ENOUGH_ZEROS for one in tried), PLACES - len(tried)
    where = f"where a `delta` of {ENOUGH_ZEROS:g} or more was tried"
    said = f"{enough} of the {len(tried)} {where}" if tried else f"none {where} yet"
    said += f"; at that accuracy, at most {most:.2f} are zero, on {named(*place)}"
    return verdict(enough, enough + untried, PLACES), said


def versus(abouts, cells):
    """Every difference of `ising` from the two others, bold where it is clear."""

    def entry(cell, rival, score):
        average, *_ = difference(cells, cell, rival, score)
        text = f"{average:+.3f}"
        return f"**{text}**" if standing(cells, cell, rival, score)[1] else text

    rows = [
        [named(cell.dataset, cell.size), f"{cell.rate:g}",
         *(" / ".join(entry(cell, rival, score) for rival in rivals) for score in COMPARED)]
        for cell, rivals in same_rate(cells)
    ]  # fmt: skip
    return table(["data, images", "rate", "NLL", "ECE", "accuracy"], rows) if rows else NOTHING


def printed(abouts, cells):
    """Both readings of the paper against dropout and dropconnect, and `ising` against them, where they are trained."""
    rows = []
    for ising in ISINGS[:-1]:
        own = [cell for cell in cells if cell.method == ising]
        beside = {
            "dropout and dropconnect": [
                (cell, [Cell(cell.dataset, cell.size, rival, cell.rate) for rival in RIVALS]) for cell in own
            ],
            "ising": [(Cell(cell.dataset, cell.size, "ising", cell.rate), [cell]) for cell in own],
        }
        for other, pairs in beside.items():
            pairs = [(cell, rivals) for cell, rivals in pairs if comparable(cells, cell, *rivals)]
            if pairs:
                found = [counts(cells, score, pairs) for score in COMPARED]
                who = f"`ising` against `{ising}`" if other == "ising" else f"`{ising}` against {other}"
                said = (f"{one['better']} ({one['clearly']}, {one['worse']})" for one in found)
                rows.append([who, str(len(pairs)), *said])
    return table(["which against which", "cells", "NLL", "ECE", "accuracy"], rows) if rows else "Not trained yet.\n"
