"""The examples run, learn, and say what they do where something is missing."""

import json
import re
import runpy
import statistics
import sys
from pathlib import Path

import pytest

import isingformer as isf

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    def go(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return go


def number(pattern, text):
    return float(re.search(pattern + r" ([\d.]+\d)", text)[1])


def test_a_vit_is_fine_tuned_on_a_folder_of_images(run, tmp_path):
    text = run("finetune_vit.py", "--out", tmp_path / "run", "--epochs", 10, "--count", 400)
    assert number("accuracy", text) > 0.3  # ten classes: chance is 0.1
    assert "'mean_q'" in text and "'kl'" in text
    folder = tmp_path / "run" / "images"
    assert sorted(each.name for each in folder.iterdir()) == [str(digit) for digit in range(10)]
    config = transformers.ViTConfig(**runpy.run_path(str(EXAMPLES / "finetune_vit.py"))["SMALL"], num_labels=10)
    saved = isf.load(tmp_path / "run" / "model", transformers.ViTForImageClassification(config))
    assert isf.attached_to(saved).steps == 10 * 10  # 320 images, 32 a step

    with pytest.raises(SystemExit) as stop:
        run("finetune_vit.py", "--out", tmp_path / "none", "--images", tmp_path)
    assert stop.value.code == 2


def test_a_vit_that_cannot_be_downloaded_is_stood_in_for(run, tmp_path):
    missing = tmp_path / "nowhere"
    text = run("finetune_vit.py", "--out", tmp_path / "run", "--epochs", 1, "--count", 60, "--model", missing)
    assert f"{missing} cannot be had" in text and "a small ViT with random weights stands in" in text


def test_a_text_classifier_is_fine_tuned(run, tmp_path):
    text = run("finetune_text.py", "--out", tmp_path / "run")
    assert number("accuracy", text) > 0.8  # the last word alone gives 0.75
    assert "'mean_q'" in text and "the film was not wonderful" in text


def test_texts_of_ones_own(run, tmp_path):
    file = tmp_path / "texts.csv"
    file.write_text(
        "\n".join(f"{'hot' if i % 2 else 'cold'},{'sun' if i % 2 else 'snow'} number {i}" for i in range(60))
    )
    text = run("finetune_text.py", "--texts", file, "--out", tmp_path / "run", "--epochs", 6)
    assert "12 test texts" in text and number("accuracy", text) > 0.6
    file.write_text("one,only\n")
    with pytest.raises(SystemExit) as stop:
        run("finetune_text.py", "--texts", file, "--out", tmp_path / "run")
    assert stop.value.code == 2


def test_active_learning_compares_its_scores_with_random_choice(run, tmp_path):
    small = ["--seeds", 2, "--rounds", 2, "--steps", 40, "--samples", 4, "--candidates", 100, "--width", 16]
    text = run("active_learning.py", "--out", tmp_path, "--scores", "bald", "entropy", "--power", 2, *small)
    found = json.loads((tmp_path / "active-learning.json").read_text(encoding="utf-8"))
    assert found["settings"]["on"] == "test" and found["settings"]["power"] == 2
    accuracies = found["accuracies"]
    assert set(accuracies) == {"random", "bald", "entropy"}
    first, *others = zip(*accuracies.values(), strict=True)
    assert first[0] == first[1] == first[2] and len(set(first[0])) == 2  # the same images and weights, by seed
    assert len(others) == 2 and all(len({tuple(one) for one in each}) == 3 for each in others)  # from then on others
    (bald,) = (row for row in found["overall"] if row["score"] == "bald")
    gains = [
        statistics.fmean(accuracies["bald"][turn][seed] - accuracies["random"][turn][seed] for turn in (1, 2))
        for seed in range(2)
    ]
    assert bald["over random"] == pytest.approx(statistics.fmean(gains))
    # Student's t with one degree of freedom is 12.7062 at 97.5%; the mean of two has half their difference as its error
    assert bald["95%"] == pytest.approx(12.7062 * abs(gains[0] - gains[1]) / 2, rel=1e-4)
    assert [row["labels"] for row in found["rows"] if row["score"] == "bald"] == [40, 60, 80]
    assert (tmp_path / "active-learning.png").read_bytes()[1:4] == b"PNG"
    assert "over random choice" in text


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (["--seeds", 1], "--seeds must be 2 or more"),
        (["--k", 300, "--candidates", 200], "--k 300 is more than the --candidates 200"),
        (["--rounds", 90], "1840 labels are wanted in the end, but the pool has 1137 images"),
        (["--patch", 3], "image_size 8 is not a multiple of patch 3"),
        (["--data", "nowhere.npz"], "nowhere.npz"),
    ],
)
def test_active_learning_refuses_what_cannot_be(run, wrong, complaint, monkeypatch, capsys):
    with pytest.raises(SystemExit) as stop:
        run("active_learning.py", *wrong)
    assert stop.value.code == 2 and complaint in capsys.readouterr().err.splitlines()[-1]
