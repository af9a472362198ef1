"""The benchmark of the trainers runs, and what the guide says of it is what was measured on a GPU.

python tests/integrations/test_benchmark.py        prints the table for the guide
"""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("lightning")

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
RESULTS = ROOT / "results/integrations-h200.json"


def trainers_table():
    """Ratios to the plain model under the same Trainer."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    figures = ("time / plain", "allocated / plain", "reserved / plain")
    lines = [
        f"ViT-B/16, 224 px, batch {found['batch']}, bf16, eager, one {found['device']}, ratios to the plain model "
        "under the same Trainer\n(`results/integrations-h200.json`):\n",
        "| Trainer | method | ms a step | time | memory allocated | reserved |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in found["rows"]:
        cells = [row["trainer"], row["row"], f"{row['ms']:.0f}", *(f"{row[name]:.2f}" for name in figures)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def test_the_guides_figures_are_those_of_the_results():
    guide = (ROOT / "docs/guide.md").read_text(encoding="utf-8")
    shown = guide.split("<!-- trainers:begin -->\n")[1].split("<!-- trainers:end -->")[0]
    assert shown == (trainers_table() if RESULTS.is_file() else "")  # where nothing was measured, nothing is said


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # of the trainers
def test_every_row_is_timed_under_both_trainers(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["integrations.py", "--smoke", "--out", str(tmp_path / "found.json")])
    runpy.run_path(str(BENCHMARKS / "integrations.py"), run_name="__main__")
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    rows = [(row["trainer"], row["row"]) for row in found["rows"]]
    kinds = ("plain", "ising, local (default)", "ising, mask")
    assert rows == [(trainer, kind) for trainer in ("transformers", "lightning") for kind in kinds]
    assert all(row["ms"] > 0 for row in found["rows"]) and found["timed_steps"] == 10
    assert [row["time / plain"] for row in found["rows"] if row["row"] == "plain"] == [1.0, 1.0]
    assert set(found["versions"]) == {"transformers", "accelerate", "lightning"}


if __name__ == "__main__":
    print(trainers_table())
