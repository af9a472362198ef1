"""What is kept of the paper's grid, and the tables and figures of docs/results.md and the README that are made from it.

    isingformer study benchmarks/paper.toml --out studies/paper
    python benchmarks/paper_results.py keep studies/paper results/paper
    python benchmarks/paper_results.py page results/paper results/paper-first docs/results.md
    python benchmarks/paper_results.py page results/paper results/paper-first README.md
    python benchmarks/paper_results.py figures results/paper results/paper-first results/paper/figures
    python benchmarks/paper_results.py overview results/paper results/paper-first docs/results.png
    python benchmarks/paper_results.py differences results/paper results/paper-first results/paper/against.csv
    python benchmarks/paper_results.py restore results/paper studies/paper

What `benchmarks/paper_rates.py` plans, other rates than the paper's two, is kept in a folder of its own, and given to
`page` as one more of them:

    python benchmarks/paper_results.py keep studies/rates results/rates
    python benchmarks/paper_results.py page results/paper results/paper-first results/rates docs/results.md
    python benchmarks/paper_results.py zeros results/paper results/paper-first results/rates docs/zeros.png
    python benchmarks/paper_results.py rates results/trials-rates.json docs/rates.png

So are the cells of `benchmarks/control.toml` and `benchmarks/local.toml`. They have methods and rates of the grid, so
that their methods get other names, and none of them takes the place of one of the grid.

`keep` writes the study's tables, its records in one file, and `about.json` (plan, checksums of the data, and how many
trainings were made on what hardware, by which commit and command), finished or not. `page` writes anew what stands
between the marks of a page, from one folder or several: a cell is taken from the first that has it, and cells are
compared over the replicas that they have in common. `figures` draws the scores by training size, a figure a dataset,
`overview` those of all datasets in one, and `differences` writes what stands behind "clearly"; these three are of the
paper's two rates. `zeros` draws accuracy by the share of weights that are zero, `rates` the NLL that trials found by
rate. `restore` makes the study's folder anew on another machine, where the same command then goes on.
`results/paper-first` has the first 340 trainings, which were kept without their records: there are the tables alone.
"""

import argparse
import collections
import csv
import dataclasses
import gzip
import itertools
import json
import re
import statistics
from pathlib import Path

from paper_claims import claims
from paper_figures import draw, draw_overview, draw_rates, draw_zeros
from paper_goals import at_paper_rates, differences, goals, summary, zeros
from paper_others import CONTROL, best, best_counts, by_fresh_noise, control, fresh, matched, peers, rows_of
from paper_tables import WHICH, accuracies, calibrations, depth, spoken, where
from paper_versus import printed, reached, versus

from isingformer._files import write_bytes, write_json, write_text
from isingformer.methods import METHODS
from isingformer.study import Store
from isingformer.study.plan import Plan
from isingformer.study.record import Cell, Record
from isingformer.study.summary import cell_order
from isingformer.study.tables import write_tables

WHAT = ("keep", "restore", "page", "figures", "overview", "zeros", "rates", "differences")
RECORDS = "records.jsonl.gz"
PARTS = {
    "made": where, "goals": goals, "summary": summary, "depth": depth, "verdicts": spoken,
    "accuracy": accuracies, "calibration": calibrations, "claims": claims, "versus": versus, "printed": printed,
}  # fmt: skip
OTHERS = {
    "reached": reached, "zeros": zeros, "matched": matched, "best": best, "best-counts": best_counts, "peers": peers,
    "fresh": fresh, "control": control,
}  # fmt: skip
"""Parts by the name of their marks on a page: of the cells at the paper's rates, and of those at any."""


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
        "data": fingerprints, "plan": plan.to_json(),
    }  # fmt: skip
    lines = "".join(json.dumps(record.to_json()) + "\n" for record in records)
    write_bytes(folder / RECORDS, gzip.compress(lines.encode(), 9, mtime=0))
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
    for record in records_of(folder):
        store.add(record)


def records_of(folder):
    """The records that `keep` wrote."""
    lines = gzip.decompress((Path(folder) / RECORDS).read_bytes()).decode().splitlines()
    return [Record.from_json(json.loads(line)) for line in lines]


def read_all(folders):
    """([about.json of each], the cells of all): a cell is taken from the first folder that has it."""
    found = [read(folder) for folder in folders]
    cells = {cell: values for _, own in reversed(found) for cell, values in own.items()}
    return [about for about, _ in found], dict(sorted(cells.items(), key=lambda item: cell_order(item[0])))


def read(folder):
    """(about.json, {cell: {score: [a number a replica]}}) of a folder that `keep` wrote.

    `WHICH` are among the scores. An `ising` without evidence is called `CONTROL`; what a plan scores by fresh noise as
    well is called so (`by_fresh_noise`).
    """
    folder, about = Path(folder), about_of(folder)
    cells = collections.defaultdict(lambda: collections.defaultdict(list))
    with open(folder / "replicas.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            cell = Cell(row["dataset"], int(row["size"]), row["method"], float(row["rate"]) if row["rate"] else None)
            for name in WHICH:
                cells[cell][name].append(int(row[name]))
            for name in list(row)[6:]:
                cells[cell][name].append(float(row[name]) if row[name] else None)
    for record in records_of(folder) if (folder / RECORDS).is_file() else ():
        for name in ("right", "wrong"):
            found = skewness(record.entropies.edges, getattr(record.entropies, name))
            cells[record.cell][f"skew_{name}"].append(found)
        for place, own in by_place(record.layers).items():
            cells[record.cell][f"q of {place}"].append(statistics.fmean(own))
    if about["plan"]["settings"].get("ising", {}).get("evidence") == "none":
        cells = {dataclasses.replace(cell, method=CONTROL): own for cell, own in cells.items()}
    if about["plan"].get("score_local"):
        cells = {by_fresh_noise(cell): own for cell, own in cells.items()}
    return about, dict(sorted(cells.items(), key=lambda item: cell_order(item[0])))


def by_place(layers):
    """{place in the network: [mean q of its layers]}: ``embed``, ``block 1`` and so on, ``head``."""
    found = collections.defaultdict(list)
    for name, layer in layers.items():
        block = re.match(r"blocks\.(\d+)\.", name)
        found[f"block {int(block[1]) + 1}" if block else name].append(layer.mean_q)
    return found


def skewness(edges, counts):
    """Of a histogram, by the middles of its bins; None where nothing varies."""
    middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
    total = sum(counts)
    if not total:
        return None
    centre = sum(count * at for count, at in zip(counts, middles, strict=True)) / total
    second, third = (
        sum(count * (at - centre) ** power for count, at in zip(counts, middles, strict=True)) / total
        for power in (2, 3)
    )
    return third / second**1.5 if second else None


def of_grid(cells):
    """Those at the paper's rates, without those that `read` named otherwise."""
    return {cell: values for cell, values in at_paper_rates(cells).items() if cell.method in METHODS}


def filled(text, *folders):
    """The page with its generated parts made from one folder or several."""
    abouts, every = read_all(folders)
    cells = of_grid(every)
    own = [about for about in abouts if Plan.from_json(about["plan"]).name == "paper"]
    parts = {name: (call, own, cells) for name, call in PARTS.items()}
    parts |= {name: (call, abouts, every) for name, call in OTHERS.items()}
    there = [name for name in parts if f"<!-- {name}:begin -->" in text]
    if not there:
        raise ValueError(
            "the page has no part to fill; put <!-- NAME:begin --> and <!-- NAME:end --> where one belongs, NAME one "
            f"of {', '.join(parts)}"
        )
    for name in there:
        begin, end = f"<!-- {name}:begin -->\n", f"<!-- {name}:end -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"the page must have {begin.strip()} and {end} once each, a line each")
        before, rest = text.split(begin)
        make, *of = parts[name]
        text = before + begin + make(*of) + end + rest.split(end, 1)[1]
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WHAT)
    parser.add_argument("source", type=Path, nargs="+")
    parser.add_argument("to", type=Path)
    args = parser.parse_args()
    try:
        if args.what in ("keep", "restore", "rates") and len(args.source) > 1:
            raise ValueError(f"{args.what} takes one source, got {len(args.source)}")
        if args.what == "keep":
            keep(args.source[0], args.to)
        elif args.what == "restore":
            restore(args.source[0], args.to)
        elif args.what == "page":
            write_text(args.to, filled(args.to.read_text(encoding="utf-8"), *args.source))
        elif args.what == "rates":
            if not args.source[0].is_file():
                raise ValueError(f"{args.source[0]} is not there; give the file that tune.py wrote")
            draw_rates(rows_of(args.source[0]), args.to)
        elif args.what == "zeros":
            draw_zeros(read_all(args.source)[1], args.to)
        elif args.what == "differences":
            write_text(args.to, differences(of_grid(read_all(args.source)[1])))
        else:
            {"figures": draw, "overview": draw_overview}[args.what](of_grid(read_all(args.source)[1]), args.to)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")


if __name__ == "__main__":
    main()
