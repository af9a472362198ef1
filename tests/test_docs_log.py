"""The log of trials is true: its figures are those of the results.

python tests/test_docs_log.py        prints the tables for the page
"""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/log.md").read_text(encoding="utf-8")
TABLES = {name: ROOT / f"results/trials-{name}.json" for name in ("evidence", "warmup", "h200", "small")}


def table(file):
    """A row for what was tried in a cell, at its rates: NLL, accuracy and calibration error."""
    rows = json.loads(file.read_text(encoding="utf-8"))["rows"]
    lines = [
        "| data | tried | rate | NLL | accuracy | ECE | share dropped |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        figures = f"{row['nll']:.3f} | {row['accuracy']:.3f} | {row['ece']:.3f} | {row['dropped']:.2f}"
        lines.append(f"| {row['data']} {row['size']} | {row['tried']} | {row['rate']} | {figures} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", TABLES)
def test_the_figures_are_those_of_the_results(name):
    assert PAGE.split(f"<!-- {name}:begin -->\n")[1].split(f"<!-- {name}:end -->")[0] == table(TABLES[name])


if __name__ == "__main__":
    for file in TABLES.values():
        print(table(file))
