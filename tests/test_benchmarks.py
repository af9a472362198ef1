"""Benchmarks that choose settings or end in docs run, and their figures are those of their rows."""

import json
import runpy
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

import isingformer as isf

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def test_foreign_images_are_told_by_every_seed(monkeypatch, tmp_path):
    draw = np.random.default_rng(0)
    x, y = (
        draw.integers(0, 256, (60, 12, 12), dtype=np.uint8),
        np.arange(60) % 3,
    )  # of another size: they are made to fit
    np.savez(tmp_path / "noise.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    given = [
        "--data", "digits", "--ood", tmp_path / "noise.npz", "--train-size", 64, "--epochs", 1, "--seeds", 2,
        "--samples", 3, "--test-size", 50, "--methods", "plain", "dropconnect p=0.1", "--out", tmp_path / "found.json",
    ]  # fmt: skip
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["out_of_distribution.py", *map(str, given)])
    runpy.run_path(str(BENCHMARKS / "out_of_distribution.py"), run_name="__main__")
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    plain, dropped = found["rows"]
    assert plain["AUROC of mutual information"] is None  # its passes agree
    for name in ("accuracy", "AUROC of entropy", "AUROC of mutual information"):
        values = [row[name] for row in found["seeds"] if row["method"] == "dropconnect p=0.1"]
        assert len(values) == 2 and all(0 <= value <= 1 for value in values)
        assert dropped[name] == pytest.approx(statistics.fmean(values))


def test_trials_are_scored_on_validation_images_and_go_on(monkeypatch, tmp_path):
    trials = tmp_path / "trials.toml"
    trials.write_text(
        """
seeds = [0, 1]
validation = 300
samples = 3
recipe = { width = 8, depth = 1, heads = 2, mlp = 8 }
cells = [{ data = "digits", size = 64, epochs = 1 }]

[[tried]]
name = "ours"
method = "ising"
rates = [0.1, 0.5]
settings = { node_rate = 0.1 }
""",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(sys, "argv", ["tune.py", str(trials), "--out", str(tmp_path / "found.json")])
    script = str(BENCHMARKS / "tune.py")

    def found():
        runpy.run_path(script, run_name="__main__")
        return json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))["rows"]

    data, whole = runpy.run_path(script)["held_out"]("digits", 300, None), isf.load_data("digits").train
    assert len(data.test) == 300 and len(data.train) == len(whole) - 300
    rows = found()
    assert [row["rate"] for row in rows] == [0.1, 0.5]
    assert [row["mean q"] for row in rows] == pytest.approx([0.1, 0.5], abs=0.05)
    with trials.open("a", encoding="utf-8") as file:
        file.write('[[tried]]\nname = "drops"\nmethod = "dropout"\nrates = [0.5]\npredicted = ["mask", "local"]\n')
    again = found()
    assert again[:2] == rows  # what was there is not made again
    assert [row["tried"] for row in again[2:]] == ["drops", "drops, predicted by local"]
    assert again[2]["nll"] != again[3]["nll"] and again[2]["training nll"] == again[3]["training nll"]
    assert found() == again
    trials.write_text(
        trials.read_text(encoding="utf-8").replace("node_rate = 0.1", "node_rate = 0.2"), encoding="utf-8"
    )
    with pytest.raises(
        SystemExit, match=r"tune\.py: 2 of 4 rows in .* have settings that the file of trials no longer"
    ):
        found()
