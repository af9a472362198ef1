"""What is kept of the paper's grid, and the tables of docs/results.md that are made from it.

    isingformer study benchmarks/paper.toml --out studies/paper
    python benchmarks/paper_results.py keep studies/paper results/paper
    python benchmarks/paper_results.py page results/paper docs/results.md
    python benchmarks/paper_results.py restore results/paper studies/paper

`keep` writes the study's tables, its records in one file, and `about.json` (plan, checksums of the data, and how many
trainings were made on what hardware, by which commit and command), finished or not. `page` writes anew what stands
between the marks of the page, from one folder or several: a cell is taken from the first that has it. `restore` makes
the study's folder anew on another machine, where the same command then goes on; of the first 340 trainings, which were
kept without their records, there are the tables alone.
"""

import argparse
import collections
import csv
import gzip
import json
import re
import statistics
from pathlib import Path

from isingformer._files import renamed, write_json, write_text
from isingformer.study import Store
from isingformer.study.compare import verdicts
from isingformer.study.paper import paper_number
from isingformer.study.plan import Plan
from isingformer.study.record import Cell, Record
from isingformer.study.summary import DATASETS, cell_order
from isingformer.study.tables import write_tables

SIMPLE, COMPLEX = ("mnist", "fashion-mnist"), ("cifar10", "cifar100")
SMALL = (250, 300)
ISINGS = ("ising-paper", "ising-paper-obd", "ising")
RIVALS = ("dropout", "dropconnect")
RECORDS = "records.jsonl.gz"


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
    lines = "".join(json.dumps(record.to_json(), sort_keys=True) + "\n" for record in records)
    with renamed(folder / RECORDS) as temporary:
        temporary.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    write_json(folder / "about.json", about)


def about_of(folder):
    """The circumstances of a folder that `keep` wrote."""
    file = Path(folder) / "about.json"
    if not file.is_file():
        raise ValueError(f"{folder} has no about.json; give a folder that `keep` wrote")
    return json.loads(file.read_text(encoding="utf-8"))


def restore(folder, study):
    """The study's folder as it was when `keep` was called."""
    folder, about = Path(folder), about_of(folder)
    if not (folder / RECORDS).is_file():
        raise ValueError(f"{folder} has no {RECORDS}: it was kept without its records, and cannot be taken up again")
    store = Store.open(study, Plan.from_json(about["plan"]))
    for label, fingerprint in about["data"].items():
        store.check_data(label, fingerprint)
    for line in gzip.decompress((folder / RECORDS).read_bytes()).decode().splitlines():
        store.add(Record.from_json(json.loads(line)))


def read_all(folders):
    """([about.json of each], the cells of all): a cell is taken from the first folder that has it."""
    found = [read(folder) for folder in folders]
    cells = {cell: values for _, own in reversed(found) for cell, values in own.items()}
    return [about for about, _ in found], dict(sorted(cells.items(), key=lambda item: cell_order(item[0])))


def read(folder):
    """(about.json, {cell: {score: [a number a replica]}}) of a folder that `keep` wrote."""
    folder, about = Path(folder), about_of(folder)
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


def spoken(abouts, cells):
    """The studies' own verdicts about the paper; what the first has said of a method no other says again."""
    lines = {}
    for line in (line for about in abouts for line in about["verdicts"] if "paper" in line):
        lines.setdefault(re.split(r": | stand in ", line)[0], line)
    return "".join(f"- {line}\n" for line in lines.values())


def goals(abouts, cells):
    """How often `ising` is better than both others at the same rate, and than the paper says its method is."""
    whole = [
        (cell, [Cell(cell.dataset, cell.size, rival, cell.rate) for rival in RIVALS])
        for cell in cells
        if cell.method == "ising"
    ]
    whole = [(cell, rivals) for cell, rivals in whole if all(rival in cells for rival in rivals)]
    if not whole:
        return "Nothing of `ising` has been trained yet.\n"

    def lower(score):
        return sum(all(mean(cells, cell, score) < mean(cells, r, score) for r in rivals) for cell, rivals in whole)

    def near(cell, rivals):
        better = max(rivals, key=lambda rival: mean(cells, rival, "accuracy"))
        slack = statistics.stdev(cells[better]["accuracy"])
        return mean(cells, cell, "accuracy") >= mean(cells, better, "accuracy") - slack

    theirs = [(cell, paper_number(cell)) for cell, _ in whole]
    theirs = [(cell, number) for cell, number in theirs if number and number.comparable]
    above = sum(mean(cells, cell, "accuracy") > number.means["accuracy"] for cell, number in theirs)
    rows = [
        ["NLL lower than that of both at the same rate", f"{lower('nll')} of {len(whole)}"],
        ["ECE lower than that of both", f"{lower('ece')} of {len(whole)}"],
        ["accuracy higher than the better one's, or within one of its standard deviations below",
         f"{sum(near(*one) for one in whole)} of {len(whole)}"],
        ["accuracy higher than the paper's for its method", f"{above} of {len(theirs)}"],
    ]  # fmt: skip
    return table(["`ising` against dropout and dropconnect", "cells"], rows)


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


def accuracies(abouts, cells):
    """Ours / the paper's."""

    def entry(cell):
        theirs = paper_number(cell)
        own = with_sd(cells, cell, "accuracy") if cell in cells else "–"
        mark = "" if theirs.comparable else " †"
        return f"{own} / {theirs.means['accuracy']:.3f} ({theirs.sds['accuracy']:.3f}){mark}"

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
    "made": where, "goals": goals, "verdicts": spoken, "accuracy": accuracies, "calibration": calibrations,
    "claims": claims,
}  # fmt: skip


def filled(text, *folders):
    """The page with its generated parts made from one folder or several."""
    abouts, cells = read_all(folders)
    for name, part in PARTS.items():
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"the page must have {begin.strip()} and {end} once each; put them where the part belongs")
        before, rest = text.split(begin)
        text = before + begin + part(abouts, cells) + end + rest.split(end, 1)[1]
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("keep", "page", "restore"))
    parser.add_argument("source", type=Path, nargs="+")
    parser.add_argument("to", type=Path)
    args = parser.parse_args()
    try:
        if args.what == "page":
            write_text(args.to, filled(args.to.read_text(encoding="utf-8"), *args.source))
        elif len(args.source) > 1:
            raise ValueError(f"{args.what} takes one folder, got {len(args.source)}")
        else:
            {"keep": keep, "restore": restore}[args.what](args.source[0], args.to)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
