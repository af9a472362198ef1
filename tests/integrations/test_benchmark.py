"""The benchmark of the trainers runs: it is measured elsewhere, on a GPU."""

import json
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytest.importorskip("lightning")

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


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
