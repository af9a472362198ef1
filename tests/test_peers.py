"""The benchmark of an ensemble and IVON: it runs on a plan's cells, and trains what it has not trained so."""

import importlib.util
import json
import statistics
import sys
from types import SimpleNamespace

import pytest
import torch

from benchmark_scripts import script
from isingformer.data import load_data, subset
from isingformer.study import read_plan

PLAN = """
methods = ["plain"]
replicas = 3
samples = 3
recipe = { epochs = 2, width = 8, depth = 1, heads = 2, mlp = 8 }
datasets = [{ source = "digits", sizes = [64], test_images = 40 }]
"""
IVON_IS_MISSING = importlib.util.find_spec("ivon") is None


@pytest.fixture
def found(monkeypatch, tmp_path):
    """What the script writes, by what is given to it."""
    (tmp_path / "small.toml").write_text(PLAN, encoding="utf-8")
    out = tmp_path / "peers.json"

    def call(*given):
        given = ["--plan", tmp_path / "small.toml", "--out", out, *given]
        monkeypatch.setattr(sys, "argv", ["peers.py", *map(str, given)])
        script("peers").main()
        return json.loads(out.read_text(encoding="utf-8"))

    return call


@pytest.mark.parametrize(
    "peer",
    [
        ("ensemble", "--members", 2),
        pytest.param(("ivon", "--ivon-lr", 0.3), marks=pytest.mark.skipif(IVON_IS_MISSING, reason="no ivon-opt")),
    ],
    ids=["ensemble", "ivon"],
)
def test_a_peer_is_trained_on_every_replica_of_a_cell(found, peer):
    again = [found("--replicas", 2, "--epochs", 1, "--peers", *peer) for _ in range(2)]
    assert again[0]["records"] == again[1]["records"]  # nothing is trained twice
    (row,), records = again[0]["rows"], again[0]["records"]
    assert (row["data"], row["size"], row["on"], row["replicas"], row["epochs"]) == ("digits", 64, "test", 2, 1)
    assert [one["replica"] for one in records] == [0, 1]
    for score in ("accuracy", "nll", "ece", "brier"):
        values = [one[score] for one in records]
        assert row[score] == pytest.approx(statistics.fmean(values))
        assert row[f"{score}, sd"] == pytest.approx(statistics.stdev(values))
    assert all(round(40 * one["accuracy"], 6).is_integer() for one in records)  # of the plan's test images


def test_a_shorter_run_does_not_stand_for_the_whole_one(found):
    """Nor do other settings."""
    ensemble = ["--peers", "ensemble", "--members", 2]
    found("--replicas", 1, "--epochs", 1, *ensemble)
    found("--replicas", 1, *ensemble)
    rows = found(*ensemble)["rows"]
    assert [(row["replicas"], row["epochs"]) for row in rows] == [(1, 1), (1, 2), (3, 2)]
    rows = found("--peers", "ensemble", "--members", 3)["rows"]
    assert [row["settings"] for row in rows] == [*["members 2"] * 3, "members 3"]


def test_every_setting_of_ivon_tells_one_training_from_another(found, monkeypatch):
    trained = []

    def ivon(data, recipes, plan, device, **settings):
        trained.append(settings)
        return torch.full((len(recipes), len(data.test), 10), 0.1)

    monkeypatch.setattr(script("peers"), "ivon", ivon)
    for more in ([], ["--ivon-decay", 1e-3], ["--ivon-beta", 0.99], ["--ivon-clip", 1], ["--ivon-curvature", 0.5], []):
        found("--peers", "ivon", *more)
    usual = {"lr": 0.1, "curvature": 0.1, "decay": 1e-4, "beta": 0.9999, "clip": float("inf")}
    changes = ({}, {"decay": 1e-3}, {"beta": 0.99}, {"clip": 1.0}, {"curvature": 0.5})
    assert trained == [usual | change for change in changes]


def test_the_test_images_are_those_of_the_study(tmp_path):
    (tmp_path / "small.toml").write_text(PLAN, encoding="utf-8")
    plan, args = read_plan(tmp_path / "small.toml"), SimpleNamespace(data_dir=None, on="test")
    own = script("peers").data_for(plan, "digits", args)
    assert torch.equal(own.test.x, subset(load_data("digits").test, 40, seed=plan.test_seed("digits")).x)
    args.on = "validation"
    own = script("peers").data_for(plan, "digits", args)
    assert len(own.train) + len(own.test) == len(load_data("digits").train)
