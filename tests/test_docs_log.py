"""The log of trials is true: its figures are those of the results.

python tests/test_docs_log.py        prints the tables for the page
"""

import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/log.md").read_text(encoding="utf-8")
SIDE_BY_SIDE = ROOT / "results/trials-nodes.json"
CHOSEN = (
    "nodes 0.1 by token, blocks only", "nodes 0.1 by token", "nodes 0.1 by example", "nodes 0.2 by token",
    "nodes 0.2 by example", "dropconnect 0.1", "dropconnect 0.5", "nodes 0.1 by example, laplace_noise 0.03",
    "nodes 0.1 by example, kl 0.03", "nodes 0.1 by token, blocks only, kl 0.03", "nodes 0.1 by example, ramp 0.5",
    "nodes 0.1 by example, weights 0.5, ramp 0.5",
    "nodes 0.1 by example, contrast 0.5 by z, delta 0.45, kl sqrt(3 / N), ramp 0.3",
    "nodes 0.1 by example, learned from held-out images to the end",
    "nodes 0.1 by example, contrast 4 by root of e / mean, delta 0.1",
    "nodes 0.1 by example, contrast 4 by root of e / mean, delta 0.5",
    "nodes 0.1 by example, kl sqrt(3 / N), ramp 0.3",
    "nodes 0.13 by example, contrast 4 by z, delta 0.1, kl sqrt(3 / N), ramp 0.3",
    "nodes 0.13 by example, contrast 4 by z, delta 0.5, kl sqrt(3 / N), ramp 0.3",
)  # fmt: skip
TABLES = {
    name: ROOT / f"results/trials-{name}.json"
    for name in (
        "floor",
        "control",
        "ideas",
        "network",
        "per-image",
        "width",
        "default",
        "evidence",
        "warmup",
        "h200",
        "small",
    )
}


def table(file):
    """A row for what was tried in a cell, at its rates: NLL, accuracy, calibration error, and what else was kept."""
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    more = {"dropped": "share dropped"} | (
        {"mean q": "mean q"} if file.stem in ("trials-control", "trials-floor") else {}
    )
    shown = {name: words for name, words in more.items() if name in rows[0]}
    head = ["data", "tried", "rate", "NLL", "accuracy", "ECE", *shown.values()]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        scores = [f"{row[name]:.3f}" for name in ("nll", "accuracy", "ece")]
        others = [f"{row[name]:.2f}" for name in shown]
        lines.append([f"{row['data']} {row['size']}", row["tried"], str(row["rate"]), *scores, *others])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def by_rate():
    """A row a cell and method, a column a rate: NLL, the lowest in bold."""
    rows = json.loads((ROOT / "results/trials-rates.json").read_text(encoding="utf-8"))["rows"]
    rates = sorted({row["rate"] for row in rows})
    head = ["data", "tried", *map(str, rates)]
    lines = [head, ["---"] * len(head)]
    for data, size, tried in dict.fromkeys((row["data"], row["size"], row["tried"]) for row in rows):
        nll = {
            row["rate"]: row["nll"] for row in rows if (row["data"], row["size"], row["tried"]) == (data, size, tried)
        }
        entries = [f"**{nll[rate]:.3f}**" if nll[rate] == min(nll.values()) else f"{nll[rate]:.3f}" for rate in rates]
        lines.append([f"{data} {size}", tried, *entries])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def ivon():
    """A row a setting of IVON."""
    rows = json.loads((ROOT / "results/trials-ivon.json").read_text(encoding="utf-8"))["rows"]
    head = ["tried", "NLL", "accuracy", "ECE"]
    lines = [head, ["---"] * len(head)]
    lines += [[row["peer"], *(f"{row[name]:.3f}" for name in ("nll", "accuracy", "ece"))] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


@pytest.mark.parametrize("made", [by_rate, ivon])
def test_rates_and_ivon_are_those_of_the_results(made):
    name = made.__name__.replace("_", "-")
    assert PAGE.split(f"<!-- {name}:begin -->\n")[1].split(f"<!-- {name}:end -->")[0] == made()


def side_by_side():
    """A row a setting, a column a cell: NLL / accuracy / calibration error, the mean of all rows that there are."""
    rows = json.loads(SIDE_BY_SIDE.read_text(encoding="utf-8"))["rows"]
    order = ["mnist", "fashion-mnist", "cifar10", "cifar100"]
    cells = sorted(
        {(row["data"], row["size"]) for row in rows}, key=lambda cell: (cell[1] > 1000, order.index(cell[0]))
    )
    head = ["tried", *(f"{data} {size}" for data, size in cells)]
    lines = [head, ["---"] * len(head)]
    for tried in CHOSEN:
        line = [tried]
        for cell in cells:
            own = [row for row in rows if (row["data"], row["size"]) == cell and row["tried"] == tried]
            figures = [statistics.fmean(row[name] for row in own) for name in ("nll", "accuracy", "ece") if own]
            line.append(" / ".join(f"{figure:.3f}" for figure in figures) or "–")
        assert len(set(line[1:])) > 1, f"nothing of {tried}"
        lines.append(line)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def test_settings_side_by_side_are_those_of_the_results():
    assert PAGE.split("<!-- nodes:begin -->\n")[1].split("<!-- nodes:end -->")[0] == side_by_side()


def test_what_noise_on_nodes_of_narrow_layers_does_is_in_the_results():
    digits = json.loads(TABLES["width"].read_text(encoding="utf-8"))["rows"]
    nll = {row["tried"]: f"{row['nll']:.3f}" for row in digits}
    said = PAGE.replace("\n  ", " ")
    assert f"NLL {nll['node_width 128']}, with no such rule {nll['node_width 1']}, dropout {nll['dropout']} " in said
    assert f"has {nll['node_width 16']} on the digits" in said
    rows = json.loads(TABLES["default"].read_text(encoding="utf-8"))["rows"]
    wide, one = (
        {(row["data"], row["rate"]): row["nll"] for row in rows if row["tried"] == f"ising, node_width {width}"}
        for width in (128, 1)
    )
    for data, words in (("fashion-mnist", "6,000 images of Fashion-MNIST"), ("cifar10", "5,000 of CIFAR-10")):
        pairs = [f"{wide[data, rate]:.3f} against {one[data, rate]:.3f}" for rate in (0.1, 0.5)]
        assert f"{pairs[0]} and {pairs[1]} with {words}" in said
    assert all(wide[key] > one[key] for key in wide)


def test_what_the_evidence_does_is_in_the_results():
    rows = json.loads(TABLES["control"].read_text(encoding="utf-8"))["rows"]
    said, data = PAGE.replace("\n  ", " "), ("fashion-mnist", "cifar10", "mnist")

    def of(tried, rate, score="nll"):
        found = {row["data"]: row[score] for row in rows if (row["tried"], row["rate"]) == (tried, rate)}
        return [f"{found[name]:.3f}" for name in data]

    def pairs(one, other, score="nll"):
        return [f"{a} and {b}" for a, b in zip(of(*one, score), of(*other, score), strict=True)]

    none = "its noise without evidence"
    first, second, third = pairs(("ising", 0.1), (none, 0.1))
    assert f"NLL {first} with 3,000 images of Fashion-MNIST, {second} of CIFAR-10, {third} of MNIST" in said
    high = pairs(("ising", 0.5), (none, 0.44))
    assert f"NLL is {high[0].replace(' and', ' with it and')} without, {high[1]}, {high[2]}, and accuracy" in said
    assert f"accuracy {', '.join(pairs(('ising', 0.5), (none, 0.44), 'accuracy'))}." in said
    drawn, fresh = of("dropout", 0.5), of("dropout, predicted by local", 0.5)
    assert ", ".join(f"{f} instead of {d}" for f, d in zip(fresh, drawn, strict=True)) in said


@pytest.mark.parametrize("name", TABLES)
def test_the_figures_are_those_of_the_results(name):
    assert PAGE.split(f"<!-- {name}:begin -->\n")[1].split(f"<!-- {name}:end -->")[0] == table(TABLES[name])


def test_the_fashion_mnist_figures_are_those_of_the_results():
    table = PAGE.split("<!-- fashion:begin -->")[1].split("<!-- fashion:end -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[2:]]
    results = json.loads((ROOT / "results/fashion-mnist.json").read_text())
    assert len(rows) == len(results["rows"]) == 4 and results["settings"]["test_size"] == 5000
    for (name, *cells), found in zip(rows, results["rows"], strict=True):
        for part in re.findall(r"[\w.-]+", name.lower()):
            assert part in found["setting"] or part == "="
        assert cells == [f"{found[k]:.3f} ({found[k + '_sd']:.3f})" for k in ("accuracy", "nll", "ece")]
    tried = {row["setting"]: row["nll"] for row in results["validation"]}
    default, *others = (tried[name] for name in ("ising delta=0.1", "dropconnect p=0.1", "dropout p=0.1"))
    assert f"validation NLL {default:.3f}, against {others[0]:.3f} and {others[1]:.3f}" in PAGE.replace("\n", " ")
    assert len([name for name in tried if name.startswith("ising")]) == 5 and len(tried) == 8


if __name__ == "__main__":
    print(side_by_side())
    for file in TABLES.values():
        print(table(file))
