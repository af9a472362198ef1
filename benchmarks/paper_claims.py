"""The paper's claims in words, each as a count of cells of our grid in which it holds.

A claim says of a cell that some numbers, one a training sample, are above 0 on average; it holds clearly where the 95%
intervals of their means exclude 0. Cells in which fewer than two samples have such a number are left out.
"""

from paper_tables import ISINGS, table

from isingformer.study.compare import with_interval
from isingformer.study.record import Cell

SIMPLE, COMPLEX = ("mnist", "fashion-mnist"), ("cifar10", "cifar100")
SMALL = (250, 300)
RIVALS, PARTS = ("dropout", "dropconnect"), ("right", "wrong")
SYMMETRIC, ALIKE = 0.5, 0.02
"""A skewness that still counts as none; a difference in ECE that does."""


class Grid:
    """What claims are made of: numbers of cells, one a training sample, None where a score is not defined.

    Args:
        cells: ``{cell: {score: [a number a replica]}}``.
    """

    def __init__(self, cells):
        self.cells = cells

    def of(self, cell, score):
        """A score as it is."""
        return self.cells[cell].get(score, [])

    def less(self, cell, other, score, by="seed"):
        """By how much a cell's score is below another's, paired by the training samples.

        Of other sizes they have other seeds; then `by` is "replica".
        """
        ours, theirs = (dict(zip(self.cells[c][by], self.of(c, score), strict=False)) for c in (cell, other))
        return [None if None in (x, y) else y - x for x, y in ((ours[s], theirs[s]) for s in ours if s in theirs)]

    def beside(self, cell, method):
        """The cell of another method in the same place."""
        return Cell(cell.dataset, cell.size, method, cell.rate)

    def count(self, chosen, numbers):
        """In how many of the chosen cells a claim holds, as text; "–" where there are none.

        Args:
            chosen: of a cell, whether the claim is about it.
            numbers: of a cell, lists of numbers whose means the claim says to be above 0.
        """
        found = []
        for cell in filter(chosen, self.cells):
            parts = [[value for value in part if value is not None] for part in numbers(cell)]
            if all(len(part) > 1 for part in parts):
                found.append([with_interval(part) for part in parts])
        if not found:
            return "–"
        holds = sum(all(mean > 0 for mean, *_ in own) for own in found)
        clearly = sum(all(low is not None and low > 0 for _, low, _ in own) for own in found)
        return f"{holds} of {len(found)} ({clearly})"


def minus(values):
    """The numbers with their sign turned; what is not defined stays so."""
    return [None if value is None else -value for value in values]


def claims(abouts, cells):
    """Two tables: a row a claim about the others; a row a claim about Ising, a column a reading of it."""
    grid = Grid(cells)
    rivals = [[claim, grid.count(*of)] for claim, *of in (*of_dropout(grid), *of_dropconnect(grid))]
    theirs = [of_ising(grid, ising) for ising in ISINGS]
    columns = [[grid.count(*of) for _, *of in own] for own in theirs]
    rows = [[claim, *entries] for (claim, *_), *entries in zip(theirs[0], *columns, strict=True)]
    first = table(["claim about the others", "holds in (clearly)"], rivals)
    return f"{first}\n{table(['claim about Ising', *(f'`{ising}`' for ising in ISINGS)], rows)}"


def has(grid, *methods):
    """A test of cells: the first method, where the others are trained in the same place."""
    return lambda c: c.method == methods[0] and all(grid.beside(c, other) in grid.cells for other in methods[1:])


def over(grid, cell):
    """Mean confidence minus accuracy: above 0 is overconfident."""
    return grid.of(cell, "overconfidence")


def of_dropout(grid):
    """Sharp and overconfident: (claim, of which cells, numbers)."""
    own, beside = has(grid, "dropout"), has(grid, "dropout", "dropconnect")

    def fewer(c):
        return Cell(c.dataset, 250, c.method, c.rate)

    return [
        ("dropout is overconfident", own, lambda c: [over(grid, c)]),
        ("dropout is overconfident on CIFAR with few images",
         lambda c: own(c) and c.dataset in COMPLEX and c.size in SMALL, lambda c: [over(grid, c)]),
        ("dropout is worse calibrated on CIFAR with 250 images than with 5,000 (ECE, samples in their order)",
         lambda c: own(c) and c.size == 5000 and fewer(c) in grid.cells,
         lambda c: [grid.less(c, fewer(c), "ece", by="replica")]),
        ("dropout is surer than dropconnect, where right and where wrong (entropy)", beside,
         lambda c: [grid.less(c, grid.beside(c, "dropconnect"), f"entropy_{part}") for part in PARTS]),
    ]  # fmt: skip


def of_dropconnect(grid):
    """Good with few images; its calibration goes by the rate, the data and their number: likewise."""
    own, beside = has(grid, "dropconnect"), has(grid, "dropconnect", "dropout")

    def apart(c):
        return grid.less(c, grid.beside(c, "dropout"), "ece")

    return [
        ("dropconnect is more accurate than dropout with few images", lambda c: beside(c) and c.size in SMALL,
         lambda c: [minus(grid.less(c, grid.beside(c, "dropout"), "accuracy"))]),
        ("dropconnect tells wrong from right better than dropout: its mean entropies are further apart", beside,
         lambda c: [[by_right - by_wrong for by_right, by_wrong in zip(
             *(grid.less(c, grid.beside(c, "dropout"), f"entropy_{part}") for part in PARTS), strict=True)
             if None not in (by_right, by_wrong)]]),
        (f"dropconnect at 0.1 has an ECE within {ALIKE} of dropout's on MNIST and Fashion-MNIST",
         lambda c: beside(c) and c.rate == 0.1 and c.dataset in SIMPLE,
         lambda c: [[ALIKE - d for d in apart(c)], [ALIKE + d for d in apart(c)]]),
        ("dropconnect at 0.5 is underconfident on MNIST and Fashion-MNIST",
         lambda c: own(c) and c.rate == 0.5 and c.dataset in SIMPLE, lambda c: [minus(over(grid, c))]),
        ("dropconnect is overconfident on CIFAR with few images",
         lambda c: own(c) and c.dataset in COMPLEX and c.size in SMALL, lambda c: [over(grid, c)]),
        ("dropconnect is underconfident on CIFAR with more images",
         lambda c: own(c) and c.dataset in COMPLEX and c.size not in SMALL, lambda c: [minus(over(grid, c))]),
    ]  # fmt: skip


def of_ising(grid, ising):
    """Underconfident, symmetric, best calibrated where data are complex and few: likewise, of one reading of it."""
    own, all_three = has(grid, ising), has(grid, ising, *RIVALS)

    def at_less(c):
        return Cell(c.dataset, c.size, ising, 0.1)

    return [
        ("it regularises more than its base rate says: mean of `q` above `delta`", own,
         lambda c: [[q - c.rate for q in grid.of(c, "mean_q")]]),
        ("it over-regularises bottlenecks: mean `q` of patches and head, the layers with the fewest inputs or outputs, "
         "above that of all weights", own, lambda c: [narrow_above_all(grid, c)]),
        ("with few images dropconnect is more accurate than it and than dropout",
         lambda c: all_three(c) and c.size in SMALL,
         lambda c: [minus(grid.less(grid.beside(c, "dropconnect"), other, "accuracy"))
                    for other in (c, grid.beside(c, "dropout"))]),
        ("its F1 on CIFAR-100 with 250 images is higher than that of both others",
         lambda c: all_three(c) and (c.dataset, c.size) == ("cifar100", 250),
         lambda c: [minus(grid.less(c, grid.beside(c, rival), "f1")) for rival in RIVALS]),
        ("it is underconfident on MNIST and Fashion-MNIST", lambda c: own(c) and c.dataset in SIMPLE,
         lambda c: [minus(over(grid, c))]),
        ("it is more underconfident at 0.5 than at 0.1 there",
         lambda c: own(c) and c.rate == 0.5 and c.dataset in SIMPLE and at_less(c) in grid.cells,
         lambda c: [grid.less(c, at_less(c), "overconfidence")]),
        ("where it is right it is less sure than both others (entropy)", all_three,
         lambda c: [minus(grid.less(c, grid.beside(c, rival), "entropy_right")) for rival in RIVALS]),
        (f"its entropies are symmetric: skewness of right and of wrong within {SYMMETRIC} of 0", own,
         lambda c: [[None if skew is None else SYMMETRIC - abs(skew) for skew in grid.of(c, f"skew_{part}")]
                    for part in PARTS]),
        ("they are nearer to symmetric than those of dropconnect, right and wrong", has(grid, ising, "dropconnect"),
         lambda c: [nearer(grid, c, grid.beside(c, "dropconnect"), f"skew_{part}") for part in PARTS]),
        ("its ECE on CIFAR with few images is lower than that of both others",
         lambda c: all_three(c) and c.size in SMALL and c.dataset in COMPLEX,
         lambda c: [grid.less(c, grid.beside(c, rival), "ece") for rival in RIVALS]),
    ]  # fmt: skip


def narrow_above_all(grid, cell):
    """By how much the mean q of the first layer and the last is above that of all weights; nothing without records."""
    parts = (grid.of(cell, score) for score in ("q of embed", "q of head", "mean_q"))
    return [(first + last) / 2 - every for first, last, every in zip(*parts, strict=False)]


def nearer(grid, cell, other, score):
    """By how much a cell's score is nearer to 0 than another's, paired by the training samples."""
    sizes = {
        own: {"seed": grid.cells[own]["seed"], score: [None if v is None else abs(v) for v in grid.of(own, score)]}
        for own in (cell, other)
    }
    return Grid(sizes).less(cell, other, score)
