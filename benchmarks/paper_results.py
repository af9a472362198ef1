"""What is kept of the paper's grid, and the tables of docs/results.md that are made from it.

    isingformer study benchmarks/paper.toml --out studies/paper
    python benchmarks/paper_results.py keep studies/paper results/paper
    python benchmarks/paper_results.py page results/paper docs/results.md

`keep` writes the study's tables and `about.json` (plan, checksums of the data, and how many trainings were made on what
hardware, by which commit and command), finished or not. `page` writes anew what stands between the marks of the page.
"""

import argparse
import collections
import csv
import json
import statistics
from pathlib import Path

from isingformer._files import write_json, write_text
from isingformer.study import Store
from isingformer.study.compare import verdicts
from isingformer.study.paper import paper_number
from isingformer.study.record import Cell
from isingformer.study.summary import DATASETS, cell_order
from isingformer.study.tables import write_tables

SIMPLE, COMPLEX = ("mnist", "fashion-mnist"), ("cifar10", "cifar100")
SMALL = (250, 300)
ISINGS = ("ising-paper", "ising-paper-obd", "ising")


def keep(study, folder):
    """Tables and circumstances of a study, into a folder."""
    store, folder = Store(study), Path(folder)
    records, plan = store.records(), store.plan
    write_tables(records, folder, cells=plan.cells(), replicas=plan.replicas)
    made = collections.Counter(json.dumps(record.made, sort_keys=True) for record in records)
    fingerprints = {
        file.stem: json.loads(file.read_text())["fingerprint"] for file in sorted((store.path / "data").glob("*.json"))
    }
    about = {
        "trainings": len(records), "planned": plan.trainings,
        "made": [{**json.loads(how), "trainings": count} for how, count in sorted(made.items())],
        "data": fingerprints, "plan": plan.to_json(), "verdicts": list(verdicts(records)),
    }  # fmt: skip
    write_json(folder / "about.json", about)


def read(folder):
    """(about.json, {cell: {score: [a number a replica]}}) of a folder that `keep` wrote."""
    folder = Path(folder)
    about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    cells = collections.defaultdict(lambda: collections.defaultdict(list))
    with open(folder / "replicas.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cell = Cell(row["dataset"], int(row["size"]), row["method"], float(row["rate"]) if row["rate"] else None)
            for name in list(row)[6:]:
                cells[cell][name].append(float(row[name]) if row[name] else None)
    return about, dict(sorted(cells.items(), key=lambda item: cell_order(item[0])))


def mean(cells, cell, score):
    return statistics.fmean(value for value in cells[cell][score] if value is not None)


def with_sd(cells, cell, score):
    return f"{mean(cells, cell, score):.3f} ({statistics.stdev(cells[cell][score]):.3f})"


def where(about, cells):
    """One paragraph: how much of the grid there is, and where it was made."""
    machines = sorted({f"{made['hardware']}, torch {made['torch']}" for made in about["made"]})
    commits = sorted({made["commit"] for made in about["made"]})
    methods = ", ".join(f"`{method}`" for method in dict.fromkeys(cell.method for cell in cells))
    return (
        f"{about['trainings']:,} of {about['planned']:,} trainings, of {methods}; {'; '.join(machines)}; "
        f"commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}.\n"
    )


def spoken(about, cells):
    """The study's own verdicts about the paper."""
    return "".join(f"- {line}\n" for line in about["verdicts"] if "paper" in line)


def table(head, rows):
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + "\n"


def by_method(cells, entry):
    """A row a dataset, size and rate, a column a method: what `entry` says of a cell."""
    methods = list(dict.fromkeys(cell.method for cell in cells))
    rows = [
        [DATASETS[dataset], f"{size:,}", str(rate), *(entry(Cell(dataset, size, method, rate)) for method in methods)]
        for dataset, size, rate in dict.fromkeys((cell.dataset, cell.size, cell.rate) for cell in cells)
    ]
    return table(["data", "images", "rate", *methods], rows)


def accuracies(about, cells):
    """Ours / the paper's."""

    def entry(cell):
        theirs = paper_number(cell)
        own = with_sd(cells, cell, "accuracy") if cell in cells else "–"
        mark = "" if theirs.comparable else " †"
        return f"{own} / {theirs.means['accuracy']:.3f} ({theirs.sds['accuracy']:.3f}){mark}"

    return by_method(cells, entry)


def calibrations(about, cells):
    """NLL / ECE / confidence minus accuracy."""

    def entry(cell):
        if cell not in cells:
            return "–"
        return "{:.3f} / {:.3f} / {:+.3f}".format(*(mean(cells, cell, s) for s in ("nll", "ece", "overconfidence")))

    return by_method(cells, entry)


def claims(about, cells):
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
    for ising in ISINGS:
        rows += holds(f"{ising} is underconfident on MNIST and Fashion-MNIST",
                      lambda c, i=ising: c.method == i and c.dataset in SIMPLE, lambda c: over(c) < 0)  # fmt: skip
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
    "made": where, "verdicts": spoken, "accuracy": accuracies, "calibration": calibrations, "claims": claims,
}  # fmt: skip


def filled(text, folder):
    """The page with its generated parts made from a folder."""
    about, cells = read(folder)
    for name, part in PARTS.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"the page must have {begin.strip()} and {end} once each; put them where the part belongs")
        before, rest = text.split(begin)
        text = before + begin + part(about, cells) + end + rest.split(end, 1)[1]
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("keep", "page"))
    parser.add_argument("source", type=Path)
    parser.add_argument("to", type=Path)
    args = parser.parse_args()
    try:
        if args.what == "keep":
            keep(args.source, args.to)
        else:
            write_text(args.to, filled(args.to.read_text(encoding="utf-8"), args.source))
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
