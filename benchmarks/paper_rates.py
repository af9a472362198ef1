"""Which cells the paper's grid lacks for a comparison at every method's best rate, and at the mean of `ising`'s `q`.

    python benchmarks/tune.py benchmarks/trials/rates.toml --device cuda --out results/trials-rates.json
    python benchmarks/paper_rates.py results/paper results/paper-first benchmarks/rates.toml
    isingformer study benchmarks/rates.toml --out studies/rates
    python benchmarks/paper_results.py keep studies/rates results/rates

It writes the plan `rates`: every method at the rate that is best by `results/trials-rates.json`, on validation images;
dropout and dropconnect at the mean of `q` that `ising` has in its trained cells, to two digits, or at a rate that is
there anyway and within `NEARLY` of it; and `ising` at the rates that should make four in five weights zero. What the
paper's grid has at 0.1 and 0.5 is left out. A plan that is there keeps its cells, so that with more trials it grows,
and a study of it goes on; to begin anew, remove it.

Where a best rate is the lowest or highest tried, so that a better one may lie beyond, it says so.

The seed is that of the paper's grid, so that samples, initial weights and order of batches are the same.
"""

import argparse
from pathlib import Path

from paper_goals import NEARLY, RIVALS, at_paper_rates, same_rate
from paper_others import TRIALS, at_edge, best_rates, rows_of
from paper_results import read_all
from paper_tables import mean

from isingformer._files import write_text
from isingformer.study.plan import read_plan
from isingformer.study.record import Cell

PAPER = Path(__file__).with_name("paper.toml")
SPARSE = {"rates": (0.8, 0.9), "sizes": (5000, 6000)}
"""Where `ising` is tried for as many zeros as can be."""
HEAD = """# Made by benchmarks/paper_rates.py: cells of the paper's grid at other rates. Every method at the rate that
# validation images chose, where it has been tried; dropout and dropconnect at the mean q of ising; and ising at rates
# that should make four in five weights zero.
name = "rates"
methods = ["dropout", "dropconnect", "ising"]
rates = [{rates}]
replicas = {replicas}
seed = {seed}
samples = {samples}
only = [
{only}
]

"""


def best_cells(rows, grid):
    """The cells of the grid's places in which a method is best by the trials."""
    places = {(cell.dataset, cell.size) for cell in grid}
    return [Cell(*place, rate) for place, rate in best_rates(rows).items() if place[:2] in places]


def matched_cells(cells, others):
    """Cells of both rivals whose rate is the mean q of a cell of `ising`: new ones where none of the others is near."""
    found = []
    for cell, _ in same_rate(at_paper_rates(cells)):
        q = mean(cells, cell, "mean_q")
        for rival in RIVALS:
            place = (cell.dataset, cell.size, rival)
            rates = [other.rate for other in (*others, *found) if (other.dataset, other.size, other.method) == place]
            if not any(abs(rate - q) <= NEARLY for rate in rates):
                found.append(Cell(*place, round(q, 2)))
    return found


def sparse_cells(grid):
    """Those of `ising` at high rates, where there are neither few images nor many."""
    places = dict.fromkeys((cell.dataset, cell.size) for cell in grid if cell.size in SPARSE["sizes"])
    return [Cell(*place, "ising", rate) for place in places for rate in SPARSE["rates"]]


def plan_text(cells, paper):
    """The plan as TOML, one line a dataset, size and method."""
    places = {}
    for cell in sorted(cells):
        places.setdefault((cell.dataset, cell.size, cell.method), []).append(cell.rate)
    lines = [
        f'    {{ datasets = ["{dataset}"], sizes = [{size}], methods = ["{method}"], rates = {rates} }},'
        for (dataset, size, method), rates in places.items()
    ]
    rates = ", ".join(map(str, sorted({cell.rate for cell in cells})))
    head = HEAD.format(
        rates=rates, replicas=paper.replicas, seed=paper.seed, samples=paper.samples, only="\n".join(lines)
    )
    text = PAPER.read_text(encoding="utf-8")
    return head + text[text.index("[[datasets]]") :]


def plan_of(folders, rows, before=()):
    """The plan's text.

    Args:
        folders: what is trained of the paper's grid.
        rows: the trials.
        before: cells that it had, and keeps.
    """
    paper, (_, cells) = read_plan(PAPER), read_all(folders)
    grid = paper.cells()
    best = [cell for cell in best_cells(rows, grid) if cell not in grid]
    there = [*before, *best]
    return plan_text({*there, *matched_cells(cells, [*grid, *there]), *sparse_cells(grid)}, paper)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", help="that `paper_results.py keep` wrote, of the paper's grid")
    parser.add_argument("to", type=Path)
    parser.add_argument("--trials", type=Path, help=f"that `tune.py` wrote (default: {TRIALS.name}, where it is there)")
    args = parser.parse_args()
    try:
        if args.trials and not args.trials.is_file():
            raise ValueError(f"{args.trials} is not there; give the file that tune.py wrote")
        before = read_plan(args.to).cells() if args.to.is_file() else ()
        rows = rows_of(args.trials or TRIALS)
        write_text(args.to, plan_of(args.folders, rows, before))
        for said in at_edge(rows).values():
            print(f"{said}: try rates beyond it")
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
