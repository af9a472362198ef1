"""The page on labels and foreign images is true: its commands are understood, its figures are those of the results.

python tests/test_docs_active.py        prints the tables for the page
"""

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from isingformer.cli import build_parser

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/active.md").read_text(encoding="utf-8")
ACTIVE, FOREIGN = ROOT / "results/active-learning.json", ROOT / "results/out-of-distribution.json"


def lines(head, rows):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]) + "\n"


def active_table():
    """Accuracy at the end, and what every score gains over random choice: there, and as the mean of all rounds."""
    found = json.loads(ACTIVE.read_text(encoding="utf-8"))
    how, last = found["settings"], found["rows"][-1]["labels"]
    overall = {row["score"]: f"{row['over random']:+.4f} ± {row['95%']:.4f}" for row in found["overall"]}
    rows = [
        [
            f"`{row['score']}`" if row["score"] in overall else row["score"],
            f"{row['accuracy']:.4f} ± {row['95%']:.4f}",
            f"{row['over random']:+.4f} ± {row['95% of that']:.4f}" if row["score"] in overall else "",
            overall.get(row["score"], ""),
        ]
        for row in found["rows"]
        if row["labels"] == last
    ]
    about = (
        f"`{how['data']}`, {how['start']} labels to begin with, {how['k']} a round, {how['on']} images, "
        f"{how['seeds']} seeds, means with 95% intervals (`results/active-learning.json`):\n\n"
    )
    head = ["chosen by", f"accuracy at {last} labels", "over random choice there", "mean of all rounds"]
    return about + lines(head, rows)


def foreign_table():
    found = json.loads(FOREIGN.read_text(encoding="utf-8"))
    how = found["settings"]

    def cell(row, name):
        return "" if row[name] is None else f"{row[name]:.3f} ({row[name + ', sd']:.3f})"

    figures = ["accuracy", "AUROC of entropy", "AUROC of mutual information"]
    about = (
        f"`{how['ood']}` against `{how['data']}`, {how['train_size']} training images, T = {how['samples']}, mean (sd) "
        f"of {how['seeds']} seeds (`results/out-of-distribution.json`):\n\n"
    )
    return about + lines(
        ["method", *figures], [[row["method"], *(cell(row, name) for name in figures)] for row in found["rows"]]
    )


TABLES = {"active": (ACTIVE, active_table), "foreign": (FOREIGN, foreign_table)}


@pytest.mark.parametrize("name", TABLES)
def test_the_figures_are_those_of_the_results(name):
    file, made = TABLES[name]
    shown = PAGE.split(f"<!-- {name}:begin -->\n")[1].split(f"<!-- {name}:end -->")[0]
    assert shown == (made() if file.is_file() else "")  # where nothing was measured, nothing is said


@pytest.mark.parametrize("line", re.findall(r"^isingformer .*", PAGE, re.M))
def test_the_commands_are_understood(line):
    build_parser().parse_args(shlex.split(line, comments=True)[1:])


@pytest.mark.parametrize("line", re.findall(r"^python examples/active_learning.py .*", PAGE, re.M))
def test_the_examples_flags_are_its_own(line, monkeypatch):
    names = runpy.run_path(str(ROOT / "examples/active_learning.py"))
    monkeypatch.setattr(sys, "argv", shlex.split(line)[1:])
    args = names["parse"]()
    assert args.data in line and args.rounds > 0


if __name__ == "__main__":
    for file, made in TABLES.values():
        print(made() if file.is_file() else f"{file.name} is not there")
